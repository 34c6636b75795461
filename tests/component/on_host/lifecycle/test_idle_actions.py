"""What a machine does when nobody asks: by the real proxy and the operator's real programs.

systemctl is a stand-in that writes down what it is told.
"""

from __future__ import annotations

import json
import os
import subprocess
import threading
import time

import bucket_servers
import pytest
import small_disk
from waiting import HANGS_S, until

from kimi_prov.contract.addresses import find_sessions_folder
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.endpoint import api_client, draining, haproxy, stop_log, stop_state
from kimi_prov.on_host.lifecycle import idle, run, status
from kimi_prov.on_host.system import boot, files

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "Hello"}]}
CLIENT = "sk-kimi-" + "c" * 43
AFTER_S = 1800
SYSTEMCTL = """#!/bin/sh
if [ "$1" = show ]; then
  for last; do case $last in
  kimi-serve*) printf 'Id=%s\\nLoadState=loaded\\nActiveState=active\\n\\n' $last;;
  *.service) printf 'Id=%s\\nActiveState=inactive\\n\\n' $last;;
  esac; done
else
  echo "$@" >> {root}/told
  [ "$1" != poweroff ] || [ ! -e {root}/stubborn ] || {{ echo "access denied" >&2; exit 1; }}
fi
"""


class Machine:
    """A served machine that nobody has asked for long enough, unless a test asks."""

    def __init__(self, proxy, root, clock) -> None:
        self.proxy, self.root, self.paths, self.clock = proxy, root, proxy.paths, clock
        self.plan = {
            "engine": {"env_name": "vllm-1"},
            "model": {"name": "m", "serve_dir": str(root)},
            "instances": [{"index": 0, "port": proxy.engines[0].port}],
        }

    def wishes(self, action, program=None):
        chosen = {"after_s": AFTER_S, "action": action, "hook": program and str(program)}
        self.plan["rest"] = {"memory": "free", "wake": "refuse", "idle": chosen}

    @property
    def told(self):
        log = self.root / "told"
        return log.read_text().splitlines() if log.exists() else []

    def looks(self):
        found, _ = idle.update_idle_time(self.paths, self.plan)
        return found

    def rests(self, tell=lambda _: None):
        """Rest as kimi-rest.service does, by what kimi-idle.service saw last."""
        seen = files.read_json(self.paths.idle)
        job = {"job": run.SLEEP, "used": seen["used"], "drain_s": HANGS_S}
        return run._run_sleep(self.paths, self.plan, job, tell)

    def keeps_in(self, source, bucket):
        """Have a price, and weights of a bucket."""
        paid = {"usd_hour": 26.0, "budget_usd": None, "kept_in": find_sessions_folder(source)}
        self.plan["rest"]["paid"] = paid
        self.plan["weights"] = {"source": source, "bucket": bucket, "ca_bundle": None}

    def after(self, seconds):
        self.clock[0] += seconds

    def program(self, text):
        path = self.root / "hook"
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
        return path

    def chat(self):
        return api_client.request_chat(self.proxy.endpoint, CLIENT, BODY)


@pytest.fixture
def machine(make_proxy, tmp_path, monkeypatch):
    stub = tmp_path / "bin" / "systemctl"
    stub.parent.mkdir()
    stub.write_text(SYSTEMCTL.format(root=tmp_path))
    stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{stub.parent}:{os.environ['PATH']}")
    monkeypatch.setattr(run.apply_lock, "find_holder", lambda: None)
    clock = [0.0]
    real = time.monotonic
    monkeypatch.setattr(idle.time, "monotonic", lambda: real() + clock[0])
    proxy = make_proxy(given={"client": CLIENT}, wake="refuse")
    proxy.paths.idle.parent.mkdir(parents=True, exist_ok=True)
    assert until(lambda: draining.is_up(proxy.paths))
    return Machine(proxy, tmp_path, clock)


