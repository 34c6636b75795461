"""Prepared weights by `apply` on real cards: written, copied, put aside, and written anew.

In order: each test goes on from what the one before has left. KIMI_PROV_GPU_LAYERS=3 is enough.
"""

from __future__ import annotations

import json
import re
import shlex
from typing import TYPE_CHECKING, Any

import engine_unit as unit
import full_size
import gpu_report
import loaders
import pytest
from machines import kimi_prov
from test_loaders_served import carry
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from conftest import Clock
    from full_size import Asked
    from gpu_report import Report
    from machines import Host

pytestmark = pytest.mark.gpu

_PLACE, _OUTPUT = "/opt/kimi-loaders", "/var/tmp/kimi-pages"
_MOUNTS = {"small": "/mnt/kimi-small", "huge": "/mnt/kimi-huge"}
_WRITTEN, _COPIED = "Prepared weights written", "every sum as written"
_RATE = re.compile(r"Prepared weights: ([\d.]+) GB in ([\d.]+) seconds, [\d.]+ GB/s, (\w+)")
_TOOK = re.compile(r"Prepared weights written: .*, ([\d.]+) GB in ([\d.]+) seconds")


def log(host: Host) -> str:
    """What the unit's present run has said."""
    run = f"$(systemctl show -P InvocationID {unit.UNIT})"
    return host.ssh(f"journalctl -o cat --no-pager _SYSTEMD_INVOCATION_ID={run}")


def status(host: Host) -> dict[str, Any]:
    done = kimi_prov("status", host.inventory, "--format", "json")
    document: dict[str, Any] = json.loads(done.stdout)["hosts"][host.name]["prepared_weights"]
    return document


def folder(host: Host) -> str:
    return str(unit.planned(host)["prepared_weights"]["dir"])


def list_sums(host: Host) -> list[str]:
    """The SHA-256 of each file with its name; some seconds for each."""
    listed = host.ssh(
        f"find {folder(host)} -name '*.prepared' -print0 | sort -z | xargs -0 -P 8 sha256sum",
        timeout=600,
    )
    return sorted(listed.splitlines())


def flip_byte(host: Host, rank: str) -> None:
    program = (
        "import pathlib, sys; p = next(pathlib.Path(sys.argv[1]).rglob(sys.argv[2])); "
        "f = p.open('r+b'); f.seek(p.stat().st_size // 2 // 4096 * 4096); b = f.read(1)[0]; "
        "f.seek(-1, 1); f.write(bytes([b ^ 1])); f.close()"
    )
    host.ssh(f"python3 -c {shlex.quote(program)} {folder(host)} {shlex.quote(rank)}")


@pytest.fixture
def served(full: Asked, report: Report) -> Host:
    """The host, where apply has served before."""
    if "written" not in report.figures:
        pytest.fail("apply has not served with prepared weights")
    return full.host


@pytest.fixture
def ranks() -> int:
    return len(gpu_report.cards())


def test_apply_serves_and_writes_what_each_card_holds(
    full: Asked, clock: Clock, report: Report, ranks: int
) -> None:
    """`kimi-prov apply` with `kimi_prepared_weights: on` serves; each rank has written its file."""
    layout = next(one for one in full_size.layouts(ranks) if one.name == "tensor parallel")
    wait = int(max(60.0, min(3600.0, clock.left_s)))
    full.ask(layout, kimi_start_timeout_s=wait, kimi_prepared_weights="on")
    done = full.host.apply()
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    said = log(full.host)
    took = [(float(gb), float(seconds)) for gb, seconds in _TOOK.findall(said)]
    assert len(took) == ranks
    told = status(full.host)
    assert (told["files"], told["put_aside"]) == (ranks, 0)
    report.figure(written=took, first_start_s=unit.start_seconds(full.host))
    report.figure(first_load=full_size.told(said))


def test_a_restart_copies_each_card_s_file(
    served: Host, clock: Clock, report: Report, ranks: int
) -> None:
    """A restart copies each file, every sum as written, and loads no checkpoint."""
    start = unit.restart(served, clock.a_start_s)
    assert start.reason is None, start.reason
    said = log(served)
    copied = [(float(gb), float(s), way) for gb, s, way in _RATE.findall(said)]
    assert len(copied) == ranks
    assert _WRITTEN not in said
    report.figure(copied=copied, restart_s=unit.start_seconds(served))
    report.figure(second_load=full_size.told(said))


