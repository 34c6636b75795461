"""The estimator's honest score: what it is held to, and that rows are read for what they say."""

import dataclasses

import pytest
import yaml

from kimi_prov import documents
from kimi_prov.errors import UserError
from kimi_prov.planner.throughput import calibrate, classes, rows, score, stored

PARTS = ("one request", "batched")


# Each author predicted from all the others takes seconds: a score is slow.
@pytest.fixture(scope="module")
def predictions():
    cases, _ = rows.read_file(stored.ROWS)
    return calibrate.predict_from_other_authors(cases)


def of_class(predictions, kind, quantity="decode"):
    return [p for p in predictions if (p.case.kind, p.case.quantity) == (kind, quantity)]


def median(values):
    ordered = sorted(values)
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "part", "error"),
    [
        ("GPU, INT4 and FP8", None, 0.15),
        ("GPU, INT4 and FP8", "one request", 0.17),
        ("GPU, INT4 and FP8", "batched", 0.12),
        ("GPU, NVFP4", None, 0.15),
        ("GPU, MXFP4", None, 0.20),
    ],
)
def test_decode_on_gpus_is_near_what_unseen_authors_measured(predictions, name, part, error):
    found = [p for p in predictions if p.case.quantity == "decode"]
    own = [
        p
        for p in found
        if classes.classify_case(p.case) in {(name, part or place) for place in PARTS}
    ]
    assert len({p.case.author for p in own}) >= classes.MIN_AUTHORS
    assert median(p.error for p in own) <= error


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "quantity", "error", "held", "width"),
    [
        ("cpu", "decode", 0.18, 0.83, 2.1),
        ("hybrid", "decode", 0.20, 0.85, 2.4),
        ("cpu", "prefill", 0.30, 0.85, 4.5),
        ("hybrid", "prefill", 0.30, 0.85, 9.0),
    ],
)
def test_processors_are_told_as_unseen_authors_measured(
    predictions, kind, quantity, error, held, width
):
    own = of_class(predictions, kind, quantity)
    assert len({p.case.author for p in own}) >= 8
    assert median(p.error for p in own) <= error
    assert sum(p.is_covered for p in own) / len(own) >= held
    assert sum(p.high / p.low for p in own) / len(own) <= width


@pytest.mark.slow
@pytest.mark.parametrize("quantity", ["decode", "prefill"])
def test_ranges_of_either_kind_hold(predictions, quantity):
    own = [p for p in predictions if p.case.quantity == quantity]
    assert sum(p.is_covered for p in own) / len(own) >= 0.84


@pytest.mark.slow
def test_ranges_hold_what_they_promise_and_stay_narrow(predictions):
    assert sum(p.is_covered for p in predictions) / len(predictions) >= 0.85
    assert sum(p.high / p.low for p in predictions) / len(predictions) <= 3.7


def test_an_author_does_not_speak_for_himself():
    """An author who lies by a factor of ten must not be predicted better for being in the fit."""
    cases, _ = rows.read_file(stored.ROWS)
    liar = next(case.author for case in cases if case.id == "s053")
    bent = [
        dataclasses.replace(case, value=case.value * 10) if case.author == liar else case
        for case in cases
    ]
    for straight, lied in zip(
        calibrate.predict_without_author(liar, cases, cases),
        calibrate.predict_without_author(liar, bent, bent),
        strict=True,
    ):
        assert lied.case.value == pytest.approx(10 * straight.case.value)
        assert (lied.expected, lied.low, lied.high) == (
            straight.expected,
            straight.low,
            straight.high,
        )


ROW = {
    "id": "x1",
    "model": "Kimi-K2.5",
    "quant": "RAWINT4",
    "engine": "kt + sglang-kt",
    "cpu": "2x EPYC 9654 (64 cores requested)",
    "sockets": 2,
    "gpus": "2x H100 NVL 94GB",
    "concurrency": 1,
    "context": "1000/500",
    "decode_tok_s_per_request": 15.0,
    "measured": True,
    "confidence": "medium",
    "source": "a source of its own",
}


def read(tmp_path, *changed):
    path = tmp_path / "rows.yaml"
    path.write_text(yaml.safe_dump({"rows": [{**ROW, **change} for change in changed]}))
    return path, rows.read_file(path)


