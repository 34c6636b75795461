"""Converting layer by layer: kept through kills, never half, and only what can be converted.

A small program stands in for kt-kernel: it writes files of kt-kernel's names and sizes. The real
kernel runs in tests/lab/test_kt_environment.py.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import struct
import sys
from typing import TYPE_CHECKING, Any

import pytest

from kimi_prov.on_host.kt import convert
from kimi_prov.on_host.system import file_lock
from kimi_prov.on_host.system.files import write_json
from kimi_prov.on_host.weights import manifest, tensor_files

if TYPE_CHECKING:
    from pathlib import Path

EXPERTS, HIDDEN, WIDTH, LAYERS = 2, 64, 32, (1, 2, 3)
KERNEL = """#!{python}
import json, os, pathlib, signal, sys
job = json.load(sys.stdin)
here = pathlib.Path({here!r})
with open(here / "asked", "a") as asked:
    asked.write(str(job["layer"]) + "\\n")
told = json.loads((here / "kernel.json").read_text())
for pool in range(len(job["nodes"])):
    folder = pathlib.Path(job["scratch"], "_layer_%d" % job["layer"], "_numa_%d" % pool)
    folder.mkdir(parents=True)
    for expert in range(job["experts"]):
        for name, rows in (("gate", job["width"]), ("up", job["width"]), ("down", job["hidden"])):
            size = job["hidden"] * job["width"] // 2 // len(job["nodes"])
            if name != "down":
                rows //= len(job["nodes"])
            places = job["places"][name][expert]["weight"]
            fill = sum(("%s %s" % (places[1], pool)).encode()) % 256
            kind = job["method"][3:]
            for piece, count in (("quant", size), ("scale", rows * 4)):
                path = folder / ("%s_%s_%d_%dByte_%s_.kt" % (kind, name, expert, count, piece))
                path.write_bytes(bytes([fill]) * count)
    if job["layer"] == told.get("killed"):
        os.kill(os.getpid(), signal.SIGKILL)
