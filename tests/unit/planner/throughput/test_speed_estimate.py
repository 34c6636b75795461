"""What the planner asks of the estimator: ranges that make sense, in time, for any machine."""

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kimi_prov.catalog import loader
from kimi_prov.planner import throughput
from kimi_prov.planner.throughput import calibrate, rows, stored, subjects
from kimi_prov.planner.throughput.loads import count_checkpoint_gb, count_worker_gb

K25 = throughput.make_shape("kimi-k2.5", loader.load_catalogue().model("kimi-k2.5").architecture)
INT4 = throughput.find_weight_format("int4")
RAW = throughput.find_weight_format("rawint4")


def h200(**settings):
    machine = throughput.Machine(gpus=subjects.find_gpus("H200 SXM", 8))
    return throughput.estimate_speed(K25, machine, throughput.Serving("vllm", INT4, **settings))


def hybrid(cpu="EPYC 9654", card="H100 NVL", cards=2, **settings):
    machine = throughput.Machine(
        cpu=subjects.find_cpu(cpu, 2), gpus=subjects.find_gpus(card, cards)
    )
    return throughput.estimate_speed(
        K25, machine, throughput.Serving("ktransformers", RAW, **settings)
    )


def holds(given: throughput.Range, low: float, high: float) -> bool:
    return given.low <= high and given.high >= low


def test_shapes_of_the_catalogue_and_of_the_measured_rows_agree():
    assert dataclasses.replace(K25, name="") == dataclasses.replace(
        subjects.find_model("Kimi-K2.5"), name=""
    )


def test_checkpoint_is_counted_as_published():
    assert count_checkpoint_gb(K25, throughput.Serving("vllm", INT4)) == pytest.approx(
        594.2, rel=0.002
    )


def test_one_stream_on_eight_h200_is_bound_by_latency_not_by_bandwidth():
    found = h200(input_tokens=1000)
    assert found.basis == "latency-bound"
    assert found.kind == "gpu-single"
    assert holds(found.decode_tok_s, 112, 121)


def test_reference_system_000_gets_what_it_measured():
    found = hybrid(cpu_threads=64)
    assert found.kind == "hybrid"
    assert found.decode_tok_s.expected == pytest.approx(15.57, rel=0.2)


def test_load_time_holds_the_start_that_was_timed_and_shrinks_with_the_page_cache():
    # 595 GB from a cloud disk to eight cards took five and a half minutes and the start after it.
    old = {"version": "0.15.0"}
    assert holds(h200(**old).load_s, 330, 480)
    read, cached = (
        h200(weights_in_memory=cached, experts_whole=True, **old) for cached in (False, True)
    )
    assert cached.load_s.expected < read.load_s.expected


EXPERTS = {"experts_whole": True}


@pytest.mark.parametrize(("cards", "of_experts"), [(1, 1), (2, 2 / 3), (8, 5 / 12)])
def test_of_slices_that_are_no_integers_a_worker_reads_what_it_needs(cards, of_experts):
    """Two of an expert's three parts are cut into rows, the third across them: all of its pages."""
    _, machine, packed = of_layers(61, cards)
    serving = dataclasses.replace(packed, weights=throughput.find_weight_format("fp8"))
    shared = dataclasses.replace(serving, experts_whole=True)
    whole = count_checkpoint_gb(K25, serving)
    experts = (whole - count_worker_gb(K25, subjects.find_gpus("H200 SXM", 10**6), shared)) / (
        1 - 1e-6
    )
    found = count_worker_gb(K25, machine.gpus, serving)
    assert found == pytest.approx(whole - (1 - of_experts) * experts)


