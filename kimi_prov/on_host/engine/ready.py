"""`ready` makes readiness part of a unit's start: it returns when the model answers.

    ready --weights DIR                 before the engine: every file there is verified
    ready --gpus 0,1                    before the engine: nothing else holds these GPUs' memory
    ready --port N --model M --pid P    after it was started: a chat of one token was answered

The unit's TimeoutStartSec is the limit. Only for the GPUs it is two minutes: after that their
memory is not held by the rest of a crashed process, and a person has to look.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

from kimi_prov.contract import key_rules, processes
from kimi_prov.contract.paths import MACHINE_KEY, MODEL_VERIFIED
from kimi_prov.on_host.system import machine_key
from kimi_prov.on_host.system.process import run

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

_POLL_INTERVAL_S = 1.0
_TIMEOUT_S = 120.0
# Another process may hold the port and answer nothing: the engine's end is seen all the same.
_HEALTH_TIMEOUT_S = 30.0
# Engines that are asked at once.
_MAX_THREADS = 32
# Bytes: more than any answer of an engine, also with the metrics of many ranks.
_MAX_BYTES = 32 << 20
_GPU_TIMEOUT_S = 120.0
# MiB that the driver itself, and a desktop, may hold.
_MIN_HELD_MIB = 2048


def main(argv: list[str]) -> int:
    """Wait; return 0 when it is ready, 1 when the process that it waits for has ended."""
    parser = argparse.ArgumentParser(prog="ready")
    parser.add_argument("--weights", metavar="DIR")
    parser.add_argument("--gpus", metavar="LIST")
    parser.add_argument("--patience", type=float, default=_GPU_TIMEOUT_S, metavar="SECONDS")
    parser.add_argument("--port", type=int)
    parser.add_argument("--model")
    parser.add_argument("--pid", type=int)
    options = parser.parse_args(argv)
    if options.weights:
        return wait_for_weights(options.weights)
    if options.gpus:
        return wait_for_gpus([int(part) for part in options.gpus.split(",")], options.patience)
    if not (options.port and options.model and options.pid):
        parser.error("--weights, or --gpus, or --port, --model and --pid")
    return wait_for_chat(options.port, options.model, options.pid)


def wait_for_weights(directory: str) -> int:
    """Wait for the mark that is written after the last file was verified."""
    mark = os.path.join(directory, MODEL_VERIFIED)
    if not os.path.exists(mark):
        print(f"waiting for verified weights in {directory}", flush=True)
    while not os.path.exists(mark):
        time.sleep(_POLL_INTERVAL_S)
    return 0


def wait_for_gpus(
    gpus: list[int], patience_s: float, own_mib: Mapping[str, int] | None = None
) -> int:
    """Wait until these GPUs' memory is free; on a timeout log who holds it and return 1.

    `own_mib`: what an engine that sleeps has in use itself, by the GPU's number.
    """
    started = time.monotonic()
    reported = ""
    while True:
        reason = _find_gpu_users(gpus, own_mib or {})
        if reason is None:
            return 0
        if reason != reported:
            print(f"waiting for the GPUs: {reason}", flush=True)
            reported = reason
        if time.monotonic() - started > patience_s:
            print(
                f"gave up after {patience_s:.0f} s: {reason}; end what holds the memory, or "
                "restart the machine where nvidia-smi lists nothing",
                flush=True,
            )
            return 1
        time.sleep(_POLL_INTERVAL_S)


def read_used_mib() -> dict[str, int] | None:
    """Read the MiB in use on each GPU, by its number; None where nvidia-smi does not answer."""
    used = _read_gpus()
    if used is None:
        return None
    return {str(n): int(row[2]) for n, row in used.items() if row[2].isdigit()}


def _read_gpus() -> dict[int, list[str]] | None:
    """Read number, UUID and MiB in use of each GPU."""
    table = _run_nvidia_smi("--query-gpu=index,uuid,memory.used")
    rows = [[cell.strip() for cell in line.split(",")] for line in (table or "").splitlines()]
    used = {int(row[0]): row for row in rows if len(row) == 3 and row[0].isdigit()}
    return None if table is None else used


def _find_gpu_users(gpus: list[int], own_mib: Mapping[str, int]) -> str | None:
    """Return what keeps the GPUs' memory in use; None where it is free."""
    used = _read_gpus()
    if used is None or not set(gpus) <= set(used):
        return "nvidia-smi does not answer for all of them"
    full = [
        n
        for n in gpus
        if used[n][2].isdigit() and int(used[n][2]) > _MIN_HELD_MIB + own_mib.get(str(n), 0)
    ]
    if not full:
        return None
    holders = _list_gpu_processes()
    return "; ".join(
        f"GPU {n}: {used[n][2]} MiB in use by {holders.get(used[n][1], 'no process that it lists')}"
        for n in full
    )


