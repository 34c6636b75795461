"""How ssh is called, and how its messages are quoted."""

from __future__ import annotations

from kimi_prov.contract import clean_text

SSH = (
    *("ssh", "-o", "BatchMode=yes", "-o", "ConnectTimeout=20"),
    *("-o", "ServerAliveInterval=15", "-o", "ServerAliveCountMax=4"),
)


def find_last_line(messages: str) -> str:
    """Return the last line of a program's messages, clean and short."""
    return clean_text.clean_line(messages.rpartition("\n")[2])[:300] or "it gave no reason"
