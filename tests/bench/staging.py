"""How fast weights get from disk to RAM disk: our pass against `cp -r` and then `sha256sum`.

    python tests/bench/staging.py [--gb 4] [--runs 3] [--dir DIR] [--ram DIR]

Both do the same work on the same files in turns: copy them to memory and verify every SHA-256.
The files are in the page cache before each turn, so it is memory and processors that are measured.
Prints one JSON object; speeds in bytes per second, medians over the runs.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from kimi_prov.on_host.system.progress import Progress
from kimi_prov.on_host.weights.manifest import Entry
from kimi_prov.on_host.weights.stage import Staging

SHARDS = 8


def make(root: Path, size: int) -> list[Entry]:
    """Write shards of random bytes, `size` in all, and say what they are."""
    root.mkdir()
    for number in range(SHARDS):
        with (root / f"model-{number + 1:05}.safetensors").open("wb") as stream:
            left = size // SHARDS
            while left > 0:
                left -= stream.write(os.urandom(min(left, 64 << 20)))
    paths = sorted(root.iterdir())
    listed = subprocess.run(["sha256sum", *paths], capture_output=True, text=True, check=True)
    digests = [line.split()[0] for line in listed.stdout.splitlines()]
    return [
        Entry(path.name, path.stat().st_size, digest)
        for path, digest in zip(paths, digests, strict=True)
    ]


def warm(root: Path) -> None:
    """Read every file, so that no turn pays for the disk."""
    buffer = bytearray(1 << 20)
    for path in root.iterdir():
        with path.open("rb", buffering=0) as stream:
            while stream.readinto(buffer):
                pass


def ours(source: Path, target: Path, entries: list[Entry], workers: int) -> None:
    """Stage as kimi-stage.service does."""
    target.mkdir()
    staging = Staging(str(source), str(target), Progress(None, "stage"))
    staging.run(entries, workers)
    if staging.wrong:
        raise SystemExit(f"staging found wrong bytes in {staging.wrong}")


def by_hand(source: Path, target: Path, sums: Path) -> None:
    """Stage as an operator would with two commands."""
    subprocess.run(["cp", "-r", source, target], check=True)
    subprocess.run(["sha256sum", "--check", "--quiet", sums], cwd=target, check=True)


def measure(size: int, runs: int, disk: Path, ram: Path, workers: int) -> dict[str, Any]:
    """Take turns, and return the medians with what they were measured on."""
    source, target = disk / "source", ram / "target"
    entries = make(source, size)
    total = sum(entry.size for entry in entries)
    sums = disk / "sums"
    sums.write_text("".join(f"{entry.sha256}  {entry.path}\n" for entry in entries))
    speeds: dict[str, list[float]] = {"staging": [], "cp_then_sha256sum": []}
    for _ in range(runs):
        for name, taken in speeds.items():
            warm(source)
            began = time.monotonic()
            if name == "staging":
                ours(source, target, entries, workers)
            else:
                by_hand(source, target, sums)
            taken.append(total / (time.monotonic() - began))
            shutil.rmtree(target)
    medians = {name: statistics.median(taken) for name, taken in speeds.items()}
    return {
        "bytes": total,
        "runs": runs,
        "workers": workers,
        "cores": len(os.sched_getaffinity(0)),
        "staging_bytes_per_s": round(medians["staging"]),
        "cp_then_sha256sum_bytes_per_s": round(medians["cp_then_sha256sum"]),
        "ratio": round(medians["staging"] / medians["cp_then_sha256sum"], 2),
        "each": {name: [round(speed) for speed in taken] for name, taken in speeds.items()},
    }


def main() -> int:
    """Run it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--gb", type=float, default=2.0)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--workers", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--dir", help="where the source lies (default: the temporary directory)")
    parser.add_argument("--ram", default="/dev/shm")
    options = parser.parse_args()
    with (
        tempfile.TemporaryDirectory(dir=options.dir) as disk,
        tempfile.TemporaryDirectory(dir=options.ram) as ram,
    ):
        size = int(options.gb * 1e9)
        figures = measure(size, options.runs, Path(disk), Path(ram), options.workers)
    sys.stdout.write(json.dumps(figures, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