def _list_gpu_processes() -> dict[str, str]:
    """List the processes on each GPU, by its UUID."""
    found: dict[str, list[str]] = {}
    for line in (
        _run_nvidia_smi("--query-compute-apps=gpu_uuid,pid,process_name") or ""
    ).splitlines():
        cells = [cell.strip() for cell in line.split(",", 2)]
        if len(cells) == 3:
            # nvidia-smi names another user's process only to root.
            name = "process" if cells[2].startswith("[") else cells[2]
            found.setdefault(cells[0], []).append(f"{name} ({cells[1]})")
    return {uuid: ", ".join(names) for uuid, names in found.items()}


def _run_nvidia_smi(question: str) -> str | None:
    done = run("nvidia-smi", question, "--format=csv,noheader,nounits", timeout=_TIMEOUT_S)
    return done.stdout if done.returncode == 0 else None


def wait_for_chat(port: int, model: str, pid: int) -> int:
    """Wait until the engine on this port answers one token; it must be that of process `pid`."""
    started = time.monotonic()
    reported = ""
    while True:
        if not processes.is_alive(pid):
            print("the engine ended before it was ready; its own lines above say why", flush=True)
            return 1
        reason = _check_health(port) or request_token(port, model)
        if reason is None:
            print(f"ready after {time.monotonic() - started:.0f} s", flush=True)
            return 0
        if reason != reported:
            print(f"not ready yet: {reason}", flush=True)
            reported = reason
        time.sleep(_POLL_INTERVAL_S)


def _check_health(port: int) -> str | None:
    return send_request(port, "GET", "/health", timeout_s=_HEALTH_TIMEOUT_S)[0]


def request_token(
    port: int, model: str, *, timeout_s: float = _TIMEOUT_S, asker: str = ""
) -> str | None:
    """Request one token from the engine; return None when it came, else the reason.

    `asker`: the name under which it is requested, as the proxy passes the name of a client's key.
    """
    question = {
        "model": model,
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 1,
    }
    body = json.dumps(question)
    return send_request(
        port, "POST", "/v1/chat/completions", body, timeout_s=timeout_s, asker=asker
    )[0]


def request_metrics(ports: Sequence[int], timeout_s: float) -> list[tuple[str | None, str]]:
    """Ask all engines at once for /metrics: those that are silent take one time-out together."""

    def request(port: int) -> tuple[str | None, str]:
        return send_request(port, "GET", "/metrics", timeout_s=timeout_s)

    if not ports:
        return []
    with ThreadPoolExecutor(min(len(ports), _MAX_THREADS)) as pool:
        return list(pool.map(request, ports))


def send_request(
    port: int,
    method: str,
    path: str,
    body: str | None = None,
    *,
    timeout_s: float = _TIMEOUT_S,
    asker: str = "",
) -> tuple[str | None, str]:
    """Send one request over the loopback, with the machine key.

    Returns None when it was answered with 200, else the reason, and the answer's text.
    """
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout_s)
    key = machine_key.read(Path(MACHINE_KEY))
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    if asker:
        headers[key_rules.KEY_HEADER] = asker
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        content = answer.read(_MAX_BYTES + 1)
    except ConnectionRefusedError:
        return "the engine is loading", ""
    except (OSError, http.client.HTTPException) as error:
        return f"{method} {path}: {error or type(error).__name__}", ""
    finally:
        connection.close()
    if len(content) > _MAX_BYTES:
        return f"{method} {path}: more than {_MAX_BYTES >> 20} MiB", ""
    text = content.decode(errors="replace")
    if answer.status == 200:
        return None, text
    return f"{method} {path}: {answer.status} {text[:200]}", text
