"""The catalogue is whole, and names what it does not know with what is near."""

from __future__ import annotations

import dataclasses
import json
import re
from collections import Counter
from typing import TYPE_CHECKING

import closed_form
import pytest

from kimi_prov.catalog import row_files
from kimi_prov.catalog.broken import Combination
from kimi_prov.catalog.loader import Catalogue, load_catalogue
from kimi_prov.catalog.names import list_name_forms, normalize_name
from kimi_prov.catalog.versions import parse_version
from kimi_prov.commands import catalog
from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path


def test_names_are_the_repository_s_in_lower_case() -> None:
    for model in load_catalogue().models:
        assert model.name == model.name.lower()
        if model.repo:
            assert model.name == model.repo.rsplit("/", 1)[1].lower()
        assert model.native_format in model.formats
        assert model.source


def test_a_model_is_found_by_name_alias_and_repository() -> None:
    catalogue = load_catalogue()
    for name in ("kimi-k2.5", "Kimi-K2.5", "moonshotai/Kimi-K2.5"):
        assert catalogue.model(name).name == "kimi-k2.5"
    assert catalogue.model("kimi-k2-0905").name == "kimi-k2-instruct-0905"


@pytest.mark.parametrize(
    ("kind", "name", "near"),
    [
        ("model", "kimi-k25", "kimi-k2.5"),
        ("model", "moonshotai/Kimi-K26", "kimi-k2.6"),
        ("cpu", "EPYC 9664", "EPYC 9654"),
        ("cpu", "8480", "Xeon Platinum 8480+"),
        ("cpu", "Xeon E5-2699", "Xeon E5-2699 v4"),
        ("cpu", "Xeon 6980", "Xeon 6980P"),
        ("gpu", "H200 141GB", "H200 SXM"),
        ("gpu", "MI365X", "MI355X"),
        ("gpu", "H201", "H200 SXM"),
        ("format", "nvfp5", "nvfp4"),
    ],
)
def test_an_unknown_name_gets_the_nearest(kind: str, name: str, near: str) -> None:
    with pytest.raises(UserError) as caught:
        getattr(load_catalogue(), kind)(name)
    assert near in caught.value.message
    assert "did you mean" in caught.value.message


def test_a_model_that_nobody_serves_yet_is_known_with_the_reason() -> None:
    catalogue = load_catalogue()
    for row in catalogue.unserved:
        for name in (row.name, row.repo):
            with pytest.raises(UserError, match="not yet served") as caught:
                catalogue.model(name)
            assert row.reason in caught.value.message
        assert catalogue.model(row.instead).repo
    assert "kimi-k3.1-pro" in {row.name for row in catalogue.unserved}


def test_every_engine_of_the_lab_has_a_lock() -> None:
    engine = load_catalogue().engine("vllm", "cpu")
    assert engine is not None
    assert {engine.lock_name("3.11"), engine.lock_name("3.12")} <= set(load_catalogue().locks)


def test_every_lock_is_named_for_an_engine_or_a_page_of_the_catalogue() -> None:
    known = {
        e.lock_name(python)
        for e in (*load_catalogue().engines, *load_catalogue().web)
        for python in e.python
    }
    for name in load_catalogue().locks:
        if re.search(r"-cp3\d+\.txt$", name):
            assert name in known


def test_every_row_says_where_it_comes_from_and_how_sure_it_is() -> None:
    document = catalog.collect(load_catalogue(), None, None)
    closed_form.validate(json.loads(json.dumps(document)), "catalog")
    assert {row["part"].split(".")[0] for row in document["rows"]} == set(catalog._KINDS)


def test_no_two_rows_answer_to_one_name() -> None:
    catalogue = load_catalogue()
    for rows in (catalogue.cpus, catalogue.gpus):
        names = Counter(
            n for row in rows for n in {normalize_name(n) for n in (row.name, *row.aliases)}
        )
        assert [name for name, count in names.items() if count > 1] == []
    short = Counter(form for row in catalogue.cpus for form in set(list_name_forms(row.name)))
    assert [name for name, count in short.items() if count > 1] == []
    models = Counter(n for row in catalogue.models for n in (row.name, *row.aliases))
    assert [name for name, count in models.items() if count > 1] == []


