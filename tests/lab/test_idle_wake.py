"""A served host that rests when nobody asks and wakes when somebody does: real engine and clients.

The tests run in their order: each leaves the machine serving, or asleep where the next one begins
with that. The engine is a tiny one: the seconds that are told are those of its own start, most of
them Python's imports, and what the memory holds of the weights saves nothing that can be seen.
"""

from __future__ import annotations

import json
import ssl
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import closed_form
import httpx2
import openai
import pytest
from machines import HANGS_S, kimi_prov
from upgrades import settings_file
from waiting import until

from kimi_prov.contract import paths
from kimi_prov.lab import operations as lab_command
from kimi_prov.on_host.endpoint import api_client, tls

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from machines import Host

    Record = Callable[[str, object], None]

pytestmark = [pytest.mark.lab, pytest.mark.slow]

AFTER_S = 45
UNIT = "kimi-serve@0.service"
OWN = f"/etc/systemd/system/{UNIT}.d/99-broken.conf"
CLOCK = "/etc/systemd/system/kimi-idle.service.d/99-clock.conf"
QUESTION: dict[str, Any] = {
    "model": "kimi-k2-lab",
    "messages": [{"role": "user", "content": "Count."}],
}
LONG: dict[str, Any] = {**QUESTION, "max_tokens": 2000, "min_tokens": 2000, "ignore_eos": True}
SHORT: dict[str, Any] = {**QUESTION, "max_tokens": 2}
NOBODY = "sk-kimi-" + "x" * 43
MANY = 20


class Machine:
    """The served host, its door, and one client's key."""

    def __init__(self, host: Host, folder: Path) -> None:
        self.host, self.folder = host, folder
        # Twice the same: after a run that was cut.
        self.command("key", "--remove", "sleeper")
        self.key = self.command("key", "--add", "sleeper").stdout.split()[-1]
        self.certificate = host.ssh("cat /etc/kimi/proxy/tls.crt")
        self.own_key = host.door()[0]

    @property
    def endpoint(self) -> api_client.Endpoint:
        return api_client.Endpoint(
            self.host.address, 8000, tls.compute_fingerprint(self.certificate), HANGS_S
        )

    def command(self, name: str, *more: str) -> subprocess.CompletedProcess[str]:
        return kimi_prov(name, self.host.inventory, "--limit", self.host.name, *more)

    def applies(self, **settings: object) -> subprocess.CompletedProcess[str]:
        """Apply with these settings beside those that the tests share."""
        wished = {"kimi_idle_stop": f"{AFTER_S}s", **settings}
        done = self.host.apply("-e", settings_file(self.folder, wished))
        assert done.returncode == 0, done.stdout + done.stderr
        return done

    def status(self) -> dict[str, Any]:
        done = self.command("status", "--format", "json")
        assert done.returncode == 0, done.stdout + done.stderr
        document = json.loads(done.stdout)
        closed_form.validate(document, "status")
        found: dict[str, Any] = document["hosts"][self.host.name]
        return found

    def chat(self, key: str | None = None, patience_s: float = HANGS_S) -> api_client.Reply:
        endpoint = replace(self.endpoint, timeout_s=patience_s)
        return api_client.request_chat(endpoint, key or self.key, SHORT)

    def stream(self, body: dict[str, Any]) -> list[Any]:
        return list(api_client.stream(self.endpoint, self.key, body))

    def read(self, path: str) -> dict[str, Any]:
        return dict(json.loads(self.host.ssh(f"cat {path} 2>/dev/null || echo '{{}}'")))

    def unit(self, name: str) -> str:
        return self.host.ssh(f"systemctl show -P ActiveState {name}").strip()

    def journal(self, unit: str) -> str:
        return self.host.ssh(f"journalctl -b -u {unit} -o cat --no-pager")

    @property
    def starts(self) -> int:
        """How often the engine was started in this boot."""
        return self.journal(UNIT).count(f"Starting {UNIT}")

    def falls_asleep(self) -> None:
        def rests() -> bool:
            mark = self.read(paths.STOPPED)
            # The number of requests that were cut comes at the end.
            return mark.get("state") == "asleep" and "cut" in mark

        assert until(rests, HANGS_S), self.journal("kimi-idle.service")
        assert self.unit(UNIT) == "inactive"

    def woken(self) -> dict[str, Any]:
        """What is kept of the start that somebody's request was."""
        assert until(lambda: not self.read(paths.STOPPED), HANGS_S)
        row: dict[str, Any] = self.read(paths.STARTS)["starts"][-1]
        assert row["by"] == "wake"
        return row

    @contextmanager
    def asked_by(self, ask: Callable[[], object], every_s: float = 2.0) -> Iterator[list[object]]:
        """Somebody asks again and again, whatever comes; gives what came."""
        over, came = threading.Event(), []

        def go_on() -> None:
            while not over.is_set():
                try:
                    came.append(ask())
                except api_client.ApiError as error:
                    came.append(error)
                over.wait(every_s)

        thread = threading.Thread(target=go_on, daemon=True)
        thread.start()
        try:
            yield came
        finally:
            over.set()
            thread.join(HANGS_S)


