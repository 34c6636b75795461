"""What an upgrade ends with: wrong and slow ones are gone back from, good ones stay.

The seconds without service are printed at the end.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from machines import kimi_prov
from upgrades import DEEP, NO_START, WRONG, Shaken, changed, history, streaming

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.lab, pytest.mark.slow]

# The real engine, of a model with ten times as many layers. Its random weights think without end,
# so that reasoning is not asked for.
SLOW = {
    "kimi_model": DEEP,
    "kimi_weights_source": f"file:///opt/models/{DEEP}",
    "kimi_engine_args": {"reasoning-parser": None},
}


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({**NO_START}, "kimi-serve@0.service failed"),
        ({**WRONG}, "it did not pass verify"),
        ({**SLOW, "kimi_upgrade_min_speed": 0.5}, "kimi_upgrade_min_speed is 0.5"),
    ],
    ids=["does not start", "answers wrongly", "is slow"],
)
def test_one_that_is_worse_is_gone_back_from(
    shaken: Shaken,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
    settings: dict[str, Any],
    why: str,
) -> None:
    before = shaken.host.ssh("cat /etc/kimi/plan.json")
    was = history(shaken.host)["current"]
    with streaming(shaken.host, record_property):
        done = changed(shaken.host, tmp_path, settings)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"went back by itself to entry {was}" in done.stderr
    found = history(shaken.host)
    last = found["entries"][-1]
    record_property("why", last["why"])
    assert (last["result"], last["returned_to"], found["current"]) == ("returned", was, was)
    assert why in last["why"]
    assert found["switch"] is None
    assert shaken.host.ssh("cat /etc/kimi/plan.json") == before
    assert shaken.answers()
    verified = kimi_prov("verify", shaken.host.inventory, "--limit", shaken.host.name)
    assert verified.returncode == 0, verified.stdout + verified.stderr


def test_one_that_is_slow_stays_where_no_least_speed_is_asked(
    shaken: Shaken, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    with streaming(shaken.host, record_property):
        done = changed(shaken.host, tmp_path, SLOW)
    assert done.returncode == 0, done.stdout + done.stderr
    last = history(shaken.host)["entries"][-1]
    assert last["result"] == "done"
    record_property("tokens a second", (last["speed_before"], last["speed"]))
    assert last["speed"]["decode_tok_s"] < 0.5 * last["speed_before"]["decode_tok_s"]


@pytest.mark.parametrize(
    "settings",
    [{"kimi_concurrency": 3}, {"kimi_context": 2048}],
    ids=["a flag", "the context"],
)
def test_one_that_is_good_stays_and_is_rolled_back_by_hand(
    shaken: Shaken,
    tmp_path: Path,
    record_property: Callable[[str, object], None],
    settings: dict[str, Any],
) -> None:
    settled = changed(shaken.host, tmp_path, {})
    assert settled.returncode == 0, settled.stdout + settled.stderr
    was = history(shaken.host)["current"]
    with streaming(shaken.host, record_property):
        done = changed(shaken.host, tmp_path, settings)
    assert done.returncode == 0, done.stdout + done.stderr
    found = history(shaken.host)
    last = found["entries"][-1]
    assert (last["result"], last["number"]) == ("done", found["current"])
    assert last["by"]["user"]
    record_property("tokens a second", (last["speed_before"], last["speed"]))
    record_property("the machine's own seconds", last["seconds_without_service"])
    assert last["seconds_without_service"] > 0

    with streaming(shaken.host, record_property):
        back = kimi_prov("rollback", shaken.host.inventory, "--limit", shaken.host.name)
    assert back.returncode == 0, back.stdout + back.stderr
    last = history(shaken.host)["entries"][-1]
    assert (last["kind"], last["restores"], last["result"]) == ("rollback", was, "done")
    # The inventory says what was there at first: nothing is left to do.
    assert "changed=0" in changed(shaken.host, tmp_path, {}).stdout
