"""Staging into a real tmpfs, with a disk that has gone bad under it."""

from __future__ import annotations

import hashlib
import json
import os
import random
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kimi_prov.on_host.system.progress import Progress
from kimi_prov.on_host.weights import fetch, stage
from kimi_prov.on_host.weights import manifest as manifests

if TYPE_CHECKING:
    from collections.abc import Iterator

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="mounting a RAM disk needs root")


def noise(seed: int, size: int) -> bytes:
    return random.Random(seed).randbytes(size)  # noqa: S311


FILES = {
    "model-1.safetensors": noise(1, 3_000_000),
    "model-2.safetensors": noise(2, 2_000_001),
    "sub/config.json": b"{}\n",
    "empty": b"",
}


class Machine:
    """A model that was fetched from a directory, and a RAM disk to put it on."""

    def __init__(self, root: Path) -> None:
        self.disk = root / "disk"
        self.dir = root / "models/kimi/rev"
        self.mount = root / "ram"
        self.target = self.mount / "kimi/rev"
        self.config = root / "stage.json"
        self.weights = root / "weights.json"
        self.progress = root / "run/stage.json"
        self.mount.mkdir()
        for name, body in FILES.items():
            (self.disk / name).parent.mkdir(parents=True, exist_ok=True)
            (self.disk / name).write_bytes(body)
        rows = [
            {"path": name, "size": len(body), "sha256": hashlib.sha256(body).hexdigest()}
            for name, body in FILES.items()
        ]
        self.write_weights({"files": rows})
        self.write(str(self.target))
        assert fetch.main(["--config", str(self.weights)]) == 0

    def write_weights(self, manifest: dict[str, Any]) -> None:
        document = {"source": f"file://{self.disk}", "dir": str(self.dir), "manifest": manifest}
        self.weights.write_text(json.dumps(document))

    def write(self, target: str | None) -> None:
        document = {
            "weights": str(self.weights),
            "target": target,
            "mount": str(self.mount),
            "workers": 2,
            "progress": str(self.progress),
        }
        self.config.write_text(json.dumps(document))

    def stage(self, *flags: str) -> int:
        return stage.main(["--config", str(self.config), *flags])

    @property
    def told(self) -> dict[str, Any]:
        document: dict[str, Any] = json.loads(self.progress.read_text())
        return document

    def holds(self) -> bool:
        return all((self.target / name).read_bytes() == body for name, body in FILES.items())

    def remount(self, size: str = "64m") -> None:
        self.unmount()
        mount = ["mount", "-t", "tmpfs", "-o", f"size={size},mode=0755", "tmpfs", str(self.mount)]
        subprocess.run(mount, check=True)

    def unmount(self) -> None:
        subprocess.run(["umount", str(self.mount)], check=False, capture_output=True)


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    made = Machine(tmp_path)
    made.remount()
    yield made
    made.unmount()


def flip(path: Path) -> None:
    """One bit, without a trace in the times."""
    stat = path.stat()
    with path.open("r+b") as stream:
        stream.seek(1_000_000)
        byte = stream.read(1)
        stream.seek(1_000_000)
        stream.write(bytes([byte[0] ^ 4]))
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))


@needs_root
def test_the_ram_disk_is_filled_and_filled_again_after_a_reboot(machine: Machine) -> None:
    assert machine.stage("--check") == 1
    assert machine.stage() == 0
    assert machine.holds()
    assert machine.stage("--check") == 0
    assert (machine.target / "model-1.safetensors").stat().st_mode & 0o777 == 0o644
    assert machine.told["state"] == "done"
    assert machine.told["done_bytes"] == machine.told["total_bytes"]
    machine.remount()
    assert machine.stage("--check") == 1
    assert machine.stage() == 0
    assert machine.holds()


@needs_root
def test_a_shard_that_rotted_on_the_disk_is_mended_and_only_that(
    machine: Machine, capsys: pytest.CaptureFixture[str]
) -> None:
    flip(machine.dir / "model-2.safetensors")
    # only this file is still at the source: asking for another would fail
    for name in FILES:
        if name != "model-2.safetensors":
            (machine.disk / name).unlink()
    assert machine.stage() == 0
    assert machine.holds()
    assert (machine.dir / "model-2.safetensors").read_bytes() == FILES["model-2.safetensors"]
    out = capsys.readouterr().out
    assert "model-2.safetensors" in out
    assert "fetching again" in out
    assert fetch.main(["--config", str(machine.weights), "--check"]) == 0


@needs_root
def test_a_rotten_shard_that_cannot_be_mended_is_never_staged(machine: Machine) -> None:
    flip(machine.dir / "model-2.safetensors")
    (machine.disk / "model-2.safetensors").unlink()
    assert machine.stage() == 2
    assert "model-2.safetensors" in machine.told["message"]
    assert not (machine.target / "model-2.safetensors").exists()
    assert not (machine.target / ".kimi-verified").exists()


@needs_root
def test_without_the_mount_the_disk_below_is_not_filled(machine: Machine) -> None:
    machine.unmount()
    assert machine.stage() == 2
    assert "not mounted" in machine.told["message"]
    assert list(machine.mount.iterdir()) == []


@needs_root
def test_a_ram_disk_too_small_is_said_in_figures(machine: Machine) -> None:
    machine.remount("4m")
    assert machine.stage() == 2
    assert "4.0 MiB free" in machine.told["message"]
    assert "5.8 MiB" in machine.told["message"]


@needs_root
def test_what_an_earlier_model_left_makes_room(machine: Machine) -> None:
    machine.remount("9m")
    old = machine.mount / "other/rev"
    old.mkdir(parents=True)
    (old / "model-1.safetensors").write_bytes(noise(8, 6_000_000))
    assert machine.stage() == 0
    assert machine.holds()
    assert not (machine.mount / "other").exists()


@needs_root
def test_what_is_staged_already_is_not_copied_again(machine: Machine) -> None:
    assert machine.stage() == 0
    kept = (machine.target / "model-1.safetensors").stat().st_ino
    (machine.target / "model-2.safetensors").write_bytes(b"damaged")
    assert machine.stage("--check") == 1
    assert machine.stage() == 0
    assert machine.holds()
    assert (machine.target / "model-1.safetensors").stat().st_ino == kept


def test_without_a_target_the_files_are_read_and_verified(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.write(None)
    assert machine.stage() == 0
    assert "page cache" in machine.told["message"]
    assert machine.told["done_bytes"] == sum(map(len, FILES.values()))
    flip(machine.dir / "model-1.safetensors")
    assert machine.stage() == 0
    assert (machine.dir / "model-1.safetensors").read_bytes() == FILES["model-1.safetensors"]


def test_a_target_outside_the_ram_disk_is_refused(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    machine.write("/srv/elsewhere")
    assert machine.stage() == 2


def test_a_config_that_is_missing_says_what_writes_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stage.main(["--config", str(tmp_path / "none.json")]) == 2
    assert "kimi-prov apply" in capsys.readouterr().err


def test_a_file_that_cannot_be_read_past_the_page_cache_is_read_and_named() -> None:
    body = Path("/proc/version").read_bytes()
    entry = manifests.Entry("version", len(body), hashlib.sha256(body).hexdigest())
    with Progress(None, "weights") as progress:
        reading = stage.Staging("/proc", None, progress, direct=True)
        reading.run([entry], 1)
    assert (reading.wrong, reading.cached) == ([], ["/proc/version"])