print("CPUInfer: Hello")
print(json.dumps({{"relative_error": told["error"]}}))
"""


def tensors(path: Path, rows: dict[str, tuple[str, bytes]]) -> None:
    """Write a safetensors file whose tensors have no true shape: names and types count."""
    head: dict[str, Any] = {}
    end = 0
    for name, (kind, data) in rows.items():
        head[name] = {"dtype": kind, "shape": [1], "data_offsets": [end, end + len(data)]}
        end += len(data)
    text = json.dumps({"__metadata__": {"format": "pt"}, **head}).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(d for _, d in rows.values()))


class Machine:
    """A directory as /srv/kimi and /etc/kimi, with a checkpoint that was fetched and verified."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.source, self.result = root / "source", root / "result"
        self.source.mkdir()
        self.result.mkdir()
        kernel = root / "kernel"
        kernel.write_text(KERNEL.format(python=sys.executable, here=str(root)))
        kernel.chmod(0o755)
        self.kernel(error=0.24)
        self.checkpoint()
        self.config(method="AMXINT4", nodes=[0])

    def kernel(self, **told: Any) -> None:
        (self.root / "kernel.json").write_text(json.dumps(told))

    def config(self, **changed: Any) -> None:
        write_json(
            str(self.root / "weights.json"),
            {"source": "file:///elsewhere", "dir": str(self.source)},
        )
        write_json(
            str(self.root / "convert.json"),
            {
                "weights": str(self.root / "weights.json"),
                "dir": str(self.result),
                "threads": 1,
                "python": str(self.root / "kernel"),
                "progress": str(self.root / "progress.json"),
                **changed,
            },
        )

    def checkpoint(
        self,
        kind: str = "BF16",
        suffix: str = "weight",
        salt: bytes = b"",
        *,
        scales: bool = True,
    ) -> None:
        for old in self.source.iterdir():
            old.unlink()
        config = {"n_routed_experts": EXPERTS, "num_experts_per_tok": 1, "hidden_size": HIDDEN}
        config |= {"moe_intermediate_size": WIDTH}
        (self.source / "config.json").write_text(json.dumps({"text_config": config}))
        for layer in (0, *LAYERS):
            stem = f"language_model.model.layers.{layer}"
            rows = {f"{stem}.input_layernorm.weight": ("BF16", b"12" + salt)}
            for expert in range(EXPERTS if layer else 0):
                for name in ("gate", "up", "down"):
                    tensor = f"{stem}.mlp.experts.{expert}.{name}_proj"
                    rows[f"{tensor}.{suffix}"] = (kind, b"xy")
                    if kind == "F8_E4M3" and scales:
                        rows[f"{tensor}.weight_scale_inv"] = ("F32", b"abcd")
            tensors(self.source / f"model-{layer:05d}.safetensors", rows)
        records = {
            path.name: manifest.Record.from_file(
                str(path), hashlib.sha256(path.read_bytes()).hexdigest()
            )
            for path in sorted(self.source.iterdir())
        }
        made = manifest.Manifest(
            [manifest.Entry(n, r.size, r.sha256) for n, r in records.items()],
            source="file:///elsewhere",
        )
        write_json(str(self.source / manifest.NAME), made.to_json())
        manifest.write_mark(str(self.source), made, records)

    def convert(self, *more: str) -> int:
        return convert.main(["--config", str(self.root / "convert.json"), *more])

    @property
    def asked(self) -> list[int]:
        """Layers that the kernel was asked for since the last look."""
        path = self.root / "asked"
        found = [int(line) for line in path.read_text().split()] if path.exists() else []
        path.unlink(missing_ok=True)
        return found

    @property
    def message(self) -> str:
        return str(json.loads((self.root / "progress.json").read_text())["message"])

    @property
    def fix(self) -> str:
        return str(json.loads((self.root / "progress.json").read_text())["error"]["fix"])

    def files(self) -> dict[str, str]:
        return {
            path.name: hashlib.sha256(path.read_bytes()).hexdigest()
            for path in self.result.glob("layer-*")
        }


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def test_each_layer_becomes_a_file_and_a_second_run_changes_nothing(machine: Machine) -> None:
    assert machine.convert("--check") == 1
    assert machine.convert() == 0
    assert machine.asked == list(LAYERS)
    assert sorted(p.name for p in machine.result.iterdir()) == [
        ".kimi-verified",
        "kimi-manifest.json",
        *[f"layer-{layer:05d}.safetensors" for layer in LAYERS],
    ]
    rows = tensor_files.read_header(str(machine.result / "layer-00002.safetensors"))
    assert len(rows) == EXPERTS * 3 * 2
    weight = rows["blk.2.ffn_down_exps.1.numa.0.weight"]
    assert (weight["dtype"], weight["shape"]) == ("I8", [HIDDEN * WIDTH // 2])
    scale = rows["blk.2.ffn_down_exps.1.numa.0.scale"]
    assert (scale["dtype"], scale["shape"]) == ("F32", [HIDDEN])
    before = [path.stat().st_mtime_ns for path in sorted(machine.result.iterdir())]
    assert machine.convert() == 0
    assert machine.convert("--check") == 0
    assert machine.asked == []
    assert before == [path.stat().st_mtime_ns for path in sorted(machine.result.iterdir())]


def test_who_locks_the_folder_stops_no_conversion_but_another_conversion_does(
    machine: Machine,
) -> None:
    machine.result.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(machine.result, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    try:
        with file_lock.lock(str(machine.result / manifest.LOCK)):
            assert machine.convert() == 2
            assert f"another conversion is at work here: process {os.getpid()}" in machine.message
        assert machine.convert() == 0
    finally:
        os.close(descriptor)


def test_killed_in_the_middle_it_goes_on_where_it_was(machine: Machine) -> None:
    machine.kernel(error=0.24, killed=2)
    assert machine.convert() == 1
    assert "out of memory" in machine.message
    assert machine.asked == [1, 2]
    assert not (machine.result / ".kimi-verified").exists()
    assert (machine.result / ".kimi-partial" / "_layer_2").is_dir()
    first = (machine.result / "layer-00001.safetensors").stat().st_mtime_ns
    machine.kernel(error=0.24)
    assert machine.convert() == 0
    assert machine.asked == [2, 3]
    assert (machine.result / "layer-00001.safetensors").stat().st_mtime_ns == first
    interrupted = machine.files()
    shutil.rmtree(machine.result)
    machine.result.mkdir()
    assert machine.convert() == 0
    assert machine.files() == interrupted


def test_a_layer_that_was_touched_is_made_again_alone(machine: Machine) -> None:
    assert machine.convert() == 0
    assert machine.asked == list(LAYERS)
    os.truncate(machine.result / "layer-00002.safetensors", 100)
    assert machine.convert("--check") == 1
    assert machine.convert() == 0
    assert machine.asked == [2]


def test_other_weights_or_pools_are_converted_anew_and_files_of_others_are_left(
    machine: Machine,
) -> None:
    (machine.result / "notes.txt").write_text("not ours")
    assert machine.convert() == 0
    before = machine.files()
    machine.checkpoint(salt=b"3")
    assert machine.convert("--check") == 1
    assert machine.convert() == 0
    assert machine.asked == [*LAYERS, *LAYERS]
    machine.config(method="AMXINT4", nodes=[0, 1])
    assert machine.convert() == 0
    assert machine.asked == list(LAYERS)
    assert machine.files().keys() == before.keys()
    assert machine.files() != before
    assert (machine.result / "notes.txt").read_text() == "not ours"


def test_fp8_needs_its_scales(machine: Machine) -> None:
    machine.checkpoint(kind="F8_E4M3")
    assert machine.convert() == 0
    machine.checkpoint(kind="F8_E4M3", scales=False)
    assert machine.convert() == 2
    assert "scale" in machine.message
    machine.checkpoint(kind="F8_E5M2")
    assert machine.convert() == 2
    assert "F8_E5M2" in machine.message


def test_int4_is_refused_before_anything_is_written(machine: Machine) -> None:
    machine.checkpoint(kind="I32", suffix="weight_packed")
    assert machine.convert() == 2
    assert "remove kimi_kt_method" in machine.fix
    assert machine.asked == []
    assert list(machine.result.iterdir()) == []


def test_weights_that_are_not_verified_are_waited_for(machine: Machine) -> None:
    (machine.source / manifest.MARK).unlink()
    assert machine.convert() == 1
    assert "kimi-fetch.service" in machine.message


def test_a_disk_without_room_is_said_in_figures(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = shutil.disk_usage(machine.root)._replace(free=1000)
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: full)
    assert machine.convert() == 2
    assert "1000 B are free" in machine.message
    assert machine.asked == []


@pytest.mark.parametrize("error", [1.7, float("nan")])
def test_a_kernel_that_computes_nonsense_is_not_believed(machine: Machine, error: float) -> None:
    machine.kernel(error=error)
    assert machine.convert() == 2
    assert "layer 1" in machine.message
    assert machine.files() == {}


def test_files_for_another_number_of_pools_are_refused(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    machine.config(method="AMXINT4", nodes=[0, 1])
    assert machine.convert() == 0
    assert convert.main(["--made-for", "2", str(machine.result)]) == 0
    with pytest.raises(SystemExit) as ended:
        convert.main(["--made-for", "1", str(machine.result)])
    assert ended.value.code == 2
    assert "for 2 thread pool(s), and the plan has 1" in capsys.readouterr().err


def test_what_is_no_tensor_file_is_named(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    (machine.result / "layer-00001.safetensors").write_bytes(b"short")
    with pytest.raises(SystemExit) as ended:
        convert.main(["--made-for", "1", str(machine.result)])
    told = f"{ended.value.code} {capsys.readouterr().err}"
    assert "layer-00001.safetensors: is not a safetensors file" in told