def test_a_flipped_byte_is_put_aside_and_a_writer_killed_leaves_nothing_that_counts(
    served: Host, clock: Clock, report: Report, ranks: int
) -> None:
    """A file with a flipped byte is put aside; kill -9 as it is written anew; then all is whole."""
    flip_byte(served, f"rank-tp{ranks - 1}-*.prepared")
    place = folder(served)
    served.ssh(f"systemctl reset-failed {unit.UNIT}; systemctl restart --no-block {unit.UNIT}")
    seen = until(
        lambda: bool(served.ssh(f"find {place} -name '.*.partial'", check=False).strip()),
        clock.a_start_s,
    )
    assert seen, unit.said(served, 20)
    assert "has another sum" in log(served)
    before = unit.shown(served)["MainPID"]
    served.ssh(f"systemctl kill -s KILL {unit.UNIT}")
    report.figure(after_kill_s=unit.wait_for_restart(served, before, clock.a_start_s))
    assert served.ssh(f"find {place} -name '.*.partial'").strip() == ""
    told = status(served)
    assert (told["files"], told["put_aside"]) == (ranks, 1)
    assert _WRITTEN in log(served)
    done = kimi_prov("clean", served.inventory, "--yes", "--format", "json")
    items = json.loads(done.stdout)["hosts"][served.name]["items"]
    assert [row["of"].split()[0] for row in items if row["kind"] == "prepared"] == ["damaged"]


def test_other_requests_copy_the_same_files(
    full: Asked, served: Host, clock: Clock, report: Report, ranks: int
) -> None:
    """`apply` with half of the requests at once restarts the engine, which copies what it has."""
    sums = list_sums(served)
    layout = next(one for one in full_size.layouts(ranks) if one.name == "tensor parallel")
    wait = int(max(60.0, min(3600.0, clock.left_s)))
    full.ask(
        layout,
        kimi_start_timeout_s=wait,
        kimi_prepared_weights="on",
        kimi_concurrency=int(layout.wishes["kimi_concurrency"]) // 2,
    )
    done = served.apply()
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    said = log(served)
    assert said.count(_COPIED) == ranks
    assert _WRITTEN not in said
    assert list_sums(served) == sums
    assert status(served)["older"] == 0
    report.figure(other_requests_start_s=unit.start_seconds(served))


@pytest.fixture
def mounts(served: Host) -> Iterator[dict[str, str]]:
    """Two RAM disks, one with huge pages; the engine is down."""
    served.ssh(f"systemctl stop {unit.UNIT}")
    for kind, place in _MOUNTS.items():
        huge = "within_size" if kind == "huge" else "never"
        served.ssh(f"mkdir -p {place} && mount -t tmpfs -o huge={huge},size=40% tmpfs {place}")
    yield _MOUNTS
    places = " ".join(_MOUNTS.values())
    served.ssh(f"umount {places}; rmdir {places}; rm -rf {_PLACE} {_OUTPUT}", check=False)


def test_huge_pages_and_cards_at_once(
    served: Host, mounts: dict[str, str], clock: Clock, report: Report, ranks: int
) -> None:
    """Copies from RAM disks of both page sizes, by one card and by all at once."""
    carry(served)
    engine = unit.planned(served)["instances"][0]["argv"][0].rpartition("/")[0] + "/python"
    found: dict[str, Any] = {}
    for kind, place in mounts.items():
        for cards in {1, ranks}:
            if clock.left_s < 120:
                break
            name = f"{kind}, {cards} at once"
            runs = " ".join(
                f"mkdir -p {place}/{card} && CUDA_VISIBLE_DEVICES={card} {engine} "
                f"{_PLACE}/tests/gpu/loaders.py --output {_OUTPUT}/{card} --minutes 2 --gb 8 "
                f"--ram {place}/{card} --ram-only --only registered --only staged &"
                for card in range(cards)
            )
            served.ssh(f"{runs} wait; rm -rf {place}/*", timeout=300)
            documents = [
                json.loads(served.ssh(f"cat {_OUTPUT}/{card}/loaders.json"))
                for card in range(cards)
            ]
            found[name] = [
                {key: row[key] for key in ("loader", "source", "gb_s", "note")}
                for document in documents
                for row in document["rows"]
            ]
            report.figure(pages=found)
    rows = [row for name in found for row in found[name]]
    assert rows
    assert {row["note"] for row in rows} == {"every sum right"}
    assert {loaders.HUGE in row["source"] for row in found["huge, 1 at once"]} == {True}


def test_destroy_after_prepared_weights_frees_the_gpus(full: Asked, report: Report) -> None:
    """`kimi-prov destroy` leaves no unit, file or user, and no memory of a card in use."""
    report.figure(destroy_s=unit.destroyed(full.host), memory_after_mib=unit.memory_used())
    assert full.host.ssh("ls -d /srv/kimi/prepared", check=False).strip() == ""
