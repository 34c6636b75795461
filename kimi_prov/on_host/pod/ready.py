"""`pod ready [--live]`: the pod's probes; 0, or 1 with one line why.

    ready           this pod's engine answered a chat of one token, and goes on since
    ready --live    its process lives; once it has answered, it makes steps or answers

A chat may wait behind long prompts for longer than a probe has time: an engine whose counters
change is at work, and is not asked. A rank of a group answers no requests: there its process
counts.
"""

from __future__ import annotations

import argparse
import http.client
import json
import ssl
import time
from typing import Any

from kimi_prov.contract import clean_text, processes
from kimi_prov.contract.errors import EXIT_TRANSIENT
from kimi_prov.on_host.engine.metrics import count_steps
from kimi_prov.on_host.pod import state
from kimi_prov.on_host.pod.mounts import Mounts
from kimi_prov.on_host.system.files import read_text

# Seconds for all requests of one run: a probe's own limit of 60 s would end it without a message.
_TIMEOUT_S = 50.0
# The share of that for the counters; a chat has the rest.
_METRICS_SHARE = 0.2
_MIN_S = 0.1
_OK = 200


def main(argv: list[str]) -> int:
    """Check once; print why the pod is not ready."""
    parser = argparse.ArgumentParser(prog="ready")
    parser.add_argument("--live", action="store_true")
    parser.add_argument("--timeout", type=float, default=_TIMEOUT_S, metavar="SECONDS")
    options = parser.parse_args(argv)
    reason = explain_not_ready(
        Mounts.from_environment(), live=options.live, timeout_s=options.timeout
    )
    if reason is None:
        return 0
    print(clean_text.clean_line(reason), flush=True)
    return EXIT_TRANSIENT


def explain_not_ready(mounts: Mounts, *, live: bool, timeout_s: float) -> str | None:
    """Return why the pod is not ready, or does not live; None where it is ready and lives."""
    found = state.read_running(mounts)
    if not found:
        # Before the start there are checks, and they end by themselves.
        return None if live else "the engine was not started yet"
    if not processes.is_alive(found.get("pid")):
        return "the engine ended; the log of the container says why"
    if state.is_ending(mounts):
        return None if live else "the pod was told to end: it takes no more requests"
    seen = state.read_seen(mounts)
    if not found.get("head") or (live and not seen.get("answered")):
        return None
    until = time.monotonic() + timeout_s
    share_s = timeout_s * _METRICS_SHARE
    counts, before = _read_counts(mounts, share_s), seen.get("counts")
    moved = bool(counts and before) and counts != before
    reason = None if moved else request_token(mounts, _compute_left(until))
    if reason is None:
        if not moved:
            # The chat that was just answered has changed the counters.
            counts = _read_counts(mounts, min(share_s, _compute_left(until)))
        state.save_seen(mounts, {"answered": True, "counts": counts})
    return reason


def _compute_left(until: float) -> float:
    return max(_MIN_S, until - time.monotonic())


def _read_counts(mounts: Mounts, timeout_s: float) -> dict[str, float]:
    status, text = send_request(mounts, "GET", "/metrics", None, timeout_s)
    return count_steps(text) if status == _OK else {}


def request_token(mounts: Mounts, timeout_s: float) -> str | None:
    """Request one token from the pod's engine; return None when it came, else the reason."""
    body = {
        "model": mounts.model(),
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 1,
    }
    status, text = send_request(mounts, "POST", "/v1/chat/completions", body, timeout_s)
    if status == _OK:
        return None
    return f"HTTP {status}: {text[:200]}" if status else text


def send_request(
    mounts: Mounts, method: str, path: str, body: dict[str, Any] | None, timeout_s: float
) -> tuple[int, str]:
    """Send one request to the pod's own engine; return status and text, or 0 and the reason.

    Only this engine has the pod's key, so another process on the port is not mistaken for it.
    """
    connection: http.client.HTTPConnection
    # The mounted key may be newer than the engine's.
    if state.read_running(mounts).get("secure"):
        # On the loopback, identified by the key: the certificate has other names.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
        connection = http.client.HTTPSConnection(
            "127.0.0.1", state.find_engine_port(mounts), timeout=timeout_s, context=context
        )
    else:
        connection = http.client.HTTPConnection(
            "127.0.0.1", state.find_engine_port(mounts), timeout=timeout_s
        )
    key = read_text(mounts.run(state.KEY)).strip()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    try:
        connection.request(method, path, json.dumps(body) if body else None, headers)
        answer = connection.getresponse()
        return answer.status, answer.read().decode(errors="replace")
    except ConnectionRefusedError:
        return 0, "the engine is loading"
    except (OSError, http.client.HTTPException) as error:
        return 0, f"{method} {path}: {error or type(error).__name__}"
    finally:
        connection.close()
