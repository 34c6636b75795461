"""A gateway and the hosts behind it, for tests: the real HAProxy on all, stand-in engines behind.

`make_proxy` is the fixture of tests/component/on_host/conftest.py.
"""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

from running_proxy import CHECKS
from waiting import until

from kimi_prov.on_host.endpoint import api_client, haproxy
from kimi_prov.on_host.keys import publish
from kimi_prov.on_host.system import machine_key

if TYPE_CHECKING:
    from running_proxy import Proxy

QUESTION = {"messages": [{"role": "user", "content": "hello"}]}
GATEWAY_KEY = "gateway.gw1"


class Site:
    """A gateway and the hosts behind it; `watched`: it shows metrics.

    `checks`: how often it looks at a host, where a test asks before it has looked.
    """

    def __init__(
        self,
        make_proxy,
        hosts: int,
        *,
        watched: bool = False,
        checks: str = CHECKS,
        **options: object,
    ) -> None:
        self.client = "sk-of-a-client"
        names = [f"gpu{n}" for n in range(1, hosts + 1)]
        # As an apply does: the hosts learn the gateway's key, then it learns their certificates.
        self.hosts: dict[str, Proxy] = {
            name: make_proxy(name=name, gateways={GATEWAY_KEY: None}, **options) for name in names
        }
        self.gateway: Proxy = make_proxy(
            0, {"client": self.client}, metrics=watched, name="gw1", hosts=self.hosts, checks=checks
        )
        own = publish.hash_key(machine_key.read(self.gateway.paths.machine_key))
        for host in self.hosts.values():
            publish.ensure(host.paths, {}, gateways={GATEWAY_KEY: own})
        assert until(lambda: len(self.up()) == hosts), self.gateway.log

    def up(self, backend: str = "engines") -> list[str]:
        return [name for name, state in self.states(backend).items() if state == "UP"]

    def states(self, backend: str = "engines") -> dict[str, str]:
        """As HAProxy says it: between UP and DOWN it counts, `UP 1/2`."""
        rows = self._stats(f"show stat {backend} 4 -1")
        return {row["svname"]: row["status"] for row in rows}

    def waiting(self) -> int:
        """How many requests wait at the gateway for a host."""
        (row,) = self._stats("show stat engines 2 -1")
        return int(row["qcur"])

    def _stats(self, command: str) -> list[dict[str, str]]:
        text = haproxy.send_command(self.gateway.paths.socket, command)
        return list(csv.DictReader(text.lstrip("# ").splitlines()))

    def ask(self, text: str = "hello", **more: object) -> api_client.Reply:
        body = {"messages": [{"role": "user", "content": text}], **more}
        return api_client.request_chat(self.gateway.endpoint, self.client, body)

    def asked(self) -> dict[str, int]:
        """How many requests each host's engine has seen."""
        return {name: len(host.engines[0].seen) for name, host in self.hosts.items()}
