"""Two gateways before two hosts that serve: clients ask one address, and machines come and go.

The engines are vLLM's CPU build, the gateways the distribution's HAProxy and keepalived. The
clients are OpenAI's, with the retries that they have by themselves.
"""

from __future__ import annotations

import json
import socket
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import openai
import pytest
from gateways import Load, Site, site_up
from machines import kimi_prov
from waiting import until

from kimi_prov.lab import operations as lab_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

pytestmark = [pytest.mark.lab, pytest.mark.slow]

NETWORK = "10.93.128"


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    with site_up(tmp_path_factory.mktemp("gateway"), NETWORK) as found:
        yield found


@pytest.fixture
def whole(site: Site) -> Site:
    """The same, when everybody is up again after the test before."""
    assert until(site.takes_all)
    return site


def test_one_key_and_one_certificate_answer_at_every_address(whole: Site) -> None:
    for address in (whole.address, whole.host("gw1").address, whole.host("gw2").address):
        assert whole.ask(address=address, retries=0)
    assert len(whole.has_address()) == 1


def test_the_hosts_answer_the_gateways_alone(whole: Site) -> None:
    for name in ("node1", "node2"):
        # What is dropped is never answered: the time tells nothing but that.
        with pytest.raises(TimeoutError):
            socket.create_connection((whole.host(name).address, 8000), timeout=5)


def test_an_apply_again_changes_nothing(whole: Site) -> None:
    done = kimi_prov("apply", whole.lab.inventory)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "changed=0" in done.stdout


def test_what_a_key_used_is_told_by_the_hosts_together(whole: Site) -> None:
    def used() -> int:
        done = kimi_prov("usage", whole.lab.inventory, "--format", "json")
        assert done.returncode == 0, done.stderr
        rows = {row["key"]: row for row in json.loads(done.stdout)["rows"]}
        return int(rows.get("alice", {}).get("requests", 0))

    before = used()
    for number in range(4):
        whole.ask(f"question {number}")
    assert used() == before + 4


def test_a_limit_of_a_key_holds_over_both_hosts(whole: Site) -> None:
    limit, question_most = 120, 40
    inventory = whole.lab.inventory
    added = kimi_prov("key", inventory, "--add", "bob", "--tokens-per-day", str(limit))
    assert added.returncode == 0, added.stderr
    (key,) = [line.split()[1] for line in added.stdout.splitlines()]
    bob = replace(whole, key=key)

    def used() -> dict[str, int]:
        done = kimi_prov("usage", inventory, "--by", "host", "--format", "json")
        assert done.returncode == 0, done.stderr
        rows = [row for row in json.loads(done.stdout)["rows"] if row["key"] == "bob"]
        return {row["host"]: row["prompt_tokens"] + row["completion_tokens"] for row in rows}

    with pytest.raises(openai.RateLimitError) as refused:  # noqa: PT012 - which of them, nobody knows
        for number in range(limit):
            bob.ask(f"question {number}", retries=0)
            # A gateway asks the hosts every second.
            time.sleep(1.5)
    assert refused.value.code == "rate_limit_exceeded"
    assert int(refused.value.response.headers["retry-after"]) > 0
    found = used()
    # Neither host has refused: each alone is below the limit, and both together have reached it.
    hosts = {name: found.get(name, 0) for name in ("node1", "node2")}
    assert all(0 < tokens < limit for tokens in hosts.values()), found
    assert limit <= sum(hosts.values()) < limit + question_most, found
    # The other gateway says the same.
    for name in ("gw1", "gw2"):
        with pytest.raises(openai.RateLimitError):
            bob.ask(address=whole.host(name).address, retries=0)
    removed = kimi_prov("key", inventory, "--remove", "bob")
    assert removed.returncode == 0, removed.stderr


def kill_proxy(site: Site) -> None:
    (name,) = site.has_address()
    site.host(name).ssh("kill -9 $(systemctl show -P MainPID kimi-proxy)")