@pytest.mark.parametrize(
    ("name", "found"),
    [
        ("Xeon Platinum 8468", "Xeon Platinum 8468"),
        ("Intel(R) Xeon(R) Platinum 8468", "Xeon Platinum 8468"),
        ("Intel(R) Xeon(R) Platinum 8480+ @ 2.00GHz", "Xeon Platinum 8480+"),
        ("Xeon 8468", "Xeon Platinum 8468"),
        ("8468", "Xeon Platinum 8468"),
        ("AMD EPYC 9654", "EPYC 9654"),
        ("AMD EPYC 9654 96-Core Processor", "EPYC 9654"),
        ("Intel(R) Xeon(R) 6980P", "Xeon 6980P"),
        ("AMD Ryzen Threadripper PRO 7995WX 96-Cores", "Threadripper PRO 7995WX"),
        ("Intel(R) Xeon(R) CPU E5-2699 v4 @ 2.20GHz", "Xeon E5-2699 v4"),
        ("INTEL(R) XEON(R) GOLD 6530", "Xeon Gold 6530"),
        ("Xeon 6530P", "Xeon 6530P"),
        ("AMD EPYC 9555 64-Core Processor", "EPYC 9555"),
        ("Intel(R) Xeon(R) Processor", None),
        ("", None),
    ],
)
def test_processors_by_what_people_and_kernels_call_them(name: str, found: str | None) -> None:
    row = load_catalogue().find_cpu(name)
    assert (row.name if row else None) == found


