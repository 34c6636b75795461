"""An apply whose new engine does not start: the machine goes back by itself.

With a client that streams all the while. Other verdicts and harms are in test_upgrade_verdicts.py,
test_upgrade_harms.py, test_upgrade_formats.py and test_upgrade_room.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from upgrades import NO_START, changed, chats, history, streaming

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from machines import Host

pytestmark = pytest.mark.lab


def test_an_engine_that_does_not_start_is_gone_back_from(
    served_host: Host, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    before = served_host.ssh("cat /etc/kimi/plan.json")
    was = history(served_host)["current"]
    with streaming(served_host, record_property):
        done = changed(served_host, tmp_path, NO_START)
    assert done.returncode == 1, done.stdout + done.stderr
    assert f"went back by itself to entry {was}" in done.stderr
    found = history(served_host)
    last = found["entries"][-1]
    assert (last["result"], last["returned_to"], found["current"]) == ("returned", was, was)
    assert "kimi-serve@0.service failed" in last["why"]
    assert found["switch"] is None
    assert served_host.ssh("cat /etc/kimi/plan.json") == before
    chats(served_host)
    again = served_host.apply()
    assert again.returncode == 0, again.stderr
    assert "changed=0" in again.stdout
