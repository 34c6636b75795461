"""The short speed test: the same few requests to an engine before and after a switch.

Decides: the speed of a switch.
Held by: tests/unit/on_host/history/test_speed.py,
  tests/component/on_host/history/test_speed_measured.py.
"""

from __future__ import annotations

import http.client
import json
import time
from typing import TYPE_CHECKING, Any

from kimi_prov.on_host.system import machine_key

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kimi_prov.contract.documents.plan import Plan
    from kimi_prov.contract.paths import Paths

# A few answers of so many tokens: the best counts, because other load only slows it.
TOKENS = 48
ROUNDS = 3
# Seconds that the second word of a stream is waited for.
_TIMEOUT_S = 300.0
_QUESTION = "Count from one to one hundred, in words."


def measure(paths: Paths, plan: Plan, rounds: int = ROUNDS) -> dict[str, Any] | None:
    """Measure the first instance on the loopback: tokens per second of one request.

    `first_token_s` is the least time to a first token. None where it did not answer a whole round.
    """
    port = next((row["port"] for row in plan.get("instances") or () if row.get("port")), None)
    if port is None:
        return None
    body = {
        "model": plan["model"]["served_names"][0],
        "messages": [{"role": "user", "content": _QUESTION}],
        "max_tokens": TOKENS,
        "temperature": 0,
        "ignore_eos": True,
        "stream": True,
        "stream_options": {"include_usage": True},
    }
    found = [row for row in (_measure_round(paths, port, body) for _ in range(rounds)) if row]
    if not found:
        return None
    return {
        "decode_tok_s": round(max(row[0] for row in found), 2),
        "first_token_s": round(min(row[1] for row in found), 3),
        "tokens": TOKENS,
        "rounds": len(found),
    }


def _measure_round(paths: Paths, port: int, body: Mapping[str, Any]) -> tuple[float, float] | None:
    """Return tokens per second after the first token, and the seconds until that."""
    times: list[float] = []
    tokens = 0
    started = time.monotonic()
    try:
        for piece in _stream_pieces(paths, port, body):
            if piece.get("choices"):
                times.append(time.monotonic() - started)
            tokens = (piece.get("usage") or {}).get("completion_tokens") or tokens
    except (OSError, ValueError, http.client.HTTPException):
        return None
    if len(times) < 2 or tokens < 2 or times[-1] <= times[0]:
        return None
    return (tokens - 1) / (times[-1] - times[0]), times[0]


def _stream_pieces(paths: Paths, port: int, body: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    key = machine_key.read(paths.machine_key)
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=_TIMEOUT_S)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    try:
        connection.request("POST", "/v1/chat/completions", json.dumps(body), headers)
        with connection.getresponse() as answer:
            if answer.status != 200:
                raise ValueError(f"HTTP {answer.status}")
            for raw in answer:
                data = raw.decode(errors="replace").strip()
                if data.startswith("data:") and data[5:].strip() != "[DONE]":
                    piece = json.loads(data[5:])
                    if isinstance(piece, dict):
                        yield piece
    finally:
        connection.close()


def explain_too_slow(
    before: Mapping[str, Any] | None, after: Mapping[str, Any] | None, least: float | None
) -> str | None:
    """Return that the new engine is below `least` of the old one's speed; None where it is not.

    Without a measurement of the old engine there is no limit.
    """
    if least is None or before is None:
        return None
    if after is None:
        return "its speed could not be measured"
    share = after["decode_tok_s"] / before["decode_tok_s"]
    if share >= least:
        return None
    return (
        f"it makes {after['decode_tok_s']:.1f} tokens a second, {share:.0%} of the "
        f"{before['decode_tok_s']:.1f} before; kimi_upgrade_min_speed is {least:g}"
    )


def describe_both(before: Mapping[str, Any] | None, after: Mapping[str, Any] | None) -> str:
    """Describe both speeds in one phrase."""
    if after is None:
        return "speed not measured"
    told = f"{after['decode_tok_s']:.1f} tokens a second"
    return f"{told}, {before['decode_tok_s']:.1f} before" if before else told
