"""`pod serve`: the engine's container.

Refuses with a figure what cannot work, then runs the plan's command line, with what only the pod
knows added: port, key, certificate, its part of a group. On SIGTERM it is out of service at once,
and its answers end; Kubernetes kills it when terminationGracePeriodSeconds are over.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import secrets
import signal
import socket
import subprocess
import time
from pathlib import Path

from kimi_prov.contract import pod
from kimi_prov.contract.arguments import remove_flags
from kimi_prov.contract.errors import EXIT_TRANSIENT, HostError
from kimi_prov.on_host.engine import output, placement, ready, request_bounds
from kimi_prov.on_host.engine.api_gate import API_KEY_FILE, JOB_KEY_FILE, METRICS_KEY_FILE
from kimi_prov.on_host.pod import fetch, limits, state
from kimi_prov.on_host.pod.mounts import Group, Mounts
from kimi_prov.on_host.system.files import write_atomic

_POLL_INTERVAL_S = 0.2
# Seconds: services and ingresses learn late that a pod ends; what they still send is answered.
_DEREGISTER_S = 5.0
# Seconds that a rank waits for a head whose name is not known yet, or whose answers end.
_HEAD_S = 600.0
_GPU_TIMEOUT_S = 120.0
_OF_THE_RUN = ("--host", "--port", "--ssl-certfile", "--ssl-keyfile")


def main(argv: list[str]) -> int:
    """Check and run the engine; return its exit status."""
    argparse.ArgumentParser(prog="serve", description="Check and run the engine.").parse_args(argv)
    mounts = Mounts.from_environment()
    state.clear(mounts)
    group = mounts.group()
    has = limits.read_limits(mounts.root)
    reasons = [fetch.explain_unverified(mounts), *limits.list_refusals(mounts.plan, has)]
    reasons.append(placement.explain_hidden_pools(mounts.plan["instances"][0]["argv"]))
    reasons = [reason for reason in reasons if reason]
    if reasons:
        raise HostError("; ".join(reasons))
    mounts.api_key()
    mounts.metrics_key_file()
    if not pod.is_proxied(mounts.plan):
        mounts.tls()
    planned = len(mounts.plan["instances"][0]["gpus"])
    if planned and ready.wait_for_gpus(list(range(planned)), _GPU_TIMEOUT_S):
        return EXIT_TRANSIENT
    notes: list[str] = []
    if group:
        _wait_for_name(group.leader)
    line, environment = (
        build_command(mounts, group, has, notes),
        build_environment(mounts, group, has, notes),
    )
    for note in notes:
        print(note, flush=True)
    return Server(mounts, group, line, environment).run()


def build_command(
    mounts: Mounts, group: Group | None, has: limits.Given, notes: list[str]
) -> list[str]:
    """Return the engine's command line: the plan's, with key check and the pod's arguments."""
    instance = mounts.plan["instances"][0]
    argv = [mounts.replace_cache(word) for word in instance["argv"]]
    hidden = placement.find_hidden_nodes(instance["numa_nodes"])
    words = placement.remove_hidden_binding(remove_flags(argv[1:], _OF_THE_RUN), hidden, notes)
    words = placement.fit_pools(words, int(has.cpus), len(instance["gpus"]), notes)
    line = placement.build_numactl(list(instance["numactl"]), hidden, notes)
    line += [argv[0], "-I", mounts.locate(pod.PROGRAM), "pod", "engine", *words]
    return [*line, *build_pod_arguments(mounts, group)]


def build_pod_arguments(mounts: Mounts, group: Group | None) -> list[str]:
    """Return the arguments that only the pod knows."""
    argv: list[str] = []
    if group:
        argv += ["--nnodes", str(group.size), "--node-rank", str(group.index)]
        argv += ["--master-addr", group.leader, "--master-port", str(pod.MASTER_PORT)]
        if group.index:
            return [*argv, "--headless"]
    if pod.is_proxied(mounts.plan):
        return [*argv, "--host", "127.0.0.1", "--port", str(state.find_engine_port(mounts))]
    argv += ["--host", "0.0.0.0", "--port", str(state.find_port(mounts))]  # noqa: S104 - behind the gate
    if pair := mounts.tls():
        argv += ["--ssl-certfile", pair[0], "--ssl-keyfile", pair[1]]
    return argv


