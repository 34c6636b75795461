"""Kimi's own size on all GPUs: shipped inventories as they are, then what other layouts bring.

As many of its 61 layers as the cards hold: all of them on eight of 80 GB. In order: each test goes
on from what the one before has left, and the first ones are those of most weight. Speeds are held
to the estimate for all 61 layers alone: of few, what an engine does for each step beside them is
most of it, which no estimate of Kimi tells of.
"""

from __future__ import annotations

import dataclasses
import json
import re
import time
from typing import TYPE_CHECKING, Any

import engine_unit as unit
import full_size
import gpu_report
import pytest
from machines import kimi_prov

from kimi_prov.contract import paths, unit_names

if TYPE_CHECKING:
    from conftest import Clock
    from full_size import Asked, Layout, Models
    from gpu_report import Report
    from groups import Group
    from machines import Host

pytestmark = pytest.mark.gpu

OTHERS = (
    *("tensor parallel", "expert parallel", "8-bit cache", "cache shared out"),
    *("data-parallel attention", "an engine on each card", "a draft that is always rejected"),
)
# Of what the plan counts and the log tells.
NEAR = 0.03
ESTIMATES = ("decode_tok_s", "prefill_tok_s", "aggregate_tok_s")


@pytest.fixture(scope="module")
def layouts() -> dict[str, Layout]:
    """The layouts for this machine's cards, by name."""
    return {layout.name: layout for layout in full_size.layouts(len(gpu_report.cards()))}


@pytest.fixture
def serving(full: Asked, report: Report) -> Host:
    """The host, where a layout was served; its engine is up again if a test has ended it."""
    if "apply_s" not in report.figures:
        pytest.fail("apply has not served, so there is nothing to look at")
    if not unit.serves(full.host):
        start = unit.restart(full.host, unit.FIRST_START_S)
        assert start.reason is None
    return full.host


def applied(
    asked: Asked, layout: Layout, clock: Clock, report: Report, **over: object
) -> dict[str, Any]:
    """Apply a layout; return the plan beside what the engine's log says of its start.

    Plan and log are kept beside the report, under the layout's name.
    """
    # A machine may be lent for less than what the plan allows a start.
    asked.ask(layout, kimi_start_timeout_s=int(max(60.0, min(3600.0, clock.left_s))), **over)
    plan, blockers = full_size.planned(asked.host)
    if blockers:
        return {"refused": blockers}
    since = asked.host.ssh("date '+%F %T'").strip()
    began = time.monotonic()
    # Hosts of a group are applied together.
    done = kimi_prov("apply", asked.host.inventory)
    log = unit.said(asked.host, 4000, since=since)
    logged = full_size.told(log)
    kept = report.folder / "-".join([*layout.name.split(), *map(str, over.values())])
    kept.mkdir(parents=True, exist_ok=True)
    (kept / "plan.json").write_text(json.dumps(plan, indent=1) + "\n")
    (kept / "engine.log").write_text(log)
    for rank in asked.ranks:
        of_rank = unit.said(rank, 4000, since, unit_names.RANK)
        (kept / f"{rank.name}.log").write_text(of_rank)
        logged["weights_gib"] += full_size.told(of_rank)["weights_gib"]
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-2000:]}\n{log[-6000:]}"
    memory = plan["memory"]
    found = {
        "apply_s": round(time.monotonic() - began),
        "start_s": unit.start_seconds(asked.host),
        "command": plan["instances"][0]["argv"][1:],
        "ram_disk": plan["ram_disk"]["enabled"],
        "planned": {
            "weights_gib": round(memory["weights_bytes_per_gpu"] / 2**30, 2),
            "cache_tokens": memory["kv_tokens_max"],
        },
        "logged": logged,
        # Each says how many tokens its own cache holds.
        "engines": plan["parallel"]["data"],
        "memory_used_mib": unit.memory_used(),
    }
    if "apply_s" not in report.figures:
        _first(plan["engine"], found, report)
        facts = asked.host.ssh(f"python3 -I {paths.ZIPAPP} probe")
        (report.folder / "facts.json").write_text(facts)
    return found


