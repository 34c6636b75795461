"""`ready` makes readiness part of a unit's start: it returns when the model answers.

    ready --weights DIR                 before the engine: every file there is verified
    ready --port N --model M --pid P    after it was started: a chat of one token was answered

Neither has a limit of its own; the unit's TimeoutStartSec is the limit.
"""

from __future__ import annotations

import argparse
import http.client
import json
import os
import time
from typing import List, Optional

from kimi_prov.target.layout import MODEL_VERIFIED

_PAUSE_S = 1.0
_TIMEOUT_S = 120.0


def main(argv: List[str]) -> int:
    """Wait; 0 when it is ready, 1 when the process that it waits for is gone."""
    parser = argparse.ArgumentParser(prog="ready")
    parser.add_argument("--weights", metavar="DIR")
    parser.add_argument("--port", type=int)
    parser.add_argument("--model")
    parser.add_argument("--pid", type=int)
    options = parser.parse_args(argv)
    if options.weights:
        return wait_for_weights(options.weights)
    if not (options.port and options.model and options.pid):
        parser.error("--weights, or --port, --model and --pid")
    return wait_for_chat(options.port, options.model, options.pid)


def wait_for_weights(directory: str) -> int:
    """Wait for the mark that is written after the last file was verified."""
    mark = os.path.join(directory, MODEL_VERIFIED)
    if not os.path.exists(mark):
        print(f"waiting for verified weights in {directory}", flush=True)
    while not os.path.exists(mark):
        time.sleep(_PAUSE_S)
    return 0


def wait_for_chat(port: int, model: str, pid: int) -> int:
    """Wait until the engine on this port answers one token; it must be process `pid`'s."""
    started = time.monotonic()
    said = ""
    while True:
        if not _alive(pid):
            print("the engine ended before it was ready; its own lines above say why", flush=True)
            return 1
        trouble = _health(port) or _chat(port, model)
        if trouble is None:
            print(f"ready after {time.monotonic() - started:.0f} s", flush=True)
            return 0
        if trouble != said:
            print(f"not ready yet: {trouble}", flush=True)
            said = trouble
        time.sleep(_PAUSE_S)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:  # it lives, as another user
        return True
    return True


def _health(port: int) -> Optional[str]:
    return _ask(port, "GET", "/health", None)


def _chat(port: int, model: str) -> Optional[str]:
    question = {
        "model": model,
        "messages": [{"role": "user", "content": "Hello"}],
        "max_tokens": 1,
    }
    return _ask(port, "POST", "/v1/chat/completions", json.dumps(question))


def _ask(port: int, method: str, path: str, body: Optional[str]) -> Optional[str]:
    """Send one request over the loopback; None when it was answered with 200, else why not."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    try:
        connection.request(method, path, body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        text = answer.read().decode(errors="replace")
    except ConnectionRefusedError:
        return "the engine is loading"
    except (OSError, http.client.HTTPException) as error:
        return f"{method} {path}: {error or type(error).__name__}"
    finally:
        connection.close()
    return None if answer.status == 200 else f"{method} {path}: {answer.status} {text[:200]}"