def build_environment(
    mounts: Mounts, group: Group | None, has: limits.Given, notes: list[str]
) -> dict[str, str]:
    """Return the engine's environment; its keys are in files, never in a variable."""
    environment = mounts.build_engine_environment()
    environment |= {API_KEY_FILE: mounts.locate(pod.API_KEY), JOB_KEY_FILE: mounts.run(state.KEY)}
    environment |= request_bounds.build_environment(mounts.plan)
    if metrics := mounts.metrics_key_file():
        environment[METRICS_KEY_FILE] = metrics
    environment |= placement.choose_threads(
        environment, placement.list_available_cpus(), max(1, int(has.cpus)), notes
    )
    if group:
        environment |= placement.choose_network(environment, group.leader, notes)
    return environment


def _wait_for_name(leader: str) -> None:
    """Wait until the head's name is known: its pod may start after this one.

    The head waits for its own name too: it gives the address that its ranks reach.
    """
    until = time.monotonic() + _HEAD_S
    told = False
    while True:
        try:
            socket.getaddrinfo(leader, pod.MASTER_PORT)
        except OSError as error:
            if time.monotonic() > until:
                raise HostError(
                    f"the leader {leader} is not known: {error.strerror}",
                    "check the leader's pod; the LeaderWorkerSet makes its Service",
                ) from None
            if not told:
                print(f"waiting for the name of the leader, {leader}", flush=True)
                told = True
            time.sleep(1.0)
        else:
            return


class Server:
    """The engine as the one child of the container's first process."""

    def __init__(
        self, mounts: Mounts, group: Group | None, line: list[str], environment: dict[str, str]
    ) -> None:
        self._mounts = mounts
        self._group = group
        self._line = line
        self._environment = environment
        self._told_at: float | None = None

    def run(self) -> int:
        """Run the engine until it ends or has to end; return the container's exit status."""
        key = Path(self._mounts.run(state.KEY))
        write_atomic(key, secrets.token_urlsafe(32) + "\n", 0o600)
        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, self._on_signal)
        try:
            child = subprocess.Popen(
                self._line,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                cwd="/",
            )
        except OSError as error:
            raise HostError(
                f"{self._line[0]}: {error.strerror}", "build the image again: make image"
            ) from None
        copied = output.OutputCopy(child)
        head, secure = not (self._group and self._group.index), "--ssl-certfile" in self._line
        state.begin(self._mounts, child.pid, head=head, secure=secure)
        asked = False
        while child.poll() is None:
            if self._told_at is not None and not asked and self._may_end():
                with contextlib.suppress(ProcessLookupError):
                    child.terminate()
                asked = True
            _reap(child.pid)
            time.sleep(_POLL_INTERVAL_S)
        if asked or self._told_at is not None:
            print("ended as requested", flush=True)
            return 0
        status = child.returncode if child.returncode >= 0 else 128 - child.returncode
        ended = f"the engine ended with status {status}"
        # A signal leaves no line of the engine.
        cause = output.format_cause(copied.read_end() + f"\n{ended}\n".encode())
        hint = "" if cause else "; its own lines above say why"
        print("\n".join([f"{ended}{hint}", *cause]), flush=True)
        return status or EXIT_TRANSIENT

    def _on_signal(self, _number: int, _frame: object) -> None:
        if self._told_at is None:
            self._told_at = time.monotonic()
            state.end(self._mounts)

    def _may_end(self) -> bool:
        """Return whether the engine may end: a head after a while, a rank when its head is gone."""
        since = time.monotonic() - (self._told_at or 0.0)
        if self._group and self._group.index:
            return since > _HEAD_S or not _is_listening(
                self._group.leader, state.find_port(self._mounts)
            )
        wait = self._environment.get("KIMI_DEREGISTER_S", "")
        return since > (float(wait) if wait.replace(".", "", 1).isdigit() else _DEREGISTER_S)


def _is_listening(host: str, port: int) -> bool:
    """Return whether the head still answers: its answers need this rank."""
    try:
        with socket.create_connection((host, port), 5):
            return True
    except OSError:
        return False


def _reap(own: int) -> None:
    """Reap orphaned processes: the first process of a container becomes their parent."""
    while True:
        try:
            found = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if found is None or found.si_pid == own:
            return
        with contextlib.suppress(ChildProcessError):
            os.waitpid(found.si_pid, 0)