def _first(engine: dict[str, Any], found: dict[str, Any], report: Report) -> None:
    """Note what the machine's first apply took, and of which engine."""
    report.figure(
        apply_s=found["apply_s"],
        first_start_s=found["start_s"],
        memory_used_mib=found["memory_used_mib"],
        engine=f"{engine['name']} {engine['version']}",
        torch=engine.get("torch"),
        python=engine.get("python_version"),
    )


def far_off(found: dict[str, Any]) -> list[str]:
    """Say which of weights and cache the log has otherwise than the plan.

    Of hosts that serve together the one with most weights counts.
    """
    wrong = []
    for name, planned in found["planned"].items():
        logged = [float(word.replace(",", "")) for word in found["logged"][name]]
        times = found["engines"] if name == "cache_tokens" else 1
        if not logged or times * max(logged) != pytest.approx(planned, rel=NEAR):
            wrong.append(f"{name}: planned {planned}, logged {logged} by each of {times}")
    return wrong


def refused(found: dict[str, Any]) -> bool:
    """Whether the plan refused a layout; it may for want of memory or room alone."""
    reasons = found.get("refused", [])
    other = [reason for reason in reasons if not reason.startswith(full_size.TOO_SMALL)]
    assert other == [], "; ".join(other)
    return bool(reasons)


def agreed(found: dict[str, Any], slow: list[str]) -> None:
    wrong = [*far_off(found), *slow]
    # Where this is packed nothing rewrites an assertion: the report needs the words.
    assert wrong == [], "; ".join(wrong)


def timed(
    asked: Asked, layout: Layout, clock: Clock, report: Report, found: dict[str, Any]
) -> list[str]:
    """Measure a layout under each of its loads, into `found`; return what is outside its range.

    Speeds of a model with fewer layers are measured, and held to nothing. Each is in the report
    before the next is asked for.
    """
    estimate, whole = asked.estimate(layout), asked.models.whole(layout.model)
    curve = {row["concurrency"]: row for row in estimate["curve"]}
    rows: dict[str, Any] = {"not held": [load for load in layout.loads if load not in curve]}
    rows["held to the estimate"] = whole
    found["measured"] = rows
    # Requests of that length, as many as the cache holds, where it holds fewer than were asked for.
    loads = [load for load in layout.loads if load in curve] or [max(curve)]
    wrong = []
    for load in loads:
        level = full_size.measured(asked.host, load, estimate, max(1.0, clock.left_s))
        rows[str(load)] = {
            "ms_a_token": round(1000 * level["tpot_s"]["median"], 2),
            "tokens_s": level["aggregate_tok_s"],
            "prefill_tok_s": level["prefill_tok_s"],
            "ttft_s": level["ttft_s"]["median"],
            "asked": list(full_size.lengths(load, estimate)),
            "estimated": {name: curve[load][name] for name in ESTIMATES},
        }
        report.figure(**{layout.name: found})
        wrong += full_size.outside(level, curve[load], load) if whole else []
    return wrong


@pytest.mark.parametrize("name", [full_size.PLAIN])
def test_a_model_is_of_kimi_s_own_size(hollow: Models, name: str, report: Report) -> None:
    """It is as large as so many of Kimi's layers, as many as the cards hold."""
    sized(hollow, name, report)


def sized(hollow: Models, name: str, report: Report) -> None:
    files = [*hollow.made(name).iterdir()]
    layers = hollow.layers[name]
    size = sum(file.stat().st_size for file in files)
    on_disk = 512 * sum(file.stat().st_blocks for file in files)
    report.figure(**{name: {"layers": layers, "bytes": size, "bytes_on_disk": on_disk}})
    assert size == pytest.approx(full_size.counted_bytes(name, layers), rel=0.002)
    assert on_disk == pytest.approx(size - full_size.expert_bytes(name, layers), rel=0.1)


@pytest.mark.parametrize("name", ["h100x8"])
def test_a_shipped_inventory_is_served(
    full: Asked, layouts: dict[str, Layout], name: str, clock: Clock, report: Report
) -> None:
    """`kimi-prov apply` serves it; memory is as planned, and speed where it has all layers."""
    serve(full, layouts[name], clock, report)


def serve(full: Asked, layout: Layout, clock: Clock, report: Report) -> None:
    found = applied(full, layout, clock, report)
    report.figure(**{layout.name: found})
    if refused(found):
        return
    agreed(found, timed(full, layout, clock, report, found))