def cut_power(name: str | None = None) -> Callable[[Site], None]:
    """Take power from a host, or from the gateway that has the address."""

    def cut(site: Site) -> None:
        host = name or site.has_address()[0]
        lab_command.switch_power(site.lab.inventory, host, on=False, hard=True)
        time.sleep(20)
        lab_command.switch_power(site.lab.inventory, host, on=True)

    return cut


def cut_link(name: str | None = None) -> Callable[[Site], None]:
    """Cut the link of a host, or of the gateway that has the address."""

    def cut(site: Site) -> None:
        host = name or site.has_address()[0]
        lab_command.link(site.lab.inventory, host, up=False)
        time.sleep(20)
        lab_command.link(site.lab.inventory, host, up=True)

    return cut


def stop_and_start(site: Site) -> None:
    for verb in ("stop", "start"):
        done = kimi_prov(verb, site.lab.inventory, "--limit", "node1")
        assert done.returncode == 0, done.stderr


HARMS: dict[str, Callable[[Site], None]] = {
    "the proxy of the gateway with the address is killed": kill_proxy,
    "the gateway with the address loses power": cut_power(),
    "the gateway with the address loses its link": cut_link(),
    "a host that serves loses power": cut_power("node1"),
    "a host that serves loses its link": cut_link("node2"),
    "a host is stopped and started": stop_and_start,
}


@pytest.mark.parametrize("harm", HARMS)
def test_the_clients_own_retries_hide_the_loss_of_one(
    whole: Site, harm: str, record_property: Callable[[str, object], None]
) -> None:
    load = Load(whole)
    with load.running():
        HARMS[harm](whole)
    record_property("answered, longest in seconds", (load.answered, round(load.longest_s, 1)))
    assert load.failed == []
    assert until(lambda: len(whole.has_address()) == 1)


def test_a_gateway_that_reaches_no_machine_gives_the_address_away(whole: Site) -> None:
    """Its proxy answers all the time. Once it reaches them again nothing moves."""
    (name,) = whole.has_address()
    (other,) = {"gw1", "gw2"} - {name}
    machines = ", ".join(whole.host(node).address for node in ("node1", "node2"))
    gateway = whole.host(name)
    gateway.ssh(
        "nft add table inet lab_cut && nft add chain inet lab_cut out "
        "'{ type filter hook output priority 0; }' && "
        f"nft add rule inet lab_cut out ip daddr '{{ {machines} }}' drop"
    )
    try:
        assert until(lambda: whole.has_address() == [other])
        assert whole.ask()
    finally:
        gateway.ssh("nft delete table inet lab_cut")
    assert until(whole.takes_all)
    assert whole.has_address() == [other]


def test_one_apply_moves_the_machines_to_another_port(whole: Site) -> None:
    """One after the other, under load: gateways find each where it is from now on."""
    folder = whole.lab.inventory / "host_vars"
    folder.mkdir(exist_ok=True)
    for node in ("node1", "node2"):
        (folder / f"{node}.yml").write_text("kimi_port: 8100\n")
    load = Load(whole)
    with load.running():
        done = kimi_prov("apply", whole.lab.inventory)
    assert done.returncode == 0, done.stdout + done.stderr
    assert load.failed == []
    assert whole.takes_all()
    again = kimi_prov("apply", whole.lab.inventory)
    assert "changed=0" in again.stdout, again.stdout


def test_destroy_takes_the_gateway_away(whole: Site) -> None:
    done = kimi_prov("destroy", whole.lab.inventory, "--limit", "gw2", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    left = whole.host("gw2").ssh(
        "ls /etc/kimi /srv/kimi /etc/systemd/system/kimi-* 2>/dev/null; ip -o address show to "
        f"{whole.address}; nft list tables; ss -Hltn 'sport = :8000'",
        check=False,
    )
    assert left.strip() == ""
