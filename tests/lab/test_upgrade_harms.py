"""An upgrade that is cut: whatever happens at whatever point, one of the two serves.

With a client that streams all the while. The next run says which of the two it is, and converges.
Each run upgrades to a version of its own, so that the next begins where this one ended.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from machines import HANGS_S
from upgrades import INT4, NO_START, SECOND, Run, Shaken, applying, changed, streaming
from waiting import until

from kimi_prov.contract import paths
from kimi_prov.lab import operations as commands

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.lab, pytest.mark.slow]

# Bytes a second: slow enough that a part of the weights is there for a while.
SLOW = 200_000


# --- the points ------------------------------------------------------------------------------


def locked(shaken: Shaken, _: str) -> bool:
    return bool(shaken.inside.text(paths.APPLY_LOCK))


def noted(shaken: Shaken, _: str) -> bool:
    return shaken.inside.phase == "writing"


def half_the_weights(shaken: Shaken, _: str) -> bool:
    served = sum(shaken.web.behaviour.served.values())
    return shaken.web.behaviour.rate is not None and served > 1 << 20


def half_an_environment(shaken: Shaken, _: str) -> bool:
    engines = shaken.inside.path(paths.ENGINES)
    return bool(engines) and any(
        (path / "lib").is_dir() and any(path.glob("lib/python3*/site-packages/vllm"))
        for path in engines.iterdir()
        if not (path / paths.ENV_COMPLETE).exists()
    )


def written(shaken: Shaken, before: str) -> bool:
    plan = shaken.inside.text(paths.PLAN)
    return shaken.inside.phase == "writing" and plan not in ("", before)


def at(words: str, phase: str = "switching") -> Callable[[Shaken, str], bool]:
    """Whether the switch is in a phase and says that it is at this."""

    def there(shaken: Shaken, _: str) -> bool:
        return shaken.inside.phase == phase and shaken.inside.line.startswith(words)

    return there


def decided(shaken: Shaken, before: str) -> bool:
    """The switch is closed, and its run has not noted yet what was applied."""
    plan = shaken.inside.text(paths.PLAN)
    return not shaken.inside.phase and plan not in ("", before) and locked(shaken, before)


POINTS: dict[str, Callable[[Shaken, str], bool]] = {
    "before the note": locked,
    "after the note": noted,
    "weights half fetched": half_the_weights,
    "environment half installed": half_an_environment,
    "files written": written,
    "measuring": at("measuring what serves"),
    "draining": at("waiting for the requests"),
    "stopping": at("stopping"),
    "starting": at("the engine is loading"),
    "verifying": at("verifying"),
    "measured again": at("measuring what serves now"),
    "decided": decided,
    "going back": at("going back", "returning"),
}


# Where the run after a cut or a full disk goes on to what was wanted.
ONWARD = ("weights half fetched", "starting")


def wanted(shaken: Shaken, point: str) -> dict[str, Any]:
    """Settings of an upgrade that comes by the point; each differs from all before."""
    number = {"kimi_concurrency": next(shaken.numbers)}
    if point == "weights half fetched":
        shaken.web.behaviour.served.clear()
        shaken.web.behaviour.rate = SLOW
        shaken.host.ssh(f"rm -rf {paths.MODELS}/{SECOND}")
        return {**number, "kimi_model": SECOND, "kimi_weights_source": shaken.web.url}
    if point == "environment half installed":
        # A harm before may have left it whole.
        shaken.host.ssh(
            f"cd {paths.ENGINES} && find . -mindepth 1 -maxdepth 1 "
            f'! -name "$(basename "$(readlink -f {paths.ENGINE})")" -exec rm -rf {{}} +'
        )
        source = f"file:///opt/models/{INT4}"
        return {**number, "kimi_model": INT4, "kimi_weights_source": source}
    return {**number, **(NO_START if point == "going back" else {})}


# --- the harms -------------------------------------------------------------------------------


def control_is_killed(run: Run, _: Shaken) -> None:
    run.kill()


def power_is_cut(run: Run, shaken: Shaken) -> None:
    commands.switch_power(shaken.host.inventory, shaken.host.name, on=False, hard=True)
    commands.switch_power(shaken.host.inventory, shaken.host.name, on=True)
    run.ended()


def disk_is_full(run: Run, shaken: Shaken) -> None:
    shaken.disk.fill()
    run.ended()


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("harm", [control_is_killed, power_is_cut, disk_is_full])
def test_one_of_the_two_serves_and_the_next_run_says_which(
    shaken: Shaken,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
    point: str,
    harm: Callable[[Run, Shaken], None],
) -> None:
    settings = wanted(shaken, point)
    before = shaken.inside.text(paths.PLAN), shaken.serving()
    with streaming(shaken.host, record_property, tokens=400):
        with applying(shaken.host, tmp_path, settings) as run:
            run.reaches(lambda: POINTS[point](shaken, before[0]), point)
            harm(run, shaken)
        if (harm, point) == (disk_is_full, "going back"):
            # What was reserved is taken too. Without a block nothing starts; the way back is tried
            # until there is one.
            shaken.disk.free()
        # A switch goes on by itself. One that was not begun stays open for the next run.
        assert until(lambda: shaken.inside.phase in ("", "writing"), HANGS_S)
        assert until(shaken.answers, HANGS_S), run.said
    record_property("the run said", run.said[-1000:])
    shaken.disk.free()
    shaken.web.behaviour.rate = None

    ended, which = shaken.inside.entry(), shaken.serving()
    record_property("then", f"{ended['kind']} {ended['number']}: {ended['result']}; {which}")
    assert which in (before[1], settings["kimi_concurrency"])
    # What the history says is so.
    assert ended["result"] != "failed"
    assert shaken.host.ssh("systemctl is-active kimi-firewall").strip() == "active"

    # To what the cut run wanted, or to what the inventory said before it: both converge.
    onward = point in ONWARD or harm is control_is_killed
    if "kimi_engine_args" in settings or INT4 in settings.values():
        # An engine that never starts is none to converge to, and a whole environment takes long.
        settings = {"kimi_concurrency": settings["kimi_concurrency"]}
    again = changed(shaken.host, tmp_path, settings if onward else shaken.settings)
    said = [row for row in again.stderr.splitlines() if "warning" in row]
    record_property("the next run said", said)
    assert again.returncode == 0, again.stdout + again.stderr
    if onward:
        shaken.settings = settings
    assert not shaken.inside.phase
    assert shaken.inside.entry()["result"] is not None
    assert shaken.serving() == shaken.settings["kimi_concurrency"]
    assert shaken.answers()


@pytest.mark.parametrize("point", ["starting", "verifying", "going back"])
def test_a_switch_whose_own_process_is_killed_goes_back(
    shaken: Shaken,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
    point: str,
) -> None:
    settings = wanted(shaken, point)
    before = shaken.inside.text(paths.PLAN)
    with streaming(shaken.host, record_property, tokens=400):
        with applying(shaken.host, tmp_path, settings) as run:
            run.reaches(lambda: POINTS[point](shaken, before), point)
            shaken.host.ssh("systemctl kill --signal=SIGKILL kimi-switch")
            assert run.ended() == 1, run.said
        assert until(shaken.answers, HANGS_S), run.said
    record_property("the run said", run.said[-1000:])
    assert shaken.inside.entry()["result"] == "returned"
    assert not shaken.inside.phase
    assert shaken.serving() == shaken.settings["kimi_concurrency"]
    assert "changed=0" in changed(shaken.host, tmp_path, shaken.settings).stdout