def test_verify_passes_at_full_size(serving: Host) -> None:
    """`kimi-prov verify` finds all as it should be, a chat among it."""
    unit.verified(serving)


def test_a_killed_worker_at_full_size_is_served_again(
    serving: Host, clock: Clock, report: Report
) -> None:
    """After kill -9 of a worker the unit ends, its memory comes back, and it answers again."""
    first = unit.shown(serving)
    serving.ssh("kill -9 $(pgrep -u kimi -f '^VLLM::Worker' | tail -1)")
    seconds = unit.wait_for_restart(serving, first["MainPID"], clock.a_start_s)
    report.figure(after_kill_of_worker_s=seconds, start_from_caches_s=unit.start_seconds(serving))
    assert kimi_prov("status", serving.inventory).returncode == 0


def test_a_ram_disk_beside_none(
    full: Asked, layouts: dict[str, Layout], clock: Clock, report: Report
) -> None:
    """A start and a restart from a RAM disk, where memory holds one, and from none."""
    layout = layouts["h100x8"]
    rows: dict[str, Any] = {}
    for wish in ("never", "always"):
        found = applied(full, layout, clock, report, kimi_ram_disk=wish)
        rows[wish] = found
        report.figure(ram_disk=rows)
        if refused(found):
            continue
        again = unit.restart(full.host, clock.a_start_s)
        rows[wish] = {
            "apply_s": found["apply_s"],
            "start_s": found["start_s"],
            "restart_s": again.seconds,
            "weights_s": found["logged"]["weights_s"],
        }
        report.figure(ram_disk=rows)
        assert again.reason is None


@pytest.mark.parametrize("name", [full_size.SEEING])
def test_another_model_is_of_kimi_s_own_size(hollow: Models, name: str, report: Report) -> None:
    """It is as large as so many of Kimi's layers and the whole vision tower."""
    sized(hollow, name, report)


@pytest.mark.parametrize("name", ["dgx-h200"])
def test_another_shipped_inventory_is_served(
    full: Asked, layouts: dict[str, Layout], name: str, clock: Clock, report: Report
) -> None:
    """`kimi-prov apply` serves it; memory is as planned, and speed where it has all layers."""
    serve(full, layouts[name], clock, report)


@pytest.mark.parametrize("name", OTHERS)
def test_a_layout_under_64_requests(
    full: Asked, layouts: dict[str, Layout], name: str, clock: Clock, report: Report
) -> None:
    """What the layout brings at 64 requests at once; for want of memory it is refused."""
    serve(full, layouts[name], clock, report)


def test_destroy_at_full_size_frees_the_gpus(full: Asked, report: Report) -> None:
    """`kimi-prov destroy` leaves no unit, file or user, and no memory of a card in use."""
    report.figure(destroy_s=unit.destroyed(full.host), memory_after_mib=unit.memory_used())


def test_two_hosts_of_half_the_cards_serve_it(
    full_pair: tuple[Group, Asked], layouts: dict[str, Layout], clock: Clock, report: Report
) -> None:
    """`kimi-prov apply` serves it over two hosts, each with half of the cards, as planned."""
    group, asked = full_pair
    layout = dataclasses.replace(layouts["expert parallel"], name="two hosts")
    # Either host sees the whole machine's memory: each would plan for all of it.
    found = applied(asked, layout, clock, report, kimi_ram_disk="never")
    report.figure(**{layout.name: found})
    assert not refused(found), found["refused"]
    found["nccl"] = re.findall(r"vLLM is using nccl==(\S+)", group.journal(group.head, 4000))[-1:]
    agreed(found, timed(asked, layout, clock, report, found))


def test_destroy_at_full_size_leaves_both_hosts(
    request: pytest.FixtureRequest, report: Report
) -> None:
    """`kimi-prov destroy` leaves no unit, file or user on either, and no memory of a card."""
    if "two hosts" not in report.figures:
        pytest.fail("the two hosts were not applied")
    group, asked = request.getfixturevalue("full_pair")
    report.figure(destroy_of_both_s=unit.destroyed(asked.host))
    assert [unit.left(host) for host in group.members] == ["", ""]
