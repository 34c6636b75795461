"""Three machines behind two gateways are changed in turn, under clients that stream all the while.

The engines are vLLM's CPU build, the gateways the distribution's HAProxy and keepalived, the
clients OpenAI's with the retries that they have by themselves.
"""

from __future__ import annotations

import json
import threading
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import openai
import pytest
from gateways import Site, site_up
from machines import HANGS_S, kimi_prov
from test_update import STARTED, Archive, only, version
from upgrades import NO_START, OWN_MODELS, applying, settings_file
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = [pytest.mark.lab, pytest.mark.slow]

NETWORK = "10.93.131"
NODES = ("node1", "node2", "node3")
# Of an answer: it is under way when a machine is drained.
TOKENS = 48
UNIT = "kimi-serve@0"


@dataclass
class Streams:
    """What clients got that stream one answer after the other."""

    site: Site
    tokens: int = TOKENS
    whole: int = 0
    failed: list[str] = field(default_factory=list)
    _enough: threading.Event = field(default_factory=threading.Event)

    def client(self, number: int) -> None:
        with self.site.client() as client:
            count = 0
            while not self._enough.is_set():
                try:
                    self.stream(client, f"client {number}, question {count}")
                    self.whole += 1
                except openai.OpenAIError as error:
                    self.failed.append(f"{type(error).__name__}: {error}")
                count += 1

    def stream(self, client: openai.OpenAI, text: str) -> None:
        """Read one answer to its end; a stream that ends before that was cut."""
        parts = client.chat.completions.create(
            model="kimi-k2-lab",
            messages=[{"role": "user", "content": text}],
            max_tokens=self.tokens,
            stream=True,
            extra_body={"ignore_eos": True},
        )
        reason = None
        for part in parts:
            if part.choices:
                reason = part.choices[0].finish_reason
        if reason != "length":
            self.failed.append(f"{text}: it was cut ({reason})")

    @contextmanager
    def running(self, clients: int = 3) -> Iterator[Streams]:
        threads = [threading.Thread(target=self.client, args=(n,)) for n in range(clients)]
        for thread in threads:
            thread.start()
        try:
            assert until(lambda: self.whole >= clients or self.failed)
            yield self
            known = self.whole
            assert until(lambda: self.whole >= known + 2 * clients or self.failed)
        finally:
            self._enough.set()
            for thread in threads:
                thread.join()


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site_up(tmp_path_factory.mktemp("rolling"), NETWORK, nodes=NODES) as found:
        yield found


@pytest.fixture
def whole(site: Site) -> Site:
    assert until(site.takes_all)
    return site


def engines(site: Site) -> dict[str, str]:
    """The engine's process of each machine."""
    return {
        name: site.host(name).ssh(f"systemctl show -P MainPID {UNIT}").strip() for name in NODES
    }


def certificates(site: Site) -> dict[str, str]:
    return {name: site.host(name).ssh("cat /etc/kimi/proxy/tls.crt") for name in NODES}


def active(site: Site, name: str, stamp: str) -> int:
    """A time of a machine's engine in microseconds; they are containers, with one clock."""
    return int(site.host(name).ssh(f"systemctl show -P {stamp} {UNIT}"))


def in_turn(site: Site) -> bool:
    """Whether each engine was stopped after the one before it had started."""
    stopped = [active(site, name, "InactiveEnterTimestampMonotonic") for name in NODES]
    started = [active(site, name, "ActiveEnterTimestampMonotonic") for name in NODES]
    return all(start < stop for start, stop in zip(started, stopped[1:], strict=False))


