"""Puts in place what the proxy reads beside its configuration: its directory, certificate, keys."""

from __future__ import annotations

import json
import sys
from typing import Any

from kimi_prov.target import keys, tls
from kimi_prov.target.edge import (
    PROXY_UNIT,
    PROXY_USER,
    EdgeError,
    Paths,
    answer,
    make_directory,
    run,
)


def ensure(paths: Paths, wish: dict[str, Any], *, check: bool = False) -> dict[str, Any]:
    """Bring certificate and keys to `wish` {"tls": {...}, "api_keys": {name: sha256}}.

    The running proxy takes new keys over at once and a new certificate by a graceful reload.
    """
    made = make_directory(paths.proxy, 0o750, PROXY_USER, check=check)
    certificate = tls.ensure(paths, wish["tls"], check=check)
    known = keys.ensure(paths, wish["api_keys"], check=check)
    if certificate["changed"] and not check and paths.socket.exists():
        done = run("systemctl", "reload", PROXY_UNIT)
        if done.returncode != 0:
            raise EdgeError("the proxy refused the new certificate: " + done.stderr.strip())
    return {
        "changed": made or certificate["changed"] or known["changed"],
        "certificate": certificate,
        "keys": known,
    }


def main(argv: list[str]) -> int:
    """`proxy-ensure [--check] < WISH`: one JSON object in, one out; never a key."""
    try:
        return answer(
            {"ok": True, **ensure(Paths(), json.load(sys.stdin), check="--check" in argv)}
        )
    except EdgeError as error:
        answer({"ok": False, "error": str(error)})
        return 1