def test_a_machine_is_switched_off_after_its_answers(machine):
    machine.wishes("poweroff")
    machine.looks()
    machine.proxy.engines[0].hold_streams()
    pieces = []
    client = threading.Thread(
        target=lambda: pieces.extend(
            api_client.stream(machine.proxy.endpoint, CLIENT, {**BODY, "stream": True})
        ),
        daemon=True,
    )
    client.start()
    assert until(lambda: draining.count_requests(machine.paths) == 1)
    machine.looks()
    ended = []
    job = {
        "job": run.SLEEP,
        "used": haproxy.read_variable(machine.paths.socket, idle.USED),
        "drain_s": HANGS_S,
    }
    rest = threading.Thread(
        target=lambda: ended.append(
            run._run_sleep(machine.paths, machine.plan, job, lambda _: None)
        ),
        daemon=True,
    )
    rest.start()
    assert until(lambda: not draining.is_up(machine.paths))
    assert "poweroff" not in machine.told
    machine.proxy.engines[0].let(6)
    client.join(HANGS_S)
    rest.join(HANGS_S)
    assert pieces[-1][1] is None
    assert ended == ["switching the machine off: nobody asked"]
    assert machine.told == ["poweroff"]
    # It serves again after its next boot, and what it was off until then is kept.
    assert stop_state.read(machine.paths) == {}
    off = stop_log.read(machine.paths)
    stop_log.record_power_on(machine.paths)
    assert stop_log.read(machine.paths) == off
    before = {**off["off"], "boot": "another", "since_s": boot.find_boot_time() - 2 * 3600}
    machine.paths.rests.write_text(json.dumps({**off, "off": before}))
    for _ in range(2):
        stop_log.record_power_on(machine.paths)
        found = stop_log.read(machine.paths)
        assert (found["times"], round(found["seconds"] / 3600), found["off"]) == (1, 2, None)
    assert found["rests"][0]["state"] == "off"


def test_a_machine_that_cannot_be_switched_off_serves_on_and_tells(machine):
    machine.wishes("poweroff")
    (machine.root / "stubborn").touch()
    machine.looks()
    machine.after(AFTER_S)
    assert machine.looks()["asleep_in_s"] == 0
    with pytest.raises(HostError, match="access denied"):
        machine.rests()
    assert until(lambda: machine.chat().status == 200)
    assert stop_log.read(machine.paths)["off"] is None
    assert (
        "access denied" in status.build_document(machine.paths, machine.plan, {})["idle"]["failed"]
    )


@small_disk.NEEDS_ROOT
def test_a_machine_is_switched_off_on_a_full_disk(machine):
    machine.wishes("poweroff")
    machine.looks()
    machine.after(AFTER_S)
    machine.looks()
    with small_disk.full(machine.paths.state):
        assert machine.rests() == "switching the machine off: nobody asked"
    assert machine.told == ["poweroff"]


@small_disk.NEEDS_ROOT
def test_one_that_cannot_be_switched_off_serves_on_with_a_full_disk(machine):
    machine.wishes("poweroff")
    (machine.root / "stubborn").touch()
    machine.looks()
    machine.after(AFTER_S)
    machine.looks()
    with small_disk.full(machine.paths.state):
        with pytest.raises(HostError, match="access denied"):
            machine.rests()
        assert until(lambda: machine.chat().status == 200)


@small_disk.NEEDS_ROOT
@pytest.mark.parametrize("full", ["state", "rest_map"])
@pytest.mark.parametrize("action", ["stop", "hook"])
def test_a_machine_that_cannot_be_marked_as_asleep_serves_on_and_tells(machine, action, full):
    ran = machine.root / "ran"
    machine.wishes(action, machine.program(f"touch {ran}"))
    machine.looks()
    machine.after(AFTER_S)
    machine.looks()
    folder = machine.paths.state if full == "state" else machine.paths.rest_map.parent
    with small_disk.full(folder):
        with pytest.raises(HostError, match="No space left on device"):
            machine.rests()
        assert until(lambda: machine.chat().status == 200)
    assert stop_state.read(machine.paths) == {}
    # A hook ends what the machine costs, and needs no mark for that.
    assert ran.exists() == (action == "hook")
    found = status.build_document(machine.paths, machine.plan, {})["idle"]
    assert "No space left on device" in found["failed"]


@small_disk.NEEDS_ROOT
def test_one_that_is_asleep_is_woken_though_the_disk_is_full(machine):
    machine.wishes("stop")
    machine.looks()
    machine.after(AFTER_S)
    machine.looks()
    machine.rests()
    assert machine.chat().status == 503
    with small_disk.full(machine.paths.state), small_disk.full(machine.paths.rest_map.parent):
        stop_state.clear(machine.paths)
        assert stop_state.read(machine.paths) == {}
        assert until(lambda: machine.chat().status == 200)
        # A proxy that starts now reads the same.
        assert machine.paths.rest_map.read_text() == ""