def test_an_apply_that_changes_what_is_served_takes_one_after_the_other(
    whole: Site, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    before = engines(whole)
    wishes = settings_file(tmp_path, {"kimi_context": 2048})
    streams = Streams(whole)
    with streams.running():
        done = kimi_prov("apply", whole.lab.inventory, "-e", wishes)
    record_property("answers", streams.whole)
    assert done.returncode == 0, done.stdout + done.stderr
    assert streams.failed == []
    after = engines(whole)
    assert [name for name in NODES if after[name] == before[name]] == []
    assert in_turn(whole)


def test_a_rollback_takes_one_after_the_other(
    whole: Site, record_property: Callable[[str, object], None]
) -> None:
    """After the test before: back to what it changed."""
    streams = Streams(whole)
    with streams.running():
        done = kimi_prov("rollback", whole.lab.inventory)
    record_property("answers", streams.whole)
    assert done.returncode == 0, done.stdout + done.stderr
    assert streams.failed == []
    assert in_turn(whole)


def test_a_restart_takes_one_after_the_other(
    whole: Site, record_property: Callable[[str, object], None]
) -> None:
    streams = Streams(whole)
    with streams.running():
        done = kimi_prov("restart", whole.lab.inventory, "--format", "json")
    record_property("answers", streams.whole)
    assert done.returncode == 0, done.stdout + done.stderr
    assert streams.failed == []
    rows = json.loads(done.stdout)["hosts"]
    assert {name: rows[name]["requests_cut"] for name in NODES} == dict.fromkeys(NODES, 0)
    assert in_turn(whole)


def booted(site: Site, name: str) -> int:
    """When a machine started, in microseconds of the clock that `active` reads."""
    return int(site.host(name).ssh(STARTED)) * 10_000


def test_updates_that_restart_take_one_machine_after_the_other(
    whole: Site, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    """Each has a kernel that waits. A restart of the container counts as a restart."""
    before = {name: booted(whole, name) for name in NODES}
    streams = Streams(whole)
    with ExitStack() as stack:
        archive = stack.enter_context(closing(Archive(tmp_path, f"{NETWORK}.1")))
        archive.offer(*version(1))
        for name in NODES:
            stack.enter_context(only(whole.host(name), archive))
        archive.offer(*version(2))
        words = ("--limit", ",".join(NODES), "--reboot-ok", "--format", "json")
        with streams.running():
            done = kimi_prov("update", whole.lab.inventory, *words)
    record_property("answers", streams.whole)
    assert done.returncode == 0, done.stdout + done.stderr
    assert streams.failed == []
    rows = json.loads(done.stdout)["hosts"]
    cut = {name: (rows[name]["restarted"], rows[name]["requests_cut"]) for name in NODES}
    assert cut == dict.fromkeys(NODES, (True, 0))
    after = [booted(whole, name) for name in NODES]
    assert [name for name, at in zip(NODES, after, strict=True) if at == before[name]] == []
    served = [active(whole, name, "ActiveEnterTimestampMonotonic") for name in NODES]
    assert [at < boot for at, boot in zip(served, after[1:], strict=False)] == [True, True]


def test_a_drain_that_is_too_short_is_told_with_what_it_cut(whole: Site) -> None:
    streams = Streams(whole, tokens=1500)
    with streams.running():
        done = kimi_prov("restart", whole.lab.inventory, "--drain", "0", "--format", "json")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(done.stdout)["hosts"]
    assert sum(rows[name]["requests_cut"] for name in NODES) == len(streams.failed) > 0


def test_new_certificates_of_all_machines_cost_no_request(whole: Site) -> None:
    before = certificates(whole)
    for name in NODES:
        whole.host(name).ssh("rm /etc/kimi/proxy/tls.pem /etc/kimi/proxy/tls.crt")
    streams = Streams(whole)
    with streams.running():
        done = kimi_prov("apply", whole.lab.inventory)
    assert done.returncode == 0, done.stdout + done.stderr
    assert streams.failed == []
    after = certificates(whole)
    assert [name for name in NODES if after[name] == before[name]] == []
    assert whole.takes_all()


def test_the_first_that_fails_goes_back_and_the_others_are_left_as_they_are(
    whole: Site, tmp_path: Path
) -> None:
    before = engines(whole)
    streams = Streams(whole)
    with streams.running():
        done = kimi_prov("apply", whole.lab.inventory, "-e", settings_file(tmp_path, NO_START))
    assert done.returncode == 1, done.stdout + done.stderr
    assert "not changed, because node1 failed: node2, node3" in " ".join(done.stderr.split())
    assert streams.failed == []
    after = engines(whole)
    assert after["node1"] != before["node1"]
    assert {name: after[name] for name in NODES[1:]} == {name: before[name] for name in NODES[1:]}
    assert until(whole.takes_all)
    # No lock and no switch is left: the inventory as it is changes nothing.
    again = kimi_prov("apply", whole.lab.inventory)
    assert again.returncode == 0, again.stdout + again.stderr
    assert engines(whole) == after


def test_a_run_that_is_killed_leaves_nobody_drained_and_the_next_goes_on(
    whole: Site, tmp_path: Path
) -> None:
    """It is killed when the second machine has stopped its engine."""
    before = engines(whole)
    wishes = {"kimi_context": 3072}
    second = whole.host("node2")
    streams = Streams(whole)
    with streams.running():
        with applying(whole.host("node1"), tmp_path, wishes, alone=False) as run:
            run.reaches(
                lambda: second.ssh(f"systemctl show -P MainPID {UNIT}").strip() != before["node2"],
                "the second machine's engine is stopped",
            )
            run.kill()
        # The machine goes on by itself; nobody else is touched.
        assert until(whole.takes_all, hangs_s=HANGS_S)
        assert engines(whole)["node3"] == before["node3"]
        words = ("-e", settings_file(tmp_path, wishes))
        done = kimi_prov("apply", whole.lab.inventory, *words, env=OWN_MODELS)
    assert done.returncode == 0, done.stdout + done.stderr
    assert streams.failed == []
    assert engines(whole)["node3"] != before["node3"]
    for name in NODES:
        plan = json.loads(whole.host(name).ssh("cat /etc/kimi/plan.json"))
        assert plan["model"]["context"] == 3072
    assert whole.takes_all()