@pytest.mark.parametrize(
    ("name", "gib", "found"),
    [
        ("NVIDIA H200", None, "H200 SXM"),
        ("NVIDIA H100 80GB HBM3", None, "H100 SXM 80GB"),
        ("H100 NVL 94GB", None, "H100 NVL 94GB"),
        ("NVIDIA H100 NVL", None, "H100 NVL 94GB"),
        ("NVIDIA GeForce RTX 4090", 24, "RTX 4090"),
        ("NVIDIA GeForce RTX 4090", 48, "RTX 4090 48GB (modded)"),
        ("AMD Instinct MI300X", None, "MI300X"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", None, "RTX PRO 6000 Blackwell (Server)"),
        ("NVIDIA Tesla K80", None, None),
    ],
)
def test_cards_by_what_people_and_drivers_call_them(
    name: str, gib: int | None, found: str | None
) -> None:
    row = load_catalogue().find_gpu(name, gib << 30 if gib else None)
    assert (row.name if row else None) == found


def test_an_engine_with_code_for_a_card_was_made_by_a_toolkit_that_knows_it() -> None:
    pairs = [
        (engine, gpu)
        for engine in load_catalogue().engines
        for gpu in load_catalogue().gpus
        if engine.cuda and gpu.cuda and gpu.compute_capability in engine.compute_capabilities
    ]
    assert len(pairs) > 50
    for engine, gpu in pairs:
        assert parse_version(engine.cuda) >= parse_version(gpu.cuda), (
            engine.name,
            engine.version,
            gpu.name,
        )


def test_bandwidth_is_what_the_channels_give() -> None:
    for row in load_catalogue().cpus:
        if row.memory_channels and row.memory_mt_s:
            computed = row.memory_channels * row.memory_mt_s * 8 / 1000
            assert row.bandwidth_gb_s == pytest.approx(computed, rel=0.001), row.name


@pytest.mark.parametrize("name", ["Xeon Platinum 8468", "Xeon 6980P", "EPYC 9654", "EPYC 7763"])
def test_processors_have_what_their_instructions_say(name: str) -> None:
    row = load_catalogue().cpu(name)
    wide = {"Xeon Platinum 8468": "amx", "Xeon 6980P": "amx", "EPYC 9654": "avx512"}
    assert row.vector == wide.get(name, "avx2")


def test_the_cores_that_reference_documents_took_for_threads() -> None:
    assert load_catalogue().cpu("8468").cores == 48
    assert load_catalogue().cpu("9654").cores == 96
    assert load_catalogue().model("kimi-k2.5").architecture.experts == 384


DEAD = [
    ("--swap-space", None, "0.19.1", "rejected"),
    ("--skip-non-local-expert-weights", None, "0.19.1", "rejected"),
    ("--quantization-param-path", None, "0.15.0", "rejected"),
    ("--load-format", "compressed-tensors", "0.32.0", "fails"),
    ("--load-format", "compressed-tensors", "0.11.1", "rejected"),
    ("--num-redundant-experts", None, "0.11.1", "deprecated"),
    ("--cuda-graph-sizes", None, "0.15.0", "rejected"),
    ("--task", None, "0.33.0", "rejected"),
]


@pytest.mark.parametrize(("flag", "value", "version", "status"), DEAD)
def test_dead_flags_say_what_replaces_them(
    flag: str, value: str | None, version: str, status: str
) -> None:
    state = load_catalogue().flag("vllm", version, flag, value)
    assert state.status == status
    assert state.replacement


def test_flags_that_live_and_flags_that_nobody_looked_up() -> None:
    catalogue = load_catalogue()
    assert catalogue.flag("vllm", "0.19.1", "--max-model-len").status == "accepted"
    assert catalogue.flag("vllm", "0.19.1", "max_model_len=8").status == "accepted"
    assert catalogue.flag("vllm", "0.19.1", "--load-format", "auto").status == "accepted"
    assert catalogue.flag("ktransformers", "0.7.2", "--kt-cpuinfer").status == "accepted"
    assert catalogue.flag("vllm", "0.19.1", "--no-such-flag").status == "unknown"


def test_between_versions_that_agree_the_answer_is_theirs() -> None:
    catalogue = load_catalogue()
    assert catalogue.flag("vllm", "0.25.1", "--swap-space").status == "rejected"
    assert catalogue.flag("vllm", "0.17.0", "--swap-space").status == "unknown"
    assert catalogue.flag("vllm", "0.40.0", "--swap-space").status == "rejected"
    assert catalogue.flag("vllm", "0.40.0", "--numa-bind").status == "unknown"
    assert catalogue.flag("vllm", "0.9.0", "--swap-space").status == "unknown"


KT = Combination("ktransformers", "cuda", "0.7.2", "kimi-k2.6", "int4", tensor_parallel=4)
VLLM = Combination("vllm", "cuda", "0.15.0", "kimi-k2.5", "int4", tensor_parallel=8)
WIDE = dataclasses.replace(VLLM, data_parallel=4, hosts=4, flags=("--enable-expert-parallel",))
STAGES = dataclasses.replace(VLLM, model="kimi-k3", weights_format="mxfp4", pipeline_parallel=2)
RAY = dataclasses.replace(WIDE, flags=("--distributed-executor-backend=ray",))


@pytest.mark.parametrize(
    ("given", "changed", "hit"),
    [
        (KT, {}, "kt-k2.6-rawint4-tp"),
        (KT, {"capability": "12.0"}, "kt-blackwell"),
        (KT, {"capability": "10.3"}, "kt-b300"),
        (KT, {"capability": "12.0", "weights_format": "fp8"}, "kt-sm120-fp8"),
        (VLLM, {"flags": ("--enable-eplb",)}, "vllm-eplb-int4"),
        (
            VLLM,
            {"flags": ("--kv-cache-dtype=fp8", "--enable-chunked-prefill")},
            "vllm-fp8-kv-chunked-prefill",
        ),
        (VLLM, {"variant": "cpu"}, "vllm-cpu-int4"),
        (WIDE, {}, "vllm-marlin-wide-ep"),
        (STAGES, {}, "vllm-k3-pipeline"),
        (RAY, {}, "vllm-data-parallel-ray"),
        (
            VLLM,
            {"flags": ("--load-format=compressed-tensors",)},
            "vllm-load-format-compressed-tensors",
        ),
    ],
)
def test_known_broken_combinations_are_found(given: Combination, changed: dict, hit: str) -> None:
    found = load_catalogue().broken_with(dataclasses.replace(given, **changed))
    assert hit in {row.id for row in found}
    assert all(row.fix and row.source for row in found)


@pytest.mark.parametrize(
    ("given", "changed", "spared"),
    [
        (KT, {"tensor_parallel": 1}, "kt-k2.6-rawint4-tp"),
        (KT, {"model": "kimi-k2.5"}, "kt-k2.6-rawint4-tp"),
        (KT, {"capability": "9.0"}, "kt-blackwell"),
        (KT, {"capability": "12.0"}, "kt-b300"),
        (
            KT,
            {
                "capability": "12.0",
                "weights_format": "fp8",
                "flags": ("--fp8-gemm-backend=triton",),
            },
            "kt-sm120-fp8",
        ),
        (VLLM, {"flags": ("--enable-eplb",), "weights_format": "nvfp4"}, "vllm-eplb-int4"),
        (WIDE, {"hosts": 1}, "vllm-marlin-wide-ep"),
        (WIDE, {"data_parallel": 1}, "vllm-marlin-wide-ep"),
        (WIDE, {"tensor_parallel": 1}, "vllm-marlin-wide-ep"),
        (WIDE, {"weights_format": "fp8"}, "vllm-marlin-wide-ep"),
        (STAGES, {"pipeline_parallel": 1}, "vllm-k3-pipeline"),
        (STAGES, {"model": "kimi-k2.5"}, "vllm-k3-pipeline"),
        (
            RAY,
            {"flags": (*RAY.flags, "--data-parallel-backend=ray")},
            "vllm-data-parallel-ray",
        ),
        (
            VLLM,
            {"flags": ("--kv-cache-dtype=fp8", "--enable-chunked-prefill"), "version": "0.19.1"},
            "vllm-fp8-kv-chunked-prefill",
        ),
        (VLLM, {"flags": ("--kv-cache-dtype=fp8",)}, "vllm-fp8-kv-chunked-prefill"),
    ],
)
def test_what_differs_in_what_matters_is_not_broken(
    given: Combination, changed: dict, spared: str
) -> None:
    found = load_catalogue().broken_with(dataclasses.replace(given, **changed))
    assert spared not in {row.id for row in found}


def test_drivers_prices_and_systems_answer() -> None:
    catalogue = load_catalogue()
    assert catalogue.drivers.branch_for("13.0") == 580
    assert catalogue.drivers.branch_for("99") is None
    branches = {row.name: row.driver_branch for row in catalogue.drivers.rules}
    assert branches["marlin-ptx"] == 580
    assert catalogue.prices.assumed("electricity") > 0
    for row in catalogue.prices.api:
        if row.model:
            assert catalogue.model(row.model)
    for price in (*catalogue.prices.gpu_hour, *catalogue.prices.purchase):
        assert catalogue.gpu(price.name)
    debian = catalogue.system("debian", "12")
    assert debian is not None
    assert debian.nvidia_driver is not None
    assert debian.nvidia_driver < "580"


def test_a_kind_is_read_when_it_is_asked_for_and_not_before(monkeypatch) -> None:
    read = []
    parsed = row_files._parse_file

    def note(path: Path, changed: int) -> object:
        read.append(path.stem)
        return parsed(path, changed)

    monkeypatch.setattr(row_files, "_parse_file", note)
    catalogue = Catalogue()
    assert not read
    catalogue.gpu("H200")
    assert set(read) == {"gpus"}


def test_a_name_like_none_is_told_where_all_of_them_stand() -> None:
    with pytest.raises(UserError) as caught:
        load_catalogue().cpu("abacus")
    assert "did you mean" not in caught.value.message
    assert "kimi-prov catalog cpus" in str(caught.value.fix)


@pytest.mark.parametrize(
    ("name", "vector", "gb_s"),
    [
        ("Xeon E5-2680 v3", "avx2", 68.3),
        ("Xeon E5-2697 v4", "avx2", 76.8),
        ("Xeon Gold 6248R", "avx512", 140.8),
        ("Xeon Gold 6530", "amx", 307.2),
        ("Xeon 6767P", "amx", 409.6),
        ("EPYC 7543", "avx2", 204.8),
        ("EPYC 9555", "avx512", 576.0),
        ("Threadripper PRO 9995WX", "avx512", 409.6),
    ],
)
def test_members_of_a_family_have_what_it_shares(name: str, vector: str, gb_s: float) -> None:
    row = load_catalogue().cpu(name)
    assert (row.vector, row.bandwidth_gb_s) == (vector, gb_s)
    assert row.source


@pytest.mark.parametrize(
    ("name", "mib", "known"),
    [
        ("NVIDIA H100 80G...", 81559, "H100 SXM 80GB"),
        ("NVIDIA H100 PCI...", 81559, "H100 PCIe 80GB"),
        ("NVIDIA A100-SXM...", 40960, "A100 40GB"),
        ("NVIDIA A100-SXM...", 81920, "A100 SXM 80GB"),
        # Cards of different speed have this name and this memory.
        ("NVIDIA GeForce ...", 24576, None),
        ("NVIDIA H100 80G...", 0, None),
    ],
)
def test_a_name_that_nvidia_smi_cut_is_told_by_the_memory(
    name: str, mib: int, known: str | None
) -> None:
    row = load_catalogue().find_gpu(name, mib << 20)
    assert (row.name if row else None) == known
