"""Machines that no engine of ours runs on, told by what their owners write or paste."""

from __future__ import annotations

import re

from kimi_prov.errors import UserError

_MAX_LENGTH = 200_000
_MAC = re.compile(
    r"\bApple (M\d(?: (?:Ultra|Max|Pro))?)\b|\bDarwin Kernel Version\b|\bModel Name: Mac\b"
)
_NO_MAC = re.compile(r"\b(?:EPYC|Xeon|Threadripper|NVIDIA|Instinct|x86_64)\b", re.IGNORECASE)


def refuse(text: str, name: str) -> None:
    """Raise UserError where a text is that of a Mac and of nothing else."""
    start = text[:_MAX_LENGTH]
    mac = _MAC.search(start)
    if mac is None or _NO_MAC.search(start):
        return
    raise UserError(
        f"{name}: this is a Mac{f' (Apple {mac[1]})' if mac[1] else ''}: no engine of ours runs on "
        "macOS or on Apple's processors",
        fix="serve it by MLX or llama.cpp, which this program does not provision; or check a Linux "
        "server, of x86-64 for the engines' locks",
    )