@pytest.fixture(scope="module")
def machine(served_host: Host, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    """The served host, resting after some seconds; it is left as it was."""
    made = Machine(served_host, tmp_path_factory.mktemp("rest"))
    yield made
    made.command("key", "--remove", "sleeper")
    done = served_host.apply()
    assert done.returncode == 0, done.stdout + done.stderr


def looks_during(machine: Machine, body: dict[str, Any]) -> list[dict[str, Any]]:
    """What kimi-idle found while an answer was streamed, each look once."""
    looks: dict[float, dict[str, Any]] = {}
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(machine.stream, body)
        while not answer.done():
            look = machine.read(paths.IDLE)
            looks[look["looked_s"]] = look
            time.sleep(1)
        assert answer.result()[-1][1] is None
    return [looks[at] for at in sorted(looks)]


def test_what_is_use_keeps_it_awake_and_is_counted_anew(machine: Machine) -> None:
    machine.applies(kimi_wake="refuse")

    def idle() -> dict[str, Any]:
        return dict(machine.status()["rest"]["idle"])

    with machine.asked_by(machine.chat):
        # Nobody has looked yet, or while the apply was under way.
        assert until(lambda: idle()["asleep_in_seconds"] is not None, HANGS_S)
        found = idle()
        assert 0 < found["asleep_in_seconds"] <= AFTER_S, found
        assert (found["why_not"], found["failed"]) == (None, None)
        text = machine.command("status").stdout
        assert "asleep in" in text
    # An answer under way is use at each look, however long ago somebody asked. The first look may
    # have come before the request, the last one after the answer.
    seen: list[dict[str, Any]] = []
    while not seen:
        seen = looks_during(machine, LONG)[1:-1]
    assert {look["asleep_in_s"] for look in seen} == {AFTER_S}
    assert not machine.read(paths.STOPPED)


def test_it_rests_although_others_than_clients_ask(machine: Machine) -> None:
    def ask() -> list[int]:
        return [
            machine.chat(NOBODY).status,
            api_client.call(machine.endpoint, "GET", "/health", None).status,
        ]

    began = time.time()
    with machine.asked_by(ask, 1.0) as came:
        machine.falls_asleep()
    assert [401, 200] in came
    said = machine.host.ssh(f"journalctl -u kimi-idle --since @{began:.0f} -o cat --no-pager")
    assert "nobody asks: asleep in" in said
    assert "idle for long enough: going to sleep" in said
    found = machine.status()
    assert (found["ok"], found["state"]) == (True, "asleep")
    assert found["rest"]["requests_cut"] == 0
    assert found["rest"]["start"]["seconds"] > 0
    assert found["rest"]["rested"]["times"] >= 1
    assert found["units"]["kimi-proxy.service"]["state"] == "active"


def test_nobody_without_a_key_wakes_it_and_other_commands_tell_that_it_sleeps(
    machine: Machine,
) -> None:
    before = machine.starts
    assert {machine.chat(NOBODY).status for _ in range(20)} == {401}
    assert api_client.call(machine.endpoint, "GET", "/health", None).status == 503
    own = machine.chat(machine.own_key)
    assert (own.status, own.json()["error"]["code"]) == (503, "model_asleep")
    verified = machine.command("verify")
    assert verified.returncode == 1
    assert "asleep since" in verified.stdout
    assert "kimi-prov start" in verified.stdout
    drift = machine.command("drift")
    assert drift.returncode == 0, drift.stdout
    assert machine.starts == before
    assert machine.read(paths.STOPPED)["state"] == "asleep"


def test_openais_client_waits_by_itself_until_it_serves(
    machine: Machine, record_property: Record
) -> None:
    before = machine.starts
    trust = ssl.create_default_context(cadata=machine.certificate)
    # The certificate has the name by which the machine knows itself; the address is ours.
    trust.check_hostname = False
    asked = time.monotonic()
    with openai.OpenAI(
        base_url=machine.endpoint.url,
        api_key=machine.key,
        http_client=httpx2.Client(verify=trust),
        timeout=HANGS_S,
        max_retries=100,
    ) as client:
        answer = client.chat.completions.create(**SHORT)
    taken = time.monotonic() - asked
    assert answer.choices
    row = machine.woken()
    assert machine.starts == before + 1
    record_property("refuse, first request to answer", f"{taken:.1f} s; weights: {row['held']}")
    found = machine.status()
    assert (found["state"], found["rest"]["last_start"]["by"]) == ("serving", "wake")
    assert found["rest"]["first_answers"][0]["seconds"] == row["first_token_s"]
    text = " ".join(machine.command("status").stdout.split())
    assert "from the first request to an answer" in text


def test_an_apply_to_a_sleeping_machine_starts_it(machine: Machine) -> None:
    machine.falls_asleep()
    machine.applies(kimi_wake="hold")
    assert not machine.read(paths.STOPPED)
    assert machine.chat().status == 200


def test_twenty_wait_and_one_start_answers_them_all(
    machine: Machine, record_property: Record
) -> None:
    machine.falls_asleep()
    before = machine.starts

    def ask(number: int) -> bool:
        if number % 2:
            return bool(machine.chat().status == 200)
        return machine.stream(SHORT)[-1][1] is None

    asked = time.monotonic()
    with ThreadPoolExecutor(MANY) as pool:
        assert all(pool.map(ask, range(MANY)))
    taken = time.monotonic() - asked
    row = machine.woken()
    assert machine.starts == before + 1
    record_property(f"hold, {MANY} answered", f"{taken:.1f} s; weights: {row['held']}")


def test_a_start_that_fails_tells_those_who_wait(machine: Machine) -> None:
    machine.falls_asleep()
    machine.host.ssh(
        f"printf '[Service]\\nExecStartPre=/bin/sh -c \"echo no such luck; exit 7\"\\n' > {OWN}; "
        "systemctl daemon-reload"
    )
    try:
        with ThreadPoolExecutor(4) as pool:
            replies = list(pool.map(lambda _: machine.chat(), range(4)))
        assert {reply.status for reply in replies} == {503}
        assert {reply.json()["error"]["code"] for reply in replies} == {"model_start_failed"}
        again = machine.chat()
        assert again.json()["error"]["code"] == "model_start_failed"
        assert int(again.headers["retry-after"]) >= 1
        found = machine.status()
        assert found["state"] == "asleep"
        assert f"{UNIT} failed" in found["rest"]["failed"]
        assert machine.unit(UNIT) in ("inactive", "failed")
    finally:
        machine.host.ssh(f"rm {OWN}; systemctl daemon-reload; systemctl reset-failed {UNIT}")
    started = machine.command("start")
    assert started.returncode == 0, started.stdout + started.stderr
    assert machine.chat().status == 200


def test_a_hook_that_fails_is_told_and_tried_again(machine: Machine) -> None:
    hook, folder = "/usr/local/sbin/release-machine", "/run/released"
    lines = (
        "#!/bin/sh",
        f"mkdir -p {folder}; n=$(ls {folder} | wc -l); cat > {folder}/$n",
        '[ "$n" -ge 2 ] || { echo the cloud said no; exit 7; }',
    )
    machine.host.ssh(f"cat > {hook} <<'END'\n" + "\n".join(lines) + f"\nEND\nchmod 755 {hook}")
    try:
        machine.applies(kimi_wake="hold", kimi_idle_action="hook", kimi_idle_hook=hook)
        assert until(lambda: machine.host.ssh(f"ls {folder}", check=False).split(), HANGS_S)
        assert until(lambda: machine.read(paths.IDLE).get("failed"))
        found = machine.status()
        # It goes on serving; the machine itself may ask, for that is no use.
        assert found["state"] == "serving"
        assert "ended with 7: the cloud said no" in found["rest"]["idle"]["failed"]
        assert machine.chat(machine.own_key).status == 200
        machine.falls_asleep()
        assert machine.host.ssh(f"ls {folder}").split() == ["0", "1", "2"]
        asked = machine.read(f"{folder}/2")
        assert (asked["schema"], asked["event"]) == ("kimi-prov/idle-hook/v1", "idle")
        assert asked["idle_seconds"] == AFTER_S
    finally:
        machine.host.ssh(f"rm -rf {hook} {folder}")


def power_is_cut(machine: Machine) -> None:
    inventory, name = machine.host.inventory, machine.host.name
    lab_command.switch_power(inventory, name, on=False, hard=True)
    lab_command.switch_power(inventory, name, on=True)
    machine.host.ssh("timeout 100 systemctl is-system-running --wait || true")


def test_power_cuts_leave_it_asleep_and_the_next_request_wakes_it(machine: Machine) -> None:
    machine.falls_asleep()
    power_is_cut(machine)
    assert machine.status()["state"] == "asleep"
    assert machine.unit(UNIT) == "inactive"

    with ThreadPoolExecutor(1) as pool:
        # A connection to a machine that is gone ends when its client gives up.
        held = pool.submit(machine.chat, patience_s=60.0)
        assert until(lambda: machine.unit(UNIT) == "activating", HANGS_S)
        power_is_cut(machine)
        assert isinstance(held.exception(HANGS_S), api_client.ApiError)
    assert machine.status()["state"] == "asleep"
    assert machine.unit(UNIT) == "inactive"
    assert machine.chat().status == 200
    machine.woken()


def test_a_machine_that_is_switched_off_serves_after_its_next_boot(machine: Machine) -> None:
    inventory, name = machine.host.inventory, machine.host.name

    def state() -> str:
        return next(host.state for host in lab_command.list_hosts(inventory) if host.name == name)

    machine.applies(kimi_idle_action="poweroff")
    assert until(lambda: state() != "up", HANGS_S)
    lab_command.switch_power(inventory, name, on=True)

    def serves() -> bool:
        try:
            return machine.chat().status == 200
        except api_client.ApiError:
            return False

    assert until(serves, HANGS_S)
    # While somebody asks it stays on: the next apply finds it.
    with machine.asked_by(machine.chat):
        assert machine.status()["state"] == "serving"
        machine.applies(kimi_wake="hold")


def test_a_clock_that_jumps_does_nothing(machine: Machine) -> None:
    """By libfaketime: a container may not set the clock."""
    machine.applies(kimi_wake="hold", kimi_idle_stop="10m")
    machine.host.ssh("DEBIAN_FRONTEND=noninteractive apt-get install -y -q faketime", timeout=600)
    library = machine.host.ssh("dpkg -L libfaketime | grep 'libfaketime.so.1$'").strip()
    machine.host.ssh(f"mkdir -p $(dirname {CLOCK})")

    def looked() -> dict[str, Any]:
        before = machine.read(paths.IDLE)["looked_s"]
        assert until(lambda: machine.read(paths.IDLE).get("looked_s", 0) > before)
        return machine.read(paths.IDLE)

    try:
        for days in ("+40d", "-40d"):
            lines = (
                "[Service]",
                f"Environment=LD_PRELOAD={library} FAKETIME={days} FAKETIME_DONT_FAKE_MONOTONIC=1",
                "ExecStartPre=/bin/sh -c 'date +%%s > /run/faked'",
            )
            text = "\\n".join(lines).replace("%", "%%")
            assert machine.chat().status == 200
            since = looked()["since_s"]
            machine.host.ssh(f'printf "{text}\\n" > {CLOCK}; systemctl daemon-reload')
            found = looked()
            faked = int(machine.host.ssh("cat /run/faked"))
            assert abs(faked - time.time()) > 30 * 86_400
            assert found["since_s"] == since, "the time was counted anew, or by the clock"
            assert found["asleep_in_s"] is not None
            machine.host.ssh(f"rm {CLOCK}; systemctl daemon-reload")
    finally:
        machine.host.ssh(f"rm -f {CLOCK} /run/faked; systemctl daemon-reload")
        machine.host.ssh(f"rmdir $(dirname {CLOCK}); apt-get purge -y -q faketime libfaketime")


def test_the_seconds_to_an_answer_by_where_the_weights_were(
    machine: Machine, record_property: Record
) -> None:
    def wakes(place: str) -> None:
        asked = time.monotonic()
        assert machine.chat().status == 200
        taken = time.monotonic() - asked
        row = machine.woken()
        assert row["held"] == place
        record_property(place, f"{taken:.1f} s, told: {row['first_token_s']} s")

    machine.applies(kimi_wake="hold", kimi_ram_disk="always", kimi_stopped_memory="keep")
    machine.falls_asleep()
    assert machine.status()["ram_disk"]["mounted"] is not None
    wakes("RAM disk")
    machine.applies(kimi_wake="hold", kimi_ram_disk="never")
    machine.falls_asleep()
    wakes("page cache")
    machine.falls_asleep()
    # Out of the page cache: these files alone.
    machine.host.ssh(
        "sync; for file in $(find /srv/kimi/models -name '*.safetensors'); do "
        "dd if=$file iflag=nocache count=0 status=none; done"
    )
    wakes("disk")
    told = {row["held"] for row in machine.status()["rest"]["first_answers"]}
    assert told >= {"RAM disk", "page cache", "disk"}
