"""Lab hosts that serve behind gateways: an inventory of both, and clients that ask them."""

from __future__ import annotations

import json
import ssl
import threading
import time
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import closed_form
import httpx2
import openai
import yaml
from machines import HANGS_S, Lab, kimi_prov, make_lab
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from machines import Host

NODES = ("node1", "node2")
GATEWAYS = ("gw1",)
# More than the two of the SDK: that a machine has no power shows after seconds.
RETRIES = 6


def gateway_lab(
    inventory: Path,
    network: str,
    *,
    nodes: Sequence[str] = NODES,
    gateways: Sequence[str] = GATEWAYS,
    **wishes: object,
) -> Lab:
    """Write an inventory of hosts that serve, and of gateways before them.

    The control machine alone may be a client; `wishes`: settings of all of them.
    """
    made = make_lab(inventory, network, nodes, outsiders=gateways, **wishes)
    place = inventory / "hosts.yml"
    document = yaml.safe_load(place.read_text())
    children = document["all"]["children"]
    children["kimi_gateway"] = children.pop("kimi_outsiders")
    place.write_text(yaml.safe_dump(document))
    # Ports, keys, networks and certificate are the gateways' as well.
    variables = inventory / "group_vars"
    (variables / "all").mkdir()
    (variables / "kimi.yml").rename(variables / "all" / "main.yml")
    return made


@contextmanager
def site_up(
    folder: Path,
    network: str,
    *apply: str,
    nodes: Sequence[str] = NODES,
    applied: Callable[[Lab], None] = lambda _: None,
    **wishes: object,
) -> Iterator[Site]:
    """Machines behind two gateways that share an address, applied in one run; the key is alice's.

    `apply`: further words of the command; `applied`: what is done after it; `wishes`: as
    `gateway_lab` has them.
    """
    address = f"{network}.100"
    made = gateway_lab(
        folder / "inv",
        network,
        nodes=nodes,
        gateways=("gw1", "gw2"),
        kimi_gateway_address=address,
        **wishes,
    )
    made.up()
    try:
        done = kimi_prov("apply", made.inventory, *apply)
        assert done.returncode == 0, done.stdout + done.stderr
        applied(made)
        added = kimi_prov("key", made.inventory, "--add", "alice")
        assert added.returncode == 0, added.stderr
        (key,) = [line.split()[1] for line in added.stdout.splitlines()]
        certificate = made.hosts["gw1"].ssh("cat /etc/kimi/proxy/tls.crt")
        yield Site(made, address, key, certificate)
    finally:
        made.down()


@dataclass
class Site:
    """What is served at one address, and one key of a client."""

    lab: Lab
    address: str
    key: str
    certificate: str

    def host(self, name: str) -> Host:
        return self.lab.hosts[name]

    def client(self, address: str | None = None, retries: int = RETRIES) -> openai.OpenAI:
        """OpenAI's client, by the certificate that all gateways have, names and all."""
        trusted = ssl.create_default_context(cadata=self.certificate)
        http = httpx2.Client(verify=trusted, timeout=HANGS_S)
        return openai.OpenAI(
            base_url=f"https://{address or self.address}:8000/v1",
            api_key=self.key,
            http_client=http,
            # Who waits for a gateway whose link is cut hears nothing: only this ends it.
            timeout=60,
            max_retries=retries,
        )

    def ask(self, text: str = "hello", **options: Any) -> str:
        asked = [{"role": "user", "content": text}]
        with self.client(**options) as client:
            answer = client.chat.completions.create(
                model="kimi-k2-lab", messages=asked, max_tokens=3, extra_body={"ignore_eos": True}
            )
        return str(answer.choices[0].message)

    def status(self) -> dict[str, Any]:
        done = kimi_prov("status", self.lab.inventory, "--format", "json")
        document = json.loads(done.stdout)
        closed_form.validate(document, "status")
        return dict(document["hosts"])

    def has_address(self) -> list[str]:
        shown = "ip -o address show to " + self.address
        return [name for name in ("gw1", "gw2") if self.host(name).ssh(shown, check=False).strip()]

    def takes_all(self) -> bool:
        """Whether both gateways send to all hosts."""
        rows = self.status()
        return all(rows[name]["ok"] for name in ("gw1", "gw2"))


@dataclass
class Load:
    """What clients were told while something happened."""

    site: Site
    answered: int = 0
    failed: list[str] = field(default_factory=list)
    longest_s: float = 0.0
    _enough: threading.Event = field(default_factory=threading.Event)

    def client(self, number: int) -> None:
        count = 0
        while not self._enough.is_set():
            began = time.monotonic()
            try:
                self.site.ask(f"client {number}, question {count}")
                self.answered += 1
            except openai.OpenAIError as error:
                self.failed.append(f"{type(error).__name__}: {error}")
            self.longest_s = max(self.longest_s, time.monotonic() - began)
            count += 1

    @contextmanager
    def running(self, clients: int = 3) -> Iterator[Load]:
        threads = [threading.Thread(target=self.client, args=(n,)) for n in range(clients)]
        for thread in threads:
            thread.start()
        try:
            assert until(lambda: self.answered >= clients or self.failed)
            yield self
            # What comes after the harm counts as well.
            known = self.answered
            assert until(lambda: self.answered >= known + 2 * clients or self.failed)
        finally:
            self._enough.set()
            for thread in threads:
                thread.join()
