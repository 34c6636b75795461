"""Runs the full suite on a lab host, and harms what it serves."""

from __future__ import annotations

import json
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import closed_form
from machines import kimi_prov

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from machines import Host

ENGINE = "kimi-serve@0.service"


def full(host: Host, code: int, *words: str | Path) -> dict[str, Any]:
    """The document of a run of the full suite on one host."""
    hosts = (host.inventory, "--limit", host.name, "--suite", "full", "--format", "json")
    done = kimi_prov("verify", *hosts, *words)
    assert done.returncode == code, done.stdout + done.stderr
    document = json.loads(done.stdout)
    closed_form.validate(document, "verify")
    return dict(document["hosts"][host.name])


def rows(host: Host, code: int, *words: str | Path) -> dict[str, dict[str, Any]]:
    """The rows of a run of the full suite, by name."""
    return {row["name"]: row for row in full(host, code, *words)["checks"]}


def restart(host: Host) -> None:
    """Have the engine read its files again, and wait until it serves."""
    host.ssh(f"systemctl restart '{ENGINE}'", timeout=900)


@contextmanager
def kept(host: Host, file: str) -> Iterator[str]:
    """Put a file back as it was, time and all."""
    host.ssh(f"cp -a {file} /root/kept")
    try:
        yield file
    finally:
        host.ssh(f"cp -a /root/kept {file} && rm /root/kept")
