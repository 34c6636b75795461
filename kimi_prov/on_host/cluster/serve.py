"""`cluster serve --module MODULE -- ARGUMENT...`: the server's job, on its first node.

Makes key and certificate, starts the engine on every node (srun, `cluster rank`), publishes its
address, and watches it: an engine that ends or hangs is started again as a whole, one without use
is ended (KIMI_IDLE_MINUTES). On SIGUSR1, before the walltime ends, it submits its successor, takes
no more requests and lets answers end; on SIGTERM it does the same without a successor. A job that
is preempted is queued again by SLURM.
"""

from __future__ import annotations

import argparse
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kimi_prov.contract import pod
from kimi_prov.contract.errors import EXIT_TRANSIENT, HostError
from kimi_prov.on_host.cluster import rank, slurm, weights
from kimi_prov.on_host.cluster.activity import Activity, Idle, read
from kimi_prov.on_host.cluster.endpoint import Published
from kimi_prov.on_host.cluster.site import Site
from kimi_prov.on_host.endpoint import api_client, tls, tls_proxy
from kimi_prov.on_host.engine import output
from kimi_prov.on_host.system.files import read_json, write_atomic, write_json

_SCRIPT = "jobs/serve.sbatch"
_PORTS = 1000
_TRIES = 50
_MAX_RESTARTS = 3
_ASK_S = 20.0
_PROBE_AFTER_S = 300.0
_PROBE_S = 180.0
_KILL_AFTER_S = 30.0
# Ports of engines behind a proxy, above those that clients come to.
_ENGINE_PORTS = 2000
# Seconds for what HAProxy still sends after the engine's end.
_PROXY_DRAIN_S = 10
_HTTP_OK = 200
_LONGER = f"--time in {_SCRIPT} is too short"


def main(argv: list[str]) -> int:
    """Serve until the walltime, a signal, idleness or a failure that repeats."""
    parser = argparse.ArgumentParser(prog="serve")
    parser.add_argument("--module", required=True)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args(argv)
    site = Site.from_environment()
    site.require_environment()
    weights.require_verified(site)
    job = slurm.Job.from_environment(os.environ)
    planned = int(site.plan["parallel"]["hosts"])
    if len(job.nodes) != planned:
        raise HostError(
            f"the job has {len(job.nodes)} nodes, and the engine is planned for {planned}",
            f"correct --nodes in {_SCRIPT}, or render again with kimi_hosts_per_model",
        )
    ensure_key(site)
    _remove_left_over(site)
    folder = site.private("run", job.number)
    shutil.rmtree(folder)
    folder = site.private("run", job.number)
    port = find_free_port(site.number("KIMI_PORT", 8000), job.number)
    master = find_free_port(site.number("KIMI_MASTER_PORT", 29500), job.number)
    certificate = _make_secrets(job, folder)
    settings = {"nodes": job.nodes, "port": port, "master_port": master}
    engine_port = 0
    if pod.is_proxied(site.plan):
        first = site.number("KIMI_PORT", 8000) + _ENGINE_PORTS
        engine_port = find_free_port(first, job.number)
        settings["engine_port"] = engine_port
    write_json(os.path.join(folder, rank.SETTINGS), {**settings, "master_address": job.nodes[0]})
    shown = Published(
        site, job.number, job.nodes, port, certificate, slurm.find_end(job.number, os.environ)
    )
    line = ["srun", "--kill-on-bad-exit=1", "--ntasks-per-node=1", f"--nodes={len(job.nodes)}"]
    line += ["--mem-bind=none", os.environ.get("KIMI_PYTHON", "python3"), "-I", site.program]
    line += ["cluster", "rank", "--run", folder, "--module", options.module, "--"]
    line += [word for word in options.arguments if word != "--"]
    proxy = None
    try:
        if engine_port:
            proxy = _start_proxy(site, folder, port, engine_port)
        server = Server(site, shown, folder, line, site.decimal("KIMI_STEP_S", 5), proxy=proxy)
        return server.run()
    finally:
        if proxy:
            proxy.stop(_PROXY_DRAIN_S)
        shutil.rmtree(folder, ignore_errors=True)


def _start_proxy(site: Site, folder: str, port: int, engine_port: int) -> tls_proxy.TlsProxy:
    """Start HAProxy, with the job's certificate, before an engine that speaks no TLS."""
    way = tls_proxy.Way(port, engine_port, os.path.join(folder, "tls.crt"), _PROXY_DRAIN_S)
    return tls_proxy.TlsProxy(way, folder, site.environment.get("KIMI_HAPROXY", ""))


