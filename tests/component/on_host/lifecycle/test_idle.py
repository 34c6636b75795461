"""When a machine rests because nobody asks: counted at the real proxy, by a clock of the test's."""

from __future__ import annotations

import os
import threading
import time

import pytest
from waiting import HANGS_S, until

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.endpoint import api_client, draining, stop_state
from kimi_prov.on_host.lifecycle import idle

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}
CLIENT = "sk-kimi-" + "c" * 43
AFTER_S = 1800
PLAN = {
    "instances": [{"index": 0}],
    "model": {"name": "m"},
    "rest": {"memory": "free", "wake": "refuse", "idle": {"after_s": AFTER_S, "action": "stop"}},
}


class Machine:
    def __init__(self, proxy, clock) -> None:
        self.proxy, self.clock = proxy, clock

    def after(self, seconds: float):
        """Look again so many seconds later."""
        self.clock[0] += seconds
        found, news = idle.update_idle_time(self.proxy.paths, PLAN)
        return found["asleep_in_s"], news, found["why_not"]

    def ask(self, key: str = CLIENT) -> int:
        return api_client.request_chat(self.proxy.endpoint, key, BODY).status


@pytest.fixture
def machine(make_proxy, tmp_path, monkeypatch):
    """A machine whose engine serves; `work` is a file that names a unit at work."""
    stub = tmp_path / "bin" / "systemctl"
    stub.parent.mkdir()
    stub.write_text(
        "#!/bin/sh\nfor last; do case $last in\n"
        "kimi-serve*) printf 'Id=%s\\nActiveState=active\\n\\n' $last;;\n"
        f"*.service) state=inactive; grep -qs $last {tmp_path}/work && state=activating\n"
        "printf 'Id=%s\\nActiveState=%s\\n\\n' $last $state;; esac; done\n"
    )
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stub.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(idle.apply_lock, "find_holder", lambda: None)
    clock = [10_000.0]
    monkeypatch.setattr(idle.time, "monotonic", lambda: clock[0])
    proxy = make_proxy(given={"client": CLIENT}, wake="refuse")
    proxy.paths.idle.parent.mkdir(parents=True, exist_ok=True)
    return Machine(proxy, clock)


def test_it_rests_when_nobody_has_asked_for_long_enough_and_says_so_before(machine):
    assert machine.after(0) == (AFTER_S, "", None)
    assert machine.after(30) == (AFTER_S - 30, "", None)
    assert machine.after(900) == (870, "nobody asks: asleep in 14 min", None)
    assert machine.after(600) == (270, "nobody asks: asleep in 4 min", None)
    assert machine.after(30) == (240, "", None)
    assert machine.after(240)[0] == 0


def test_each_request_of_a_client_begins_the_time_anew(machine):
    machine.after(0)
    assert machine.after(1700)[0] == 100
    assert machine.ask() == 200
    assert machine.after(90)[0] == AFTER_S
    # A refused caller, a health check and verify are no use.
    assert machine.ask("sk-kimi-" + "x" * 43) == 401
    api_client.call(machine.proxy.endpoint, "GET", "/health", None)
    assert machine.ask(machine.proxy.key()) == 200
    assert machine.after(100)[0] == AFTER_S - 100


def test_a_stream_is_use_for_as_long_as_it_lasts(machine):
    machine.after(0)
    machine.proxy.engines[0].hold_streams()
    asked = {**BODY, "stream": True}
    client = threading.Thread(
        target=lambda: list(api_client.stream(machine.proxy.endpoint, CLIENT, asked)), daemon=True
    )
    client.start()
    assert until(lambda: draining.count_requests(machine.proxy.paths) == 1)
    machine.after(30)
    # Nobody asked anything new: the answer goes on.
    assert machine.after(AFTER_S)[0] > 0
    machine.proxy.engines[0].let(6)
    client.join(HANGS_S)
    assert until(lambda: draining.count_requests(machine.proxy.paths) == 0)
    assert machine.after(30)[0] == AFTER_S


