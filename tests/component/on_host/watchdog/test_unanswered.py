"""A machine whose engine answers /health and no chat: its watchdog takes it out at its own proxy.

The real HAProxy at the gateway and at the machines; a stand-in of the engine and of systemctl.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import threading
from typing import TYPE_CHECKING

import pytest
from gateway_site import QUESTION, Site
from waiting import until

from kimi_prov.on_host.endpoint import api_client, draining, haproxy
from kimi_prov.on_host.system.notify import Notifier
from kimi_prov.on_host.watchdog.classify import Limits
from kimi_prov.on_host.watchdog.service import Watchdog

if TYPE_CHECKING:
    from pathlib import Path

    from running_proxy import Proxy

UNIT = "kimi-serve@0.service"
LIMITS = Limits(quiet=0.5, computing=0.5, ask=0.5, every=10)
SYSTEMCTL = """#!/bin/sh
case "$1" in
show) printf 'Id={unit}\\nActiveState=active\\nInvocationID=%s\\nControlGroup=\\nJob=0\\n' \\
  "$(cat {start})" ;;
esac
"""


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Which start of the engine systemd tells of; it restarts nothing."""
    tools, found = tmp_path / "bin", tmp_path / "start"
    tools.mkdir()
    found.write_text("first")
    program = tools / "systemctl"
    program.write_text(SYSTEMCTL.format(unit=UNIT, start=found))
    program.chmod(0o755)
    (tools / "journalctl").write_text("#!/bin/sh\n")
    (tools / "journalctl").chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:/usr/sbin:/usr/bin:/bin")
    return found


def watched(host: Proxy, restarts: int = 0) -> Watchdog:
    """The watchdog of a machine; with no restart it only keeps why."""
    host.paths.state.mkdir(parents=True, exist_ok=True)
    rows = [{"index": n, "port": engine.port} for n, engine in enumerate(host.engines)]
    plan = {"instances": rows, "model": {"served_names": ["tiny"]}}
    host.paths.plan.write_text(json.dumps(plan))
    return Watchdog(host.paths, LIMITS, restarts)


def looks(watchdog: Watchdog, proxy: Proxy, status: str) -> bool:
    """Whether the proxy has the engine so, after some looks of the watchdog."""

    def seen() -> bool:
        watchdog.turn(Notifier.none())
        return state(proxy) == status

    return until(seen)


def state(proxy: Proxy) -> str:
    (row,) = haproxy.list_servers(proxy.paths.socket)
    return str(row["status"])


def ask_in_vain(site: Site, host: Proxy) -> None:
    """Hold a request at a machine that hangs: somebody waits."""
    host.engines[0].hangs = True

    def ask() -> None:
        with contextlib.suppress(OSError, api_client.ApiError, http.client.HTTPException):
            api_client.request_chat(host.endpoint, host.key(), QUESTION)

    threading.Thread(target=ask, daemon=True).start()
    assert until(lambda: host.engines[0].seen)


def test_a_machine_that_answers_no_chat_is_left_out_and_comes_back(make_proxy, start: Path) -> None:
    site = Site(make_proxy, 2)
    host = site.hosts["gpu1"]
    watchdog = watched(host)
    ask_in_vain(site, host)
    assert looks(watchdog, host, "MAINT")
    assert until(lambda: site.up() == ["gpu2"])
    assert api_client.call(host.endpoint, "GET", "/health", None).status == 503
    assert [site.ask(f"n{n}").status for n in range(4)] == [200] * 4
    # It goes on by itself: asked again, it answers.
    host.engines[0].hangs = False
    assert looks(watchdog, host, "UP")
    assert until(lambda: sorted(site.up()) == ["gpu1", "gpu2"])


def test_a_restarted_engine_is_sent_to_again_whoever_works_there(make_proxy, start: Path) -> None:
    site = Site(make_proxy, 1)
    host = site.hosts["gpu1"]
    watchdog = watched(host)
    ask_in_vain(site, host)
    assert looks(watchdog, host, "MAINT")
    # Nobody waits any more: that says nothing of an engine that is sent nobody.
    for _ in range(3):
        watchdog.turn(Notifier.none())
    assert state(host) == "MAINT"
    host.paths.stopped.parent.mkdir(parents=True, exist_ok=True)
    host.paths.stopped.write_text("{}")
    start.write_text("second")
    assert looks(watchdog, host, "UP")


def test_a_proxy_that_forgot_is_told_again_and_an_ended_watchdog_gives_back(
    make_proxy, start: Path
) -> None:
    site = Site(make_proxy, 1)
    host = site.hosts["gpu1"]
    watchdog = watched(host)
    ask_in_vain(site, host)
    assert looks(watchdog, host, "MAINT")
    draining.set_state(host.paths, draining.READY)
    assert looks(watchdog, host, "MAINT")
    # One that was started anew knows of it.
    assert looks(watched(host), host, "MAINT")
    watchdog.give_back()
    assert until(lambda: state(host) == "UP")


def test_what_an_operator_drained_stays_drained(make_proxy, start: Path) -> None:
    site = Site(make_proxy, 1)
    host = site.hosts["gpu1"]
    draining.set_state(host.paths, draining.DRAIN)
    watchdog = watched(host)
    host.engines[0].hangs = True
    for _ in range(3):
        watchdog.turn(Notifier.none())
    assert state(host) == "DRAIN"
