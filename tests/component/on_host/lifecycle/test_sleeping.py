"""A machine whose engine sleeps in place of ending: by the real gate, socket, proxy and waker.

The engine is a stand-in that only remembers whether it sleeps; tests/engines/test_engine_control.py
has vLLM's own, and tests/gpu/test_sleep_served.py the weights of real cards. systemctl and
nvidia-smi are stand-ins too.
"""

from __future__ import annotations

import asyncio
import os
import socket
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from waiting import HANGS_S, until

from kimi_prov.contract import paths as layout
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.endpoint import stop_state
from kimi_prov.on_host.engine import engine_sleep, gate, ready, serve
from kimi_prov.on_host.lifecycle import run, starts, status, wake
from kimi_prov.on_host.system import files, machine_key

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

UNIT = "kimi-serve@0.service"
SYSTEMCTL = """#!/bin/sh
if [ "$1" = show ]; then
  for last; do case $last in
  kimi-serve*) printf 'Id=%s\\nLoadState=loaded\\nActiveState=%s\\n\\n' $last $(cat {root}/state);;
  *.service) printf 'Id=%s\\nActiveState=inactive\\n\\n' $last;;
  esac; done
else
  echo "$@" >> {root}/told
  case "$1" in stop) echo inactive > {root}/state;; start) echo active > {root}/state;; esac
fi
"""
NVIDIA_SMI = """#!/bin/sh
case "$1" in
--query-gpu*) echo "0, GPU-1, $(cat {root}/mib)";;
*) echo "GPU-1, 4242, training";;
esac
"""


class Engine:
    """What vLLM's client of an engine is asked here."""

    def __init__(self) -> None:
        self.asleep = False
        self.orders: list[str] = []
        self.error: Exception | None = None

    async def is_sleeping(self) -> bool:
        return self.asleep

    async def sleep(self, level: int) -> None:
        await self._do(f"sleep {level}", asleep=True)

    async def wake_up(self) -> None:
        await self._do("wake_up", asleep=False)

    async def _do(self, order: str, *, asleep: bool) -> None:
        self.orders.append(order)
        if self.error:
            raise self.error
        self.asleep = asleep


class Machine:
    """A served machine whose engine has a control socket."""

    def __init__(self, proxy: Any, root: Path, engine: Engine) -> None:
        self.paths, self.root, self.engine = proxy.paths, root, engine
        control = layout.build_control_socket(0)
        self.control = self.paths.locate(control)
        self.plan: Any = {
            "engine": {"env_name": "vllm-1"},
            "model": {"name": "m", "serve_dir": str(root), "served_names": ["tiny"]},
            "instances": [
                {
                    "index": 0,
                    "port": proxy.engines[0].port,
                    "gpus": [0],
                    "env": {layout.CONTROL_VARIABLE: control},
                }
            ],
            "timeouts": {"start_s": HANGS_S},
            "rest": {
                "memory": "free",
                "wake": "refuse",
                "idle": {"after_s": 1800, "action": "sleep", "hook": None},
            },
        }
        self.uses(900)
        self.state = root / "state"
        self.state.write_text("active")

    def uses(self, mib: int) -> None:
        """Have that much of the GPU's memory in use."""
        (self.root / "mib").write_text(str(mib))

    @property
    def told(self) -> list[str]:
        log = self.root / "told"
        return log.read_text().splitlines() if log.exists() else []

    def rests(self) -> str:
        job = {"job": run.SLEEP, "used": None, "drain_s": HANGS_S, "over": False}
        return run._run_sleep(self.paths, self.plan, job, lambda _: None)

    def wakes(self) -> wake.Waker:
        waker = wake.Waker(self.paths, self.plan)
        waker.began = 0.0
        waker._start_and_wait()
        return waker

    @property
    def shown(self) -> str:
        states = {UNIT: {"state": self.state.read_text().strip()}}
        return status.decide_state(stop_state.read(self.paths), states, down=False)


def serve_gate(engine: Engine, root: Path, opened: threading.Event, ended: threading.Event) -> None:
    """Run the gate's life as the engine's web server does."""

    async def app(scope: Any, receive: Any, send: Any) -> None:
        del scope
        await receive()
        await send({"type": "lifespan.startup.complete"})
        await receive()
        await send({"type": "lifespan.shutdown.complete"})

    async def live() -> None:
        asked: list[str] = []

        async def receive() -> dict[str, Any]:
            if asked:
                await asyncio.get_running_loop().run_in_executor(None, ended.wait, 10 * HANGS_S)
            asked.append("")
            return {"type": "lifespan.startup" if len(asked) == 1 else "lifespan.shutdown"}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "lifespan.startup.complete":
                opened.set()

        scope = {"type": "lifespan", "app": SimpleNamespace(state=SimpleNamespace())}
        scope["app"].state.engine_client = engine
        await gate.Gate(app, str(root / "machine-key.map"))(scope, receive, send)

    asyncio.run(live())


@pytest.fixture
def machine(make_proxy: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Machine]:
    for name, text in (("systemctl", SYSTEMCTL), ("nvidia-smi", NVIDIA_SMI)):
        stub = tmp_path / "bin" / name
        stub.parent.mkdir(exist_ok=True)
        stub.write_text(text.format(root=tmp_path))
        stub.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    for module in (run.apply_lock, wake.apply_lock):
        monkeypatch.setattr(module, "find_holder", lambda: None)
    monkeypatch.setattr(run.haproxy, "read_variable", lambda *_: None)
    monkeypatch.setattr(engine_sleep, "_GPU_TIMEOUT_S", 0.2)
    engine = Engine()
    found = Machine(make_proxy(), tmp_path, engine)
    monkeypatch.setattr(ready, "MACHINE_KEY", str(found.paths.machine_key))
    machine_key.ensure(tmp_path / "machine-key.map")
    found.control.parent.mkdir(parents=True)
    monkeypatch.setenv(layout.CONTROL_VARIABLE, str(found.control))
    opened, ended = threading.Event(), threading.Event()
    server = threading.Thread(target=serve_gate, args=(engine, tmp_path, opened, ended))
    server.start()
    assert opened.wait(HANGS_S)
    yield found
    ended.set()
    server.join(HANGS_S)


