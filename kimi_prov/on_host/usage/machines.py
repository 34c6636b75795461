"""Asks the counter of each machine behind a gateway what keys used, every second.

Over TLS with the certificate that is pinned for the machine, by the gateway's own key. A machine
that does not answer is asked again; its last answer counts meanwhile.
"""

from __future__ import annotations

import http.client
import json
import sys
import threading
import time
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import gateways, key_rules
from kimi_prov.on_host.endpoint import api_client, tls
from kimi_prov.on_host.system import machine_key, plans
from kimi_prov.on_host.system.files import read_text

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.paths import Paths
    from kimi_prov.on_host.usage.pool import Pool

EVERY_S = 1.0
_TIMEOUT_S = 5.0
# Bytes of an answer at most: that is enough for some thousand keys.
_MAX_BYTES = 16 << 20
# What a report of another form raises: it ends neither the thread nor the service.
_FALSE = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
_SILENT = (api_client.ApiError, OSError, http.client.HTTPException)


class Machines:
    """One thread for each machine of the plan; it ends with the process, or with its machine."""

    def __init__(self, paths: Paths, pool: Pool) -> None:
        self._paths, self._pool = paths, pool
        self._asked: dict[tuple[str, str, int], _Asked] = {}

    def measure_clock_skews(self) -> dict[str, float]:
        """Return each machine's clock minus ours in seconds, if it answered last time."""
        found = {asked.server: asked.apart for asked in list(self._asked.values())}
        return {server: apart for server, apart in found.items() if apart is not None}

    def follow(self) -> None:
        """Ask the machines of the plan that is on the disk now."""
        plan = plans.read_plan(self._paths.plan)
        rows = plan["gateway"]["hosts"] if gateways.is_gateway(plan) else []
        wanted = {(str(r["server"]), str(r["address"]), int(r["port"])) for r in rows}
        for place in set(self._asked) - wanted:
            self._asked.pop(place).end()
        self._pool.retain(server for server, _, _ in wanted)
        for place in sorted(wanted - set(self._asked)):
            self._asked[place] = _Asked(self._paths, self._pool, place)

    def end(self) -> None:
        """Stop to ask any machine."""
        for asked in self._asked.values():
            asked.end()


class _Asked:
    """One machine, asked by a thread of its own over a connection that stays open."""

    def __init__(self, paths: Paths, pool: Pool, place: tuple[str, str, int]) -> None:
        self._paths, self._pool, self._place = paths, pool, place
        self.server = place[0]
        # Its clock minus ours, as precisely as half a round trip allows.
        self.apart: float | None = None
        self._over = threading.Event()
        self._line: http.client.HTTPConnection | None = None
        self._problem = ""
        threading.Thread(target=self._run, daemon=True).start()

    def end(self) -> None:
        self._over.set()

    def _run(self) -> None:
        while not self._over.is_set():
            began = time.monotonic()
            self._once()
            self._over.wait(max(0.1, EVERY_S - (time.monotonic() - began)))
        self._close()

    def _once(self) -> None:
        problem = ""
        try:
            document = self._read_usage()
            if not self._over.is_set():
                self._pool.update(self.server, document)
        except _SILENT as error:
            problem = f"does not report what keys used: {api_client.describe_error(error)}"
        except _FALSE as error:
            problem = f"reports no use of keys: {type(error).__name__}"
        if problem:
            self.apart = None
            self._close()
        if problem != self._problem:
            said = problem or "reports what keys used again"
            print(f"{self.server} {said}", file=sys.stderr, flush=True)
        self._problem = problem

    def _read_usage(self) -> Mapping[str, Any]:
        if self._line is None:
            self._line = _connect(self._paths, self._place)
        found, self.apart = _request_usage(self._paths, self._line)
        return found

    def _close(self) -> None:
        if self._line is not None:
            self._line.close()
            self._line = None


def measure_clock_skew(paths: Paths, place: tuple[str, str, int]) -> float | None:
    """Return a machine's clock minus ours in seconds; None where it does not answer."""
    try:
        line = _connect(paths, place)
        try:
            return _request_usage(paths, line)[1]
        finally:
            line.close()
    except (*_SILENT, *_FALSE):
        return None


def _connect(paths: Paths, place: tuple[str, str, int]) -> http.client.HTTPConnection:
    server, address, port = place
    # Where no certificate is pinned, none is accepted.
    pin = tls.compute_fingerprint(read_text(paths.hosts / f"{server}.crt")) or "none"
    return api_client.connect(api_client.Endpoint(address, port, pin, _TIMEOUT_S))


def _request_usage(paths: Paths, line: http.client.HTTPConnection) -> tuple[dict[str, Any], float]:
    """Return a machine's answer, and by how many seconds its clock differs."""
    key, asked_at = machine_key.read(paths.machine_key), time.time()
    line.request("GET", key_rules.RECENT, headers={"Authorization": f"Bearer {key}"})
    reply = line.getresponse()
    body, told_at = reply.read(_MAX_BYTES), time.time()
    if reply.status != 200:
        raise api_client.ApiError(f"it answered {reply.status}")
    found = json.loads(body)
    if not isinstance(found, dict):
        raise TypeError("no object")
    return found, round(float(found["now"]) - (asked_at + told_at) / 2, 2)