def test_a_hook_that_releases_the_machine_is_told_what_and_then_it_sleeps(machine):
    asked = machine.root / "asked"
    machine.wishes("hook", machine.program(f"cat > {asked}; echo released"))
    machine.looks()
    machine.after(AFTER_S)
    machine.looks()
    assert machine.rests().endswith("no request was cut")
    found = json.loads(asked.read_text())
    assert (found["schema"], found["event"], found["model"]) == (idle.HOOK_SCHEMA, "idle", "m")
    assert found["idle_seconds"] == AFTER_S
    assert stop_state.read(machine.paths)["state"] == stop_state.ASLEEP
    assert "stop kimi-serve@0.service" in machine.told


def test_a_hook_that_fails_is_tried_three_times_while_the_machine_serves(machine):
    tries = machine.root / "tries"
    machine.wishes("hook", machine.program(f"echo >> {tries}; echo the cloud said no; exit 7"))
    machine.looks()
    machine.after(AFTER_S)
    for count in range(1, 4):
        assert machine.looks()["asleep_in_s"] == 0
        with pytest.raises(HostError, match="ended with 7: the cloud said no"):
            machine.rests()
        assert len(tries.read_text().splitlines()) == count
        assert stop_log.read(machine.paths)["times"] == 0
        assert stop_state.read(machine.paths) == {}
        assert not [line for line in machine.told if line.startswith("stop")]
        told = status.build_document(machine.paths, machine.plan, {})["idle"]
        assert "the cloud said no" in told["failed"]
        # Not at once, and not for ever: after the pause, three times in all.
        found = machine.looks()
        if count < 3:
            assert 0 < found["asleep_in_s"] <= idle._BETWEEN_TRIES_S
        machine.after(idle._BETWEEN_TRIES_S + 1)
    assert machine.looks()["why_not"].startswith("hook failed 3 times: ")
    assert machine.chat().status == 200
    # Somebody has asked: it begins anew.
    found = machine.looks()
    assert (found["asleep_in_s"], found["why_not"]) == (AFTER_S, None)
    assert status.build_document(machine.paths, machine.plan, {})["idle"]["failed"] is None


@pytest.mark.parametrize(
    ("text", "said"),
    [("sleep 1000 & sleep 1000", "timed out"), (None, "No such file"), ("exit 3", "said nothing")],
)
def test_a_hook_that_hangs_or_is_not_there_is_a_failure(machine, monkeypatch, text, said):
    monkeypatch.setattr(idle, "_HOOK_LIMIT_S", 0.5)
    program = machine.program(text) if text else machine.root / "gone"
    machine.wishes("hook", program)
    machine.looks()
    machine.after(AFTER_S)
    machine.looks()
    with pytest.raises(HostError, match=said):
        machine.rests()
    assert until(lambda: machine.chat().status == 200)


def test_what_a_hook_leaves_running_is_not_waited_for(machine):
    left = machine.root / "left"
    machine.wishes("hook", machine.program(f"sleep 600 & echo $! > {left}"))
    machine.looks()
    machine.after(AFTER_S)
    machine.looks()
    machine.rests()
    assert stop_state.read(machine.paths)["state"] == stop_state.ASLEEP
    os.kill(int(left.read_text()), 9)


@pytest.mark.parametrize("action", ["stop", "poweroff", "hook"])
def test_who_asks_at_the_last_moment_keeps_it_awake(machine, action):
    machine.wishes(action, machine.program(f"touch {machine.root}/ran"))
    machine.looks()
    machine.after(AFTER_S)
    assert machine.looks()["asleep_in_s"] == 0
    assert machine.chat().status == 200
    assert machine.rests() == "staying awake: a request came at the last moment"
    assert machine.told == []
    assert not (machine.root / "ran").exists()
    assert machine.chat().status == 200


