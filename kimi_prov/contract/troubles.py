"""A trouble that a log shows: what recognises it, what causes it, what it brings, what to do.

The rows are data (kimi_prov/catalog/troubles); this is what a machine needs of one.

Decides: what `diagnose` recognises (the form of a row, and which effect brings which).
Held by: tests/unit/catalog/test_troubles.py, tests/unit/on_host/troubles.
"""

from __future__ import annotations

import functools
import re
from dataclasses import dataclass, field
from typing import Literal

Kind = Literal["fault", "symptom", "general", "consequence", "harmless"]
Confidence = Literal["certain", "likely", "possible"]
Effect = Literal[
    "hardware_error",
    "xid_follow_up",
    "corrected_error",
    "fabric_down",
    "cuda_error",
    "nccl_error",
    "network_error",
    "hang",
    "rpc_timeout",
    "gpu_memory",
    "host_memory",
    "load_error",
    "package_error",
    "kernel_error",
    "argument_error",
    "download_error",
    "disk_full",
    "worker_end",
    "engine_end",
    "service_end",
    "restart_loop",
    "http_error",
    "job_end",
]
# What each effect brings by itself, where a log shows both.
BRINGS: dict[str, tuple[str, ...]] = {
    "hardware_error": ("cuda_error", "xid_follow_up", "hang"),
    "fabric_down": ("cuda_error",),
    "cuda_error": ("nccl_error", "worker_end"),
    "nccl_error": ("hang", "worker_end"),
    "network_error": ("nccl_error", "hang", "download_error", "worker_end"),
    "hang": ("rpc_timeout", "worker_end"),
    "rpc_timeout": ("engine_end",),
    "gpu_memory": ("worker_end",),
    "host_memory": ("worker_end",),
    "load_error": ("worker_end",),
    "package_error": ("load_error", "worker_end"),
    "kernel_error": ("cuda_error", "worker_end"),
    "argument_error": ("engine_end",),
    "download_error": ("load_error",),
    "disk_full": ("download_error", "load_error", "worker_end"),
    "worker_end": ("nccl_error", "hang", "engine_end"),
    "engine_end": ("service_end", "http_error"),
    "service_end": ("http_error", "restart_loop", "job_end"),
}


@dataclass(frozen=True)
class Trouble:
    """A row: `match` finds its line, and the other expressions say what must stand elsewhere.

    `kind`: a fault is a root cause. A symptom tells what happened and not why, and counts where no
    cause is known. A general line is what the system refused a program, and counts where neither
    is known and no engine answered later. A consequence is no cause; where nothing else is known,
    one with a `fix` says what ended and where the cause stands. A harmless line is one that people
    fear.
    `after`, `not_after`: a line that stands, and one that does not, at most `within` lines before.
    `also`, `unless`: lines that must, and must not, stand anywhere. `times`: so many lines that
    match, within `within` lines.
    `effect`: as what another trouble may have caused this one. `leads_to`: effects that follow.
    `same`: a group: where this row and its cause both name one, they name the same.
    `cause` and `fix` take the text of a group where they have its name: <name>; `unknown` has what
    stands there for a group that matched nothing.
    """

    id: str
    kind: Kind
    title: str
    match: tuple[str, ...]
    cause: str
    fix: str = ""
    after: str | None = None
    not_after: str | None = None
    within: int = 400
    also: tuple[str, ...] = ()
    unless: tuple[str, ...] = ()
    times: int = 1
    effect: Effect | None = None
    leads_to: tuple[Effect, ...] = ()
    same: str | None = None
    confidence: Confidence = "likely"
    unknown: dict[str, str] = field(default_factory=dict)


def list_effects(leads_to: tuple[str, ...]) -> set[str]:
    """Return every effect that follows from these, directly or through others."""
    effects: set[str] = set()
    waiting = list(leads_to)
    while waiting:
        effect = waiting.pop()
        if effect not in effects:
            effects.add(effect)
            waiting += BRINGS.get(effect, ())
    return effects


@functools.cache
def find_literals(pattern: str) -> tuple[str, ...]:
    """Return for each alternative of an expression the longest text that its matches all have.

    In small letters and without digits; it looks at what stands outside of groups and classes. It
    finds the lines that are worth the expression itself.
    """
    longest, run, depth, at = [""], "", 0, 0
    text = re.sub(r"\A\(\?[a-z]+\)", "", pattern)
    while at < len(text):
        sign, literal, at = _read_piece(text, at)
        depth += (sign == "(") - (sign == ")")
        if sign in ("*", "?", "{"):
            run = run[:-1]
        if not sign and not depth and not literal.isdigit():
            run += literal
            continue
        longest[-1], run = max(longest[-1], run, key=len), ""
        if sign == "|" and not depth:
            longest.append("")
    longest[-1] = max(longest[-1], run, key=len)
    return tuple(one.lower() for one in longest)


def _read_piece(text: str, at: int) -> tuple[str, str, int]:
    """Return a sign of an expression or else a plain character, and where the next begins."""
    sign = text[at]
    if sign == "\\":
        escaped = text[at + 1 : at + 2]
        return ("\\", "", at + 2) if escaped.isalnum() else ("", escaped, at + 2)
    if sign == "[":
        end = at + 2 + (text[at + 1 : at + 2] == "^")
        while text[end] != "]":
            end += 2 if text[end] == "\\" else 1
        return sign, "", end + 1
    if sign == "{":
        return sign, "", text.index("}", at) + 1
    return (sign, "", at + 1) if sign in "().^$|*+?" else ("", sign, at + 1)