def test_a_hybrid_row_is_read_for_what_it_says(tmp_path):
    _, ([case], _) = read(tmp_path, {"flags": "gpu-experts 30"})
    assert (case.kind, case.quantity, case.value) == ("hybrid", "decode", 15.0)
    assert (case.machine.cpu.cores, case.machine.cpu.sockets) == (192, 2)
    assert (case.machine.gpus.name, case.machine.gpus.count) == ("H100 NVL 94GB", 2)
    assert (case.serving.cpu_threads, case.serving.gpu_experts) == (64, 30)
    assert (case.serving.input_tokens, case.serving.output_tokens) == (1000, 500)


def test_layers_are_streamed_where_the_row_says_so(tmp_path):
    change = {"flags": "layerwise prefill threshold 400, cpuinfer 96", "prefill_tok_s": 100}
    _, ([said, _], _) = read(tmp_path, change)
    _, ([silent, _], _) = read(tmp_path, {"prefill_tok_s": 100})
    assert said.serving.stream_prefill_from == 400
    flag = {"flags": "--kt-gpu-prefill-token-threshold 1024", "prefill_tok_s": 100}
    _, ([named, _], _) = read(tmp_path, flag)
    assert named.serving.stream_prefill_from == 1024
    _, ([bare, _], _) = read(tmp_path, {"flags": "layerwise prefill", "prefill_tok_s": 100})
    assert bare.serving.stream_prefill_from == 1
    assert silent.serving.stream_prefill_from is None


def test_a_batched_row_counts_all_requests_together(tmp_path):
    change = {
        "engine": "vllm",
        "cpu": "-",
        "quant": "INT4",
        "gpus": "8x H200",
        "concurrency": 16,
        "context": "8192/1024",
        "decode_tok_s_aggregate": 720.0,
        "prefill_tok_s": None,
    }
    _, ([case], _) = read(tmp_path, change)
    assert case.kind == "gpu-batched"
    assert case.value * case.serving.running == pytest.approx(720)


def test_more_requests_than_the_cache_holds_wait(tmp_path):
    change = {"engine": "vllm", "cpu": "-", "quant": "INT4", "gpus": "8x H200"}
    crowd = {"concurrency": 1000, "context": "8000/4000", "decode_tok_s_aggregate": 500}
    _, ([case], _) = read(tmp_path, {**change, **crowd})
    assert case.serving.running < 100


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"measured": False}, "not measured"),
        ({"model": "Weird-1"}, "'Weird-1' is not known"),
        ({"engine": "vllm", "gpus": "8x Foo", "cpu": "-"}, "'8x Foo' is not known"),
        ({"engine": "sglang + Eagle3"}, "speculative"),
        ({"note": "treat as a bad configuration"}, "defective"),
        ({"decode_tok_s_per_request": None}, "no figure"),
        ({"concurrency": None}, "concurrency"),
        ({"quant": "Z9"}, "weight format"),
    ],
)
def test_rows_that_cannot_be_scored_say_why(tmp_path, change, reason):
    _, (cases, [aside]) = read(tmp_path, change)
    assert not cases
    assert reason in aside.reason


def test_another_file_is_scored_from_the_repositorys_rows(tmp_path, capsys):
    path, _ = read(tmp_path, {}, {"id": "x2", "measured": False})
    assert score.main([str(path), "--rows"]) == 0
    printed = capsys.readouterr().out
    assert "hybrid, decode" in printed
    assert "x1" in printed
    assert "set aside: x2: not measured" in printed


def test_a_row_of_the_repository_is_not_scored_by_a_fit_that_saw_it(tmp_path, capsys):
    cases, _ = rows.read_file(stored.ROWS)
    source = next(case.author for case in cases if case.id == "s001")
    [left_out] = [
        p for p in calibrate.predict_without_author(source, cases, cases) if p.case.id == "s001"
    ]
    document = documents.Document(stored.ROWS.name, stored.ROWS.read_text()).yaml("", ours=True)
    path = tmp_path / "one.yaml"
    path.write_text(yaml.safe_dump({"rows": [r for r in document["rows"] if r["id"] == "s001"]}))
    assert score.main([str(path), "--rows"]) == 0
    assert f"{left_out.expected:.1f} expected, {left_out.low:.1f}" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["[1, 2", "a: 1", "rows: [{model: x}]"])
def test_a_file_of_another_form_is_refused(tmp_path, capsys, text):
    path = tmp_path / "other.yaml"
    path.write_text(text)
    assert score.main([str(path)]) == 2
    assert str(path) in capsys.readouterr().err


def test_a_missing_file_is_refused(tmp_path):
    with pytest.raises(UserError):
        rows.read_file(tmp_path / "none.yaml")