def of_layers(layers, cards, **layout):
    """So many of Kimi's layers in memory, on so many H200."""
    whole = loader.load_catalogue().model("kimi-k2-thinking").architecture
    cut = throughput.make_shape("kimi-k2-thinking", dataclasses.replace(whole, layers=layers))
    machine = throughput.Machine(gpus=subjects.find_gpus("H200 SXM", cards))
    of_vllm = {"version": "0.25.1", **layout}
    return cut, machine, throughput.Serving("vllm", INT4, weights_in_memory=True, **of_vllm)


@pytest.mark.parametrize("whole", [True, False])
def test_a_start_from_a_disk_is_no_quicker_than_from_memory(whole):
    """At neither end: of a disk that nobody knows, and of one faster than the workers."""
    model, machine, cached = of_layers(61, 8, experts_whole=whole)
    memory = throughput.estimate_speed(model, machine, cached).load_s
    read = dataclasses.replace(cached, weights_in_memory=False)
    for disk in (None, 2.0, 50.0):
        found = throughput.estimate_speed(
            model, dataclasses.replace(machine, disk_gb_s=disk), read
        ).load_s
        assert (found.low, found.expected, found.high) >= (memory.low, memory.expected, memory.high)
        assert found.low >= memory.low
        assert found.high >= memory.high
        if disk == 50:
            assert found == memory


def test_a_start_is_as_long_as_was_logged():
    """24 layers from a RAM disk on two H200 answered after 325 s, four on four after 198 and 97."""
    for seen, asked in (
        (325, of_layers(24, 2)),
        (198, of_layers(4, 4)),
        (97, of_layers(4, 4, **EXPERTS)),
    ):
        found = throughput.estimate_speed(*asked).load_s
        assert found.low <= seen <= found.high


def test_slices_of_packed_integers_are_loaded_no_faster_by_more_cards():
    """Every worker turns every expert over; whole experts are shared out."""

    def ready(cards, **more):
        return throughput.estimate_speed(*of_layers(61, cards, **more)).load_s.expected

    assert ready(8) == ready(4)
    assert ready(8, **EXPERTS) < ready(4, **EXPERTS) < ready(4)
    # Of two engines of eight cards each loads for itself.
    assert ready(16, tensor_parallel=8, **EXPERTS) == ready(8, **EXPERTS)
    assert ready(8, hosts=2, stages=2) < ready(8)


def test_more_users_share_the_machine_and_get_more_out_of_it():
    alone, many = h200(concurrency=4), h200(concurrency=32)
    assert many.kind == "gpu-batched"
    assert many.decode_tok_s.expected < alone.decode_tok_s.expected
    assert many.aggregate_tok_s.expected > alone.aggregate_tok_s.expected
    assert many.aggregate_tok_s.expected == pytest.approx(32 * many.decode_tok_s.expected)


def test_requests_that_find_no_room_in_the_cache_wait():
    bounded = h200(concurrency=64, kv_tokens_max=8 * (8192 + 1024))
    assert bounded.aggregate_tok_s.expected == pytest.approx(
        h200(concurrency=8).aggregate_tok_s.expected
    )


def test_cards_without_links_are_slower_for_the_same_bandwidth():
    linked = subjects.find_gpus("H100 SXM", 8)
    serving = throughput.Serving("vllm", INT4)
    apart = throughput.Machine(gpus=dataclasses.replace(linked, nvlink_gb_s=0))
    one = throughput.estimate_speed(K25, throughput.Machine(gpus=linked), serving)
    assert (
        throughput.estimate_speed(K25, apart, serving).decode_tok_s.expected
        < one.decode_tok_s.expected
    )


def test_experts_on_the_gpu_take_work_from_the_processor():
    assert hybrid(gpu_experts=96).decode_tok_s.expected > hybrid().decode_tok_s.expected


def test_long_prompts_are_streamed_to_the_gpu_unless_that_is_off():
    on, off = hybrid(input_tokens=16384), hybrid(input_tokens=16384, stream_prefill_from=None)
    assert on.prefill_tok_s.expected > 2 * off.prefill_tok_s.expected