def test_an_idle_machine_sleeps_and_its_engine_is_not_ended(machine: Machine) -> None:
    assert machine.rests() == "asleep: the weights are in host memory"
    assert machine.engine.orders == ["sleep 1"]
    assert not [line for line in machine.told if line.startswith("stop")]
    assert machine.shown == "asleep"
    assert stop_state.read(machine.paths)[engine_sleep.HELD] == {"0": 900}


def test_a_request_wakes_it_and_the_wake_is_measured_apart_from_starts(machine: Machine) -> None:
    machine.rests()
    machine.wakes()
    assert machine.engine.orders == ["sleep 1", "wake_up"]
    assert stop_state.read(machine.paths) == {}
    assert machine.shown == "serving"
    (row,) = starts.read_starts(machine.paths)
    assert (row["held"], row["by"]) == ("host memory", "wake")
    asleep = {"state": "asleep", engine_sleep.HELD: {}}
    held = starts.find_weights_place(machine.plan, asleep)
    assert starts.estimate_start(machine.paths, machine.plan, held)["seconds"] == row["seconds"]
    other = starts.estimate_start(machine.paths, machine.plan, "disk")
    assert other["seconds"] is None


def test_an_engine_that_cannot_sleep_goes_on_serving(machine: Machine) -> None:
    machine.engine.error = RuntimeError("no room in host memory")
    with pytest.raises(HostError, match="was told to sleep: no room in host memory"):
        machine.rests()
    assert stop_state.read(machine.paths) == {}
    assert "no room in host memory" in files.read_json(machine.paths.idle)["failed"]


def test_an_engine_that_cannot_be_woken_is_started_afresh(machine: Machine) -> None:
    machine.rests()
    machine.engine.error = RuntimeError("CUDA error: out of memory")
    machine.wakes()
    verbs = [line.split()[0] for line in machine.told if line.split()[0] in ("start", "stop")]
    assert verbs == ["stop", "start"]
    assert stop_state.read(machine.paths) == {}


def test_while_others_hold_the_gpus_it_sleeps_on_with_its_weights(machine: Machine) -> None:
    machine.rests()
    machine.uses(900 + 40_000)
    with pytest.raises(HostError, match="other programs hold the memory of its GPUs"):
        machine.wakes()
    assert machine.engine.orders == ["sleep 1"]
    assert not [line for line in machine.told if line.startswith("stop")]
    assert machine.shown == "asleep"
    machine.uses(900)
    machine.wakes()
    assert machine.shown == "serving"


def test_a_start_wakes_it_and_a_stop_ends_it(
    machine: Machine, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.make_directory(machine.paths.plan.parent, 0o755)
    files.write_json(str(machine.paths.plan), machine.plan)
    monkeypatch.setattr(run, "read_applied_plan", lambda _: machine.plan)
    machine.rests()
    answer = run.start(machine.paths, {"by": "start", "hosts": []})
    assert answer["was"] == "asleep"
    assert machine.engine.orders == ["sleep 1", "wake_up"]
    machine.rests()
    run.stop_engines(machine.paths, machine.plan, 0.0, lambda _: None)
    assert f"stop {UNIT}" in machine.told
    assert machine.shown == "asleep"


def test_an_engine_that_was_killed_in_its_sleep_is_started(machine: Machine) -> None:
    machine.rests()
    machine.state.write_text("inactive")
    assert machine.shown == "asleep"
    machine.wakes()
    assert machine.engine.orders == ["sleep 1"]
    assert any(line.startswith("start") for line in machine.told)
    assert [row["held"] for row in starts.read_starts(machine.paths)] != ["host memory"]


def test_an_apply_wakes_it_unless_others_hold_the_gpus(machine: Machine) -> None:
    files.make_directory(machine.paths.plan.parent, 0o755)
    files.write_json(str(machine.paths.plan), machine.plan)
    machine.rests()
    rest = stop_state.clear(machine.paths)
    machine.uses(900 + 40_000)
    with pytest.raises(HostError, match="other programs hold the memory of its GPUs"):
        serve.wake_engines(machine.paths, rest)
    assert machine.shown == "asleep"
    machine.uses(900)
    serve.wake_engines(machine.paths, stop_state.clear(machine.paths))
    assert machine.engine.orders == ["sleep 1", "wake_up"]
    assert machine.shown == "serving"


@pytest.mark.parametrize("order", [b"", b"\n", b"dance\n", b"sleep" * 40_000 + b"\n", b"\xff\n"])
def test_what_is_no_order_does_nothing(machine: Machine, order: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(HANGS_S)
        connection.connect(str(machine.control))
        connection.sendall(order)
        connection.shutdown(socket.SHUT_WR)
        answer = connection.recv(1000)
    assert answer == b"" or b"unknown order" in answer
    assert machine.engine.orders == []
    assert until(lambda: engine_sleep._give_order(machine.paths, *state_of(machine)) is False)


def state_of(machine: Machine) -> tuple[Any, str, float]:
    return machine.plan["instances"][0], "state", HANGS_S
