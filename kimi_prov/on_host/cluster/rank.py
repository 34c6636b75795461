"""`cluster rank --run DIR --module MODULE -- ARGUMENT...`: the engine's part on one node.

srun starts it once a node. It adds what only the run knows (its rank, the head's address, port,
certificate), and leaves out what the node's cgroup hides. The head ends when a file `stop` appears;
the others end when the head has ended: a rank that ends first breaks all answers.
"""

from __future__ import annotations

import argparse
import os
import signal
import socket
import subprocess
import time
from typing import TYPE_CHECKING

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.cluster.site import Site
from kimi_prov.on_host.engine import placement, request_bounds
from kimi_prov.on_host.engine.api_gate import API_KEY_FILE, JOB_KEY_FILE
from kimi_prov.on_host.system.files import read_json, write_json

if TYPE_CHECKING:
    from collections.abc import Mapping

SETTINGS = "run.json"
STOP = "stop"
HEAD_ENDED = "head-ended"
KEY = "job.key"
_POLL_INTERVAL_S = 0.5
# Seconds: a rank whose head is gone has no use and is ended after that.
_TIMEOUT_S = 20.0
_WHOLE_NODE = (
    "ask the administrator for ConstrainCores without cpuset.mems, or for the whole node "
    "(--exclusive)"
)


def main(argv: list[str]) -> int:
    """Run the engine of this node; return its exit status."""
    parser = argparse.ArgumentParser(prog="rank")
    parser.add_argument("--run", required=True)
    parser.add_argument("--module", required=True)
    parser.add_argument("arguments", nargs=argparse.REMAINDER)
    options = parser.parse_args(argv)
    site = Site.from_environment()
    number = int(os.environ.get("SLURM_PROCID", "0"))
    settings = read_json(os.path.join(options.run, SETTINGS))
    if not settings:
        raise HostError(f"{options.run}/{SETTINGS} is missing", "sbatch jobs/serve.sbatch")
    arguments = [word for word in options.arguments if word != "--"]
    notes: list[str] = []
    hidden = placement.find_hidden_nodes(site.plan["instances"][0]["numa_nodes"])
    arguments = placement.remove_hidden_binding(arguments, hidden, notes, _WHOLE_NODE)
    if reason := placement.explain_hidden_pools(arguments):
        raise HostError(reason, _WHOLE_NODE)
    gpus = len(site.plan["instances"][0]["gpus"])
    arguments = placement.fit_pools(arguments, len(os.sched_getaffinity(0)), gpus, notes)
    arguments += build_run_arguments(settings, number, options.run)
    environment = build_environment(site, settings, number, options.run, notes)
    line = placement.build_numactl(os.environ.get("KIMI_NUMACTL", "").split(), hidden, notes)
    line += [site.engine_python, "-I", site.program, "cluster", "engine", "-m", options.module]
    node = settings["nodes"][number] if number < len(settings["nodes"]) else socket.gethostname()
    for note in notes:
        print(f"{node}: {note}", flush=True)
    write_json(os.path.join(options.run, f"notes-{number}.json"), {"node": node, "notes": notes})
    return _supervise([*line, *arguments], environment, options.run, head=number == 0)


def build_run_arguments(settings: Mapping[str, object], number: int, folder: str) -> list[str]:
    """Return the arguments that only the run knows."""
    nodes = settings["nodes"]
    assert isinstance(nodes, list)  # noqa: S101 - written by the job itself
    found: list[str] = []
    if len(nodes) > 1:
        found += ["--nnodes", str(len(nodes)), "--node-rank", str(number)]
        found += ["--master-addr", str(settings["master_address"])]
        found += ["--master-port", str(settings["master_port"])]
    if number:
        return [*found, "--headless"]
    if "engine_port" in settings:
        # HAProxy of the job's first process speaks TLS.
        return [*found, "--host", "127.0.0.1", "--port", str(settings["engine_port"])]
    found += ["--host", "0.0.0.0", "--port", str(settings["port"])]  # noqa: S104 - behind the gate
    certificate, key = os.path.join(folder, "tls.crt"), os.path.join(folder, "tls.key")
    return [*found, "--ssl-certfile", certificate, "--ssl-keyfile", key]


def build_environment(
    site: Site, settings: Mapping[str, object], number: int, folder: str, notes: list[str]
) -> dict[str, str]:
    """Return the engine's environment: no home, the files of its keys, the network of its peers."""
    found = site.build_engine_environment()
    found["TRITON_CACHE_DIR"] = site.locate("cache", "triton")
    found |= {API_KEY_FILE: site.key_file, JOB_KEY_FILE: os.path.join(folder, KEY)}
    found |= request_bounds.build_environment(site.plan)
    allowed = sorted(os.sched_getaffinity(0))
    found |= placement.choose_threads(found, allowed, len(allowed), notes)
    nodes = settings["nodes"]
    if isinstance(nodes, list) and len(nodes) > 1:
        found |= placement.choose_network(found, str(nodes[1] if number == 0 else nodes[0]), notes)
    return found


def _supervise(line: list[str], environment: dict[str, str], folder: str, *, head: bool) -> int:
    """Run the engine until it ends or has to end: see the module's docstring."""
    ended = os.path.join(folder, HEAD_ENDED)
    try:
        child = subprocess.Popen(line, env=environment)
    except OSError as error:
        raise HostError(f"{line[0]}: {error.strerror}", "sbatch jobs/environment.sbatch") from None
    told: list[int] = []

    def on_signal(number: int, _frame: object) -> None:
        told.append(number)

    signal.signal(signal.SIGTERM, on_signal)
    signal.signal(signal.SIGINT, on_signal)
    asked = False
    gone_at: float | None = None
    while child.poll() is None:
        stop = bool(told) if head else False
        stop = stop or (head and os.path.exists(os.path.join(folder, STOP)))
        if not head and os.path.exists(ended):
            stop = True
        if told and not head:
            # The head's answers end first; a file says when they have ended.
            gone_at = gone_at or time.monotonic()
            stop = stop or time.monotonic() - gone_at > _TIMEOUT_S
        if stop and not asked:
            child.terminate()
            asked, gone_at = True, time.monotonic()
        elif asked and not head and time.monotonic() - (gone_at or 0.0) > _TIMEOUT_S:
            child.kill()
        time.sleep(_POLL_INTERVAL_S)
    if head:
        write_json(ended, {"status": child.returncode})
    if asked:
        return 0
    return child.returncode if child.returncode >= 0 else 128 - child.returncode