def test_a_budget_that_is_used_up_ends_the_session_though_somebody_asks(machine):
    """The timer's look begins the rest; the request that comes meanwhile does not hold it up."""
    machine.wishes("hook", machine.program("cat >/dev/null"))
    # The first look counts what this computer was up, which may be more than any budget.
    machine.plan["rest"]["paid"] = {"usd_hour": 26.0, "budget_usd": None}
    machine.paths.plan.parent.mkdir(parents=True, exist_ok=True)
    machine.paths.plan.write_text(json.dumps(machine.plan))
    begun = machine.root / "begun"
    systemd_run = machine.root / "bin" / "systemd-run"
    systemd_run.write_text(f'#!/bin/sh\necho "$@" >>{begun}\n')
    systemd_run.chmod(0o755)
    run.check_idle(machine.paths)
    machine.plan["rest"]["paid"]["budget_usd"] = 60.0
    machine.paths.plan.write_text(json.dumps(machine.plan))
    ledger = files.read_json(machine.paths.sessions)
    spent = {"starting": 600.0, "serving": 3600.0 * 3, "idle": 0.0}
    files.write_json(
        str(machine.paths.sessions), {**ledger, "session": {**ledger["session"], "seconds": spent}}
    )
    machine.chat()
    assert "of a budget of $60.00: stopping" in run.check_idle(machine.paths)
    assert "rest run" in begun.read_text()
    # Looked at again while that one begins, nothing more is begun.
    run.check_idle(machine.paths)
    assert len(begun.read_text().splitlines()) == 1
    machine.chat()
    job = files.read_json(machine.paths.rest_job)
    ended = run._run_sleep(machine.paths, machine.plan, job, lambda _: None)
    assert "this session cost $82.3" in ended
    found = stop_state.read(machine.paths)
    assert (found["state"], found["wake"]) == (stop_state.ASLEEP, "off")
    assert "the budget of this session is used up" in found["why"]


@small_disk.NEEDS_ROOT
def test_a_budget_ends_the_session_on_a_full_disk_too(machine):
    machine.wishes("hook", machine.program("cat >/dev/null"))
    machine.plan["rest"]["paid"] = {"usd_hour": 26.0, "budget_usd": None}
    machine.paths.plan.parent.mkdir(parents=True, exist_ok=True)
    machine.paths.plan.write_text(json.dumps(machine.plan))
    (machine.root / "bin" / "systemd-run").write_text("#!/bin/sh\n")
    (machine.root / "bin" / "systemd-run").chmod(0o755)
    run.check_idle(machine.paths)
    begun = files.read_json(machine.paths.sessions)
    off = stop_state.build_state(stop_state.OFF, "nobody asked")
    files.write_json(str(machine.paths.rests), {"off": {**off, "boot": "another"}})

    def budget(share):
        """Give the session a budget of which it has used so much."""
        spent = sum(begun["session"]["seconds"].values()) / 3600 * 26.0
        machine.plan["rest"]["paid"]["budget_usd"] = spent / share
        machine.paths.plan.write_text(json.dumps(machine.plan))

    with small_disk.full(machine.paths.state):
        budget(0.9)
        told = [run.check_idle(machine.paths) for _ in range(3)]
        assert "of a budget of" in told[0]
        assert "the cost of this session is not stored: No space left on device" in told[0]
        assert told[1:] == ["", ""]
        budget(1.1)
        assert run.check_idle(machine.paths).endswith("stopping")
    # There is room again: the sum is kept, and nothing is told twice.
    machine.plan["rest"]["paid"]["budget_usd"] = None
    machine.paths.plan.write_text(json.dumps(machine.plan))
    assert run.check_idle(machine.paths) == ""
    kept = files.read_json(machine.paths.sessions)["session"]
    assert kept["looked_boot_s"] > begun["session"]["looked_boot_s"]


@pytest.mark.skipif(bucket_servers.missing() is not None, reason=str(bucket_servers.missing()))
def test_the_history_has_the_session_before_the_hook_deletes_the_machine(machine, s3):
    bucket = s3.bucket("kimi-sessions")
    before = set(bucket.objects())
    machine.wishes("hook", machine.program("cat >/dev/null"))
    machine.keeps_in(s3.url("kimi"), s3.settings())
    machine.looks()
    machine.after(AFTER_S)
    machine.looks()
    told = []
    machine.rests(told.append)
    kept = next(n for n, line in enumerate(told) if "session is stored: s3://weights/" in line)
    assert kept < told.index(f"running {machine.root}/hook")
    (name,) = set(bucket.objects()) - before
    assert json.loads(bucket.read(name, 1 << 20))["end"] == "nobody asked"
    subprocess.run(bucket.command("purge", bucket.locate("")), env=bucket.environment(), check=True)


@pytest.mark.parametrize("action", ["hook", "poweroff"])
def test_a_history_that_cannot_be_kept_holds_no_end_up(machine, action):
    machine.wishes(action, machine.program("cat >/dev/null"))
    machine.keeps_in("s3://weights/kimi", {"endpoint": "http://127.0.0.1:9"})
    machine.looks()
    machine.after(AFTER_S)
    machine.looks()
    told = []
    machine.rests(told.append)
    assert any("is not stored: s3://weights/kimi-sessions: " in line for line in told)
    done = "poweroff" if action == "poweroff" else "stop kimi-serve@0.service"
    assert done in machine.told