def test_layers_are_streamed_once_for_each_chunk_of_a_prompt():
    whole, cut = (hybrid(input_tokens=16384, stream_chunk=size) for size in (16384, 4096))
    # Four times the streaming, the same arithmetic.
    ratio = whole.prefill_tok_s.expected / cut.prefill_tok_s.expected
    assert 2 < ratio <= 4


def test_prompts_that_wait_together_share_what_is_streamed():
    short = {"concurrency": 16, "output_tokens": 1024}
    shared = hybrid(input_tokens=1024, **short).decode_tok_s.expected
    apart = hybrid(input_tokens=1024, stream_chunk=1024, **short).decode_tok_s.expected
    assert shared > 1.4 * apart


def test_narrow_numbers_are_multiplied_faster_where_the_card_can():
    speedups = {
        name: (card.tflops_at(8) / card.tflops, card.tflops_at(4) / card.tflops)
        for name in (
            "A100 SXM 80GB",
            "H200 SXM",
            "B200 SXM",
            "MI300X",
            "MI355X",
            "RTX PRO 6000 Blackwell (Server)",
        )
        for card in [subjects.find_gpus(name, 1)]
    }
    assert speedups == {
        "A100 SXM 80GB": (1, 1),
        "H200 SXM": (2, 1),
        "B200 SXM": (2, 4),
        "MI300X": (2, 1),
        "MI355X": (2, 4),
        "RTX PRO 6000 Blackwell (Server)": (2, 1),
    }


def test_a_short_prompt_leaves_blocks_of_the_experts_half_empty():
    short, long = h200(input_tokens=500), h200(input_tokens=8192)
    assert long.prefill_tok_s.expected > 1.5 * short.prefill_tok_s.expected


@settings(max_examples=60, deadline=None)
@given(
    cores=st.integers(1, 256),
    bandwidth=st.floats(10, 3000),
    cards=st.integers(0, 8),
    vector=st.sampled_from(["avx2", "avx512", "amx", "arm"]),
    concurrency=st.integers(1, 2000),
    tokens=st.floats(1, 262144),
    engine=st.sampled_from(["vllm", "sglang", "ktransformers", "llama.cpp", "ik_llama.cpp"]),
)
def test_any_machine_gets_ordered_positive_ranges(
    cores, bandwidth, cards, vector, concurrency, tokens, engine
):
    machine = throughput.Machine(
        cpu=throughput.Cpu(1, cores, bandwidth, vector=vector),
        gpus=subjects.find_gpus("RTX 4090", cards) if cards else None,
    )
    serving = throughput.Serving(engine, RAW, concurrency=concurrency, input_tokens=tokens)
    found = throughput.estimate_speed(K25, machine, serving)
    for spread in (found.decode_tok_s, found.aggregate_tok_s, found.prefill_tok_s, found.load_s):
        assert 0 < spread.low < spread.expected < spread.high


@pytest.mark.parametrize(
    "make",
    [
        throughput.Machine,
        lambda: throughput.Cpu(0, 8, 100),
        lambda: dataclasses.replace(subjects.find_gpus("L20", 1), count=0),
        lambda: throughput.Serving("vllm", INT4, output_tokens=0),
    ],
)
def test_impossible_inputs_are_refused(make):
    with pytest.raises(ValueError, match=r"wanted above 0|needs a CPU or a GPU"):
        make()


def test_unknown_formats_are_refused_and_gguf_kinds_found():
    assert throughput.find_weight_format("UD-Q4_K_XL").rest == pytest.approx(4.85 / 8)
    with pytest.raises(KeyError):
        throughput.find_weight_format("q99")


def test_stored_coefficients_are_those_of_the_rows():
    cases, _ = rows.read_file(stored.ROWS)
    assert stored.format_models(calibrate.fit_models(cases)) == stored.COEFFICIENTS.read_text(
        "utf-8"
    ), "run: python -m kimi_prov.planner.throughput.score --write"