def ensure_key(site: Site) -> None:
    """Make the API key where there is none; only its owner may read its file."""
    site.private("keys")
    if not site.key():
        try:
            descriptor = os.open(site.key_file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        except FileExistsError:
            return
        with os.fdopen(descriptor, "w", encoding="ascii") as stream:
            stream.write(f"sk-kimi-{secrets.token_urlsafe(32)}\n")
        print(f"the API key is in {site.key_file}", flush=True)
    os.chmod(site.key_file, 0o600)


def _remove_left_over(site: Site) -> None:
    """Remove the folders, with keys in them, of jobs that were killed before they could."""
    runs = site.private("run")
    for name in os.listdir(runs):
        if name.isdigit() and slurm.is_living(name) is False:
            shutil.rmtree(os.path.join(runs, name), ignore_errors=True)


def find_free_port(first: int, number: str) -> int:
    """Return a port of this node by the job's number; a port that is in use is skipped."""
    wanted = first + int(number) % _PORTS
    for port in range(wanted, wanted + _TRIES):
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("0.0.0.0", port))  # noqa: S104 - as the engine will
            except OSError:
                continue
            return port
    raise HostError(
        f"ports {wanted} to {wanted + _TRIES - 1} of this node are all taken",
        "set another KIMI_PORT or KIMI_MASTER_PORT in cluster.env",
    )


def _make_secrets(job: slurm.Job, folder: str) -> str:
    """Make the job's key and certificate in its folder; return the certificate."""
    names = [job.nodes[0], socket.getfqdn(job.nodes[0]), socket.gethostname()]
    address = _find_address(job.nodes[0])
    pem = tls.make_self_signed([*names, *([address] if address else [])])
    certificate = tls.extract_certificates(pem)
    write_atomic(Path(folder, "tls.crt"), certificate, 0o600)
    write_atomic(Path(folder, "tls.key"), pem[len(certificate) :], 0o600)
    write_atomic(Path(folder, rank.KEY), secrets.token_urlsafe(32) + "\n", 0o600)
    return certificate


def _find_address(node: str) -> str | None:
    try:
        return socket.gethostbyname(node)
    except OSError:
        return None


_WITHOUT_PROXY = "HAProxy ended, and nothing else speaks TLS before the engine"
# Printed before each further start.
_AGAIN = "the engine is started again"