def test_a_clock_that_is_set_does_nothing(machine, monkeypatch):
    machine.after(0)
    real = time.time
    monkeypatch.setattr(idle.time, "time", lambda: real() + 40 * 86_400)
    assert machine.after(60)[0] == AFTER_S - 60
    monkeypatch.setattr(idle.time, "time", lambda: real() - 40 * 86_400)
    assert machine.after(60)[0] == AFTER_S - 120


def test_what_another_boot_counted_does_not_count(machine):
    machine.after(0)
    machine.after(1000)
    machine.clock[0] = 5.0
    assert machine.after(0)[0] == AFTER_S


@pytest.mark.parametrize("unit", ["kimi-switch.service", "kimi-bench.service", "kimi-rest.service"])
def test_it_never_rests_while_something_is_at_work(machine, tmp_path, unit):
    machine.after(0)
    (tmp_path / "work").write_text(unit)
    assert machine.after(2 * AFTER_S) == (None, f"{unit} is at work", f"{unit} is at work")
    (tmp_path / "work").unlink()
    assert machine.after(10)[0] == AFTER_S


def test_it_never_rests_while_an_apply_or_a_verify_is_under_way(machine, monkeypatch):
    machine.after(0)
    machine.ask(machine.proxy.key())
    machine.after(AFTER_S - 10)
    machine.ask(machine.proxy.key())
    assert machine.after(20)[2] == "verify is asking"
    assert machine.after(130)[0] == 0
    # One answer may take long.
    machine.proxy.engines[0].hangs = True
    asking = threading.Thread(target=machine.ask, args=(machine.proxy.key(),), daemon=True)
    asking.start()
    assert until(lambda: draining.count_requests(machine.proxy.paths) == 1)
    assert machine.after(10)[2] == "verify is asking"
    assert machine.after(1000)[2] == "verify is asking"
    machine.proxy.engines[0].hangs = False
    asking.join(HANGS_S)
    assert until(lambda: draining.count_requests(machine.proxy.paths) == 0)
    monkeypatch.setattr(idle.apply_lock, "find_holder", lambda: {"run": "r"})
    assert machine.after(1)[2] == "an apply is under way"
    monkeypatch.setattr(idle.apply_lock, "find_holder", lambda: None)
    assert machine.after(1)[0] == AFTER_S


def test_what_fails_is_told_and_tried_again_within_bounds(machine):
    machine.after(0)
    for _ in range(3):
        assert machine.after(AFTER_S)[0] == 0
        idle.record_failure(machine.proxy.paths, PLAN, "it said no")
        if machine.after(10)[2] is None:
            assert machine.after(0)[0] > 0
    left, _, why = machine.after(AFTER_S)
    assert (left, why) == (None, "stop failed 3 times: it said no")
    assert machine.ask() == 200
    assert machine.after(10)[0] == AFTER_S


def test_what_rests_already_is_left_alone(machine):
    stop_state.write(
        machine.proxy.paths, stop_state.build_state(stop_state.STOPPED, "by the operator")
    )
    assert machine.after(AFTER_S)[2] == "it is already asleep or stopped"


def test_the_hook_is_told_what_happens_and_its_failure_is_told(tmp_path):
    program = tmp_path / "hook"
    program.write_text(f"#!/bin/sh\ncat > {tmp_path}/asked\n")
    program.chmod(0o755)
    idle.run_hook(PLAN, str(program), lambda _: None)
    asked = (tmp_path / "asked").read_text()
    assert '"event": "idle"' in asked
    assert f'"idle_seconds": {AFTER_S}' in asked
    program.write_text("#!/bin/sh\necho the cloud said no\nexit 7\n")
    with pytest.raises(HostError, match="ended with 7: the cloud said no"):
        idle.run_hook(PLAN, str(program), lambda _: None)
    with pytest.raises(HostError, match="No such file"):
        idle.run_hook(PLAN, str(tmp_path / "gone"), lambda _: None)
