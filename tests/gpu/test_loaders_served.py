"""Every loader with an installed engine, on a model of Kimi's own size: `loaders.py` inside a host.

In order: each test goes on from what the one before has left.
"""

from __future__ import annotations

import base64
import io
import json
import tarfile
from typing import TYPE_CHECKING, Any

import engine_unit as unit
import full_size
import gpu_report
import loaders
import pytest

if TYPE_CHECKING:
    from conftest import Clock
    from full_size import Asked
    from gpu_report import Report
    from machines import Host

pytestmark = pytest.mark.gpu

_PLACE = "/opt/kimi-loaders"
_OUTPUT = "/var/tmp/kimi-loaders"
# A host's /dev/shm is smaller than a rank's file; with huge pages memory is registered in no time.
_RAM = "/mnt/kimi-loaders"
_MOUNT = f"mkdir -p {_RAM} && mount -t tmpfs -o huge=always,size=80% tmpfs {_RAM}"
# What the engine refuses: it opens a library by a name that wheels lack.
_REFUSED = ("fastsafetensors",)
# Of the time that is left: the host is destroyed after it.
_KEPT_S = 60.0


def carry(host: Host, *more: str) -> None:
    """Lay the programs and the plugin out in the host as they lie in the checkout."""
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w:gz") as archive:
        programs = [loaders.ROOT / "tests" / "gpu" / name for name in ("loaders.py", *more)]
        for path in (*programs, loaders.PLUGIN):
            archive.add(
                path,
                path.relative_to(loaders.ROOT),
                filter=lambda one: None if "__pycache__" in one.name else one,
            )
    data = base64.b64encode(stream.getvalue()).decode()
    host.ssh(f"mkdir -p {_PLACE} && echo {data} | base64 -d | tar -xz -C {_PLACE}")


def select_flags(argv: list[str], *own: str) -> list[str]:
    """Select of a unit's command what each start has: all but model, name, address and `own`."""
    begins = next(at for at, word in enumerate(argv) if word.startswith("--"))
    groups: list[list[str]] = []
    for word in argv[begins:]:
        groups += [[word]] if word.startswith("--") else []
        groups[-1] += [] if word.startswith("--") else [word]
    away = ("--model", "--served-model-name", "--host", "--port", *own)
    return [word for group in groups if group[0] not in away for word in group]


def test_apply_serves_before_loaders_are_tried(full: Asked, clock: Clock, report: Report) -> None:
    """`kimi-prov apply` brings the host to a served model of Kimi's own size."""
    cards = len(gpu_report.cards())
    layout = next(one for one in full_size.layouts(cards) if one.name == "tensor parallel")
    full.ask(layout, kimi_start_timeout_s=int(max(60.0, min(3600.0, clock.left_s))))
    done = full.host.apply()
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    plan = unit.planned(full.host)
    engine = f"{plan['engine']['name']} {plan['engine']['version']}"
    report.figure(apply_s=unit.start_seconds(full.host), engine=engine)
    report.figure(argv=plan["instances"][0]["argv"][1:])


def test_each_loader_starts_the_engine(full: Asked, clock: Clock, report: Report) -> None:
    """Each loader starts the engine and answers; prepared weights give what was written."""
    if "argv" not in report.figures:
        pytest.fail("apply has not served, so there is no engine to start")
    host = full.host
    program = unit.planned(host)["instances"][0]["argv"][0]
    carry(host)
    host.ssh(f"systemctl stop {unit.UNIT} && {_MOUNT}")
    minutes = max(1.0, (clock.left_s - _KEPT_S) / 60)
    python = program.rpartition("/")[0] + "/python"
    argv = report.figures["argv"]
    flags = " ".join(select_flags(argv))
    model = argv[argv.index("--model") + 1]
    host.ssh(
        # As the unit has it: what kernels are chosen by.
        f'eval "export $(systemctl show {unit.UNIT} -p Environment --value)"; '
        f"{python} {_PLACE}/tests/gpu/loaders.py --output {_OUTPUT} --ram {_RAM} "
        f"--minutes {minutes:.1f} --model {model} --python {python} --no-pieces --flags='{flags}'",
        check=False,
        timeout=60 * minutes + 120,
    )
    document = json.loads(host.ssh(f"cat {_OUTPUT}/loaders.json"))
    report.figure(loaders=document)
    rows: dict[tuple[str, str], dict[str, Any]] = {
        (row["loader"], row["source"]): row for row in document["rows"]
    }
    failed = {row["loader"] for row in rows.values() if row["note"].startswith(("Runtime", "Time"))}
    assert failed <= set(_REFUSED)
    prepared = rows["prepared", "ram disk"]
    # The file was copied: the engine did not go the ordinary way.
    assert "copied" in prepared["phases"]
    assert prepared["phases"]["answer"] < rows["default", "as it lies"]["phases"]["answer"]


def test_destroy_after_the_loaders_frees_the_gpus(full: Asked, report: Report) -> None:
    """`kimi-prov destroy` leaves no unit, file or user, and no memory of a card in use."""
    full.host.ssh(f"rm -rf {_PLACE} {_OUTPUT}; umount {_RAM} && rmdir {_RAM}", check=False)
    report.figure(destroy_s=unit.destroyed(full.host), memory_after_mib=unit.memory_used())