@dataclass
class Server:
    """The engine of a job from its first start to its end."""

    site: Site
    shown: Published
    folder: str
    line: list[str]
    step_s: float
    signals: list[int] = field(default_factory=list)
    proxy: tls_proxy.TlsProxy | None = None

    def run(self) -> int:
        """Start, watch and end the engine; return the exit status of the job."""
        for number in (signal.SIGUSR1, signal.SIGTERM, signal.SIGINT):
            signal.signal(number, lambda found, _frame: self.signals.append(found))
        for starts in range(_MAX_RESTARTS + 1):
            outcome = self._once()
            if outcome is not None:
                return outcome
            if starts < _MAX_RESTARTS:
                print(f"{_AGAIN}, {starts + 1} of {_MAX_RESTARTS}", flush=True)
        return self._failed(f"the engine ended {_MAX_RESTARTS + 1} times in this job")

    def _once(self) -> int | None:
        """Run the engine once; return None where it is to be started again."""
        for name in (rank.STOP, rank.HEAD_ENDED):
            _remove(os.path.join(self.folder, name))
        self.shown.write("loading")
        try:
            step = subprocess.Popen(self.line)
        except OSError as error:
            return self._failed(f"srun: {error.strerror}")
        ready = self._wait_ready(step)
        if ready is not None:
            return ready
        return self._watch(step)

    def _wait_ready(self, step: subprocess.Popen[bytes]) -> int | None:
        """Wait until the model answers; return an exit status where it will not."""
        began = time.monotonic()
        limit = self.site.number("KIMI_START_S", 3600)
        said = ""
        while True:
            if self.signals:
                status = self._end(step, handover=False)
                if self.signals[0] != signal.SIGUSR1:
                    return status
                return self._failed(f"the walltime ends before the model answered: {_LONGER}")
            if step.poll() is not None:
                if slurm.is_preempted(self.shown.job):
                    return self._give_way()
                ended = f"the engine ended with status {step.returncode} before it answered"
                cause = self._print_cause()
                return self._failed(ended if cause else f"{ended}; its lines above say why")
            _, refused = self._chat(_ASK_S)
            if not refused:
                break
            if refused != said:
                print(f"not ready yet: {refused}", flush=True)
                said = refused
            late = time.monotonic() - began > limit
            if late or self._has_lost_proxy():
                self._end(step, handover=False)
                return self._failed(
                    f"the model did not answer within {limit} s (KIMI_START_S in cluster.env)"
                    if late
                    else _WITHOUT_PROXY
                )
            self._pause(step)
        self.shown.notes = self._notes()
        self.shown.write("ready")
        print(
            f"ready after {time.monotonic() - began:.0f} s at {self.shown.document()['url']}; "
            f"{self.shown.path} names certificate and key",
            flush=True,
        )
        return None

    def _watch(self, step: subprocess.Popen[bytes]) -> int | None:
        """Watch an engine that answers; return None where it is to be started again."""
        minutes = self.site.decimal("KIMI_IDLE_MINUTES", 0)
        limit = 60 * minutes
        idle, probed = Idle(limit, time.monotonic()), time.monotonic()
        while True:
            self._pause(step)
            if self.signals:
                return self._end(step, handover=self.signals[0] == signal.SIGUSR1)
            if step.poll() is not None:
                if slurm.is_preempted(self.shown.job):
                    return self._give_way()
                print(f"the engine ended with status {step.returncode}", flush=True)
                self._print_cause()
                return None
            if self._has_lost_proxy():
                self._stop(step, _KILL_AFTER_S)
                return self._failed(_WITHOUT_PROXY)
            if idle.note_activity(self._activity(), time.monotonic()):
                print(f"no request for {minutes:g} minutes: the job ends", flush=True)
                return self._end(step, handover=False)
            still = min(idle.count_still_s(time.monotonic()), time.monotonic() - probed)
            if still > _PROBE_AFTER_S:
                probed = time.monotonic()
                tokens, refused = self._chat(_PROBE_S)
                idle.note_own_request(self._activity(), tokens)
                if refused and step.poll() is None and not self.signals:
                    print(f"the engine hangs ({refused}): it is ended", flush=True)
                    self._stop(step, _KILL_AFTER_S)
                    return None

    def _end(self, step: subprocess.Popen[bytes], *, handover: bool) -> int:
        """End the engine when its answers have ended; submit a successor first where one is due."""
        if handover and self.site.number("KIMI_SUCCESSOR", 1):
            try:
                self.shown.successor = slurm.submit(_SCRIPT, self.site.folder, self.shown.job)
                print(f"the walltime ends: job {self.shown.successor} takes over", flush=True)
            except HostError as error:
                print(error.line, flush=True)
        self.shown.write("draining")
        self._stop(step, max(_KILL_AFTER_S, self.site.number("KIMI_SIGNAL_S", 300) - 30.0))
        self.shown.write("ended")
        return 0

    def _has_lost_proxy(self) -> bool:
        return self.proxy is not None and self.proxy.poll() is not None

    def _give_way(self) -> int:
        """Wait for the end of a job that is preempted.

        Where a partition has a grace time SLURM ends the step first, and then the rest. A job that
        ends by itself in between is not queued again.
        """
        print("the job is preempted: it waits for its end", flush=True)
        self.shown.write("ended")
        while not self.signals:
            time.sleep(0.2)
        return 0

    def _stop(self, step: subprocess.Popen[bytes], patience_s: float) -> None:
        """Make the head end, then the other nodes; kill those that do not."""
        write_json(os.path.join(self.folder, rank.STOP), {"at": time.time()})
        for patience, harder in ((patience_s, step.terminate), (_KILL_AFTER_S, step.kill)):
            try:
                step.wait(patience)
            except subprocess.TimeoutExpired:
                harder()
            else:
                return
        step.wait()

    def _print_cause(self) -> bool:
        """Print the cause that the lines of this start show; return whether one is known."""
        cause = output.format_cause(output.read_own_output(_AGAIN))
        for line in cause:
            print(line, flush=True)
        return bool(cause)

    def _failed(self, reason: str) -> int:
        self.shown.notes = [*self._notes(), reason]
        self.shown.write("failed")
        print(f"{reason}; fix it and  sbatch {_SCRIPT}", flush=True)
        return EXIT_TRANSIENT

    def _notes(self) -> list[str]:
        """Collect from the nodes what is not as planned."""
        found = []
        for number in range(len(self.shown.nodes)):
            told = read_json(os.path.join(self.folder, f"notes-{number}.json"))
            found += [f"{told.get('node')}: {note}" for note in told.get("notes") or []]
        return found

    def _pause(self, step: subprocess.Popen[bytes]) -> None:
        """Wait one interval, or until a signal or the engine's end."""
        until = time.monotonic() + self.step_s
        while time.monotonic() < until and not self.signals and step.poll() is None:
            time.sleep(min(0.2, self.step_s))

    def _client(self, timeout_s: float) -> api_client.Endpoint:
        fingerprint = tls.compute_fingerprint(self.shown.certificate)
        return api_client.Endpoint("127.0.0.1", self.shown.port, fingerprint, timeout_s)

    def _key(self) -> str:
        with open(os.path.join(self.folder, rank.KEY), encoding="ascii") as stream:
            return stream.read().strip()

    def _chat(self, timeout_s: float) -> tuple[float, str]:
        """Request one token; return its number of tokens, and the reason of a refusal."""
        body: dict[str, Any] = {
            "model": self.site.model(),
            "messages": [{"role": "user", "content": "Hello"}],
            "max_tokens": 1,
        }
        try:
            reply = api_client.request_chat(self._client(timeout_s), self._key(), body)
        except api_client.ApiError as error:
            return 0.0, str(error)
        if reply.status != _HTTP_OK:
            return 0.0, f"HTTP {reply.status}: {json.dumps(reply.json())[:200]}"
        usage = reply.json().get("usage") or {}
        return float(usage.get("total_tokens") or 0), ""

    def _activity(self) -> Activity | None:
        try:
            reply = api_client.call(self._client(_ASK_S), "GET", "/metrics", self._key())
        except api_client.ApiError:
            return None
        return read(reply.body.decode(errors="replace")) if reply.status == _HTTP_OK else None


def _remove(path: str) -> None:
    if os.path.exists(path):
        os.unlink(path)
