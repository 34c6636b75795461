"""Makes a host share its weights with a neighbour for as long as the neighbour fetches them.

    share key    on the host that takes: {"needed", "key_sha256"}; the key itself stays there
    share open   on the host that gives, with that hash: {"port", "certificate_sha256"}
    share take   on the host that takes, with that fingerprint: the download asks there first
    share drop   on the host that takes, afterwards
    share close  on the host that gives; with its last taker the unit ends
    share serve  what kimi-share.service runs

Each but the last reads one JSON object from standard input. All files are in /run: after a boot a
host shares nothing, and fetches from the source.
"""

from __future__ import annotations

import hashlib
import json
import secrets
import socket
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Callable

from kimi_prov.contract import paths, protection, unit_names
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.endpoint import firewall, tls
from kimi_prov.on_host.system import file_lock, process, sandbox, units
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.files import (
    make_directory,
    read_json,
    read_text,
    remove,
    write_atomic,
    write_json,
)
from kimi_prov.on_host.weights import fetch, share
from kimi_prov.on_host.weights.neighbour import Neighbour

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.answers import ShareKeyAnswer, ShareOpenAnswer

# Seconds for an open or a close on the same host, for another of its takers.
_LOCK_S = 120.0
# Seconds for Python's start on a busy machine.
_START_S = 60.0


def ensure_key() -> ShareKeyAnswer:
    """Make this host's key where there is none; return its hash, and whether it has to fetch."""
    known = read_json(paths.NEIGHBOUR)
    own = known.get("key") or secrets.token_urlsafe(32)
    if "key" not in known:
        _make_closed_folder()
        write_json(paths.NEIGHBOUR, {"key": own}, durable=False, mode=0o600)
    parts = [part for part in fetch.Config.load(paths.WEIGHTS).parts() if part.remote]
    return {
        "needed": not all(fetch.find_verified_manifest(part) for part in parts),
        "key_sha256": hashlib.sha256(str(own).encode()).hexdigest(),
    }


def set_neighbour(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Make the download ask a neighbour before the source."""
    known = read_json(paths.NEIGHBOUR)
    if not known.get("key"):
        raise HostError(f"{paths.NEIGHBOUR}: there is no key", "run `kimi-prov apply` again")
    document = {
        "key": known["key"],
        "name": wanted["name"],
        "address": wanted["address"],
        "port": wanted["port"],
        "certificate_sha256": wanted["certificate_sha256"],
        "limits": {"slowest": wanted["slowest"]},
    }
    write_json(paths.NEIGHBOUR, document, durable=False, mode=0o600)
    if Neighbour.load(paths.NEIGHBOUR) is None:
        raise HostError(f"{paths.NEIGHBOUR}: {sorted(wanted)} do not name a neighbour")
    return {}


def forget_neighbour() -> dict[str, Any]:
    """Forget the neighbour and the key."""
    remove(paths.NEIGHBOUR)
    return {}


def open_for(wanted: Mapping[str, Any]) -> ShareOpenAnswer:
    """Share with one more neighbour: by its key's hash, from its address, at the plan's port."""
    certificate = Path(paths.SHARE_PEM)
    with _lock():
        _make_closed_folder()
        if not read_text(certificate):
            write_atomic(certificate, tls.make_self_signed([socket.gethostname()]), 0o600)
        known = read_json(paths.SHARE)
        state = units.read_states(unit_names.SHARE).get(unit_names.SHARE, {}).get("state")
        # Takers of a run that was cut off: their keys are not valid any more.
        former = known.get("takers") or {} if state == "active" else {}
        parts = fetch.Config.load(paths.WEIGHTS).parts()
        document = {
            "port": wanted["port"],
            "connections": wanted["connections"],
            "rate": wanted["rate"],
            "directories": [part.directory for part in parts if part.remote],
            "progress": paths.FETCH_PROGRESS,
            "takers": {
                **former,
                wanted["taker"]: {
                    "key_sha256": wanted["key_sha256"],
                    "from": [wanted["taker_address"]],
                },
            },
        }
        anew = any(known.get(name) != document[name] for name in ("port", "connections", "rate"))
        write_json(paths.SHARE, document, durable=False)
        share.Sharing.load(paths.SHARE)
        firewall.admit(paths.Paths(), wanted["firewall"])
        if anew or state != "active":
            sandbox.end(unit_names.SHARE)
            _start(wanted)
        _wait_for_port(int(wanted["port"]))
        return {
            "port": wanted["port"],
            "certificate_sha256": tls.compute_fingerprint(read_text(certificate)),
        }


def close(wanted: Mapping[str, Any]) -> dict[str, Any]:
    """Stop to share with this neighbour; without any left the unit ends, and its key is removed."""
    with _lock():
        document = read_json(paths.SHARE)
        takers = document.get("takers") or {}
        takers.pop(wanted["taker"], None)
        if takers:
            write_json(paths.SHARE, document, durable=False)
        else:
            sandbox.end(unit_names.SHARE)
            for path in (paths.SHARE, paths.SHARE_PEM):
                remove(path)
    return {}


def _make_closed_folder() -> None:
    make_directory(Path(paths.RUN), 0o755)
    make_directory(Path(paths.NEIGHBOURS), 0o700)


def _lock() -> Any:  # noqa: ANN401
    make_directory(Path(paths.RUN), 0o755)
    return file_lock.lock(paths.SHARE_LOCK, _LOCK_S)


def _start(wanted: Mapping[str, Any]) -> None:
    """Start the unit: a user of its own, to whom systemd passes the certificate's key."""
    given = [
        "Type=exec",
        "DynamicUser=yes",
        f"LoadCredential=tls:{paths.SHARE_PEM}",
        f"RuntimeMaxSec={int(wanted['limit_s'])}",
        "WorkingDirectory=/",
        "Environment=LC_ALL=C.UTF-8",
        "UMask=0077",
        "LimitNOFILE=1024",
        "TasksMax=256",
        "MemoryMax=1G",
        "TimeoutStopSec=5",
        # Sooner than a taker gives it up.
        "Restart=on-failure",
        "RestartSec=2",
        # The present server is ended first.
        "CPUWeight=20",
        "IOWeight=20",
        "IPAddressDeny=any",
        *(f"IPAddressAllow={address}" for address in ("localhost", *wanted["addresses"])),
    ]
    argv = ["/usr/bin/python3", "-I", paths.ZIPAPP, "share", "serve", paths.SHARE]
    done = process.run(
        *("systemd-run", "--quiet", "--collect", f"--unit={unit_names.SHARE}"),
        "--description=Kimi: weights for the neighbours",
        *(f"--property={setting}" for setting in given),
        *protection.build_run_options("share"),
        *("--", *argv),
    )
    if done.returncode != 0:
        raise HostError(f"systemd-run: {(done.stderr or done.stdout).strip()[-300:]}")


def _wait_for_port(port: int) -> None:
    """Wait until the unit listens. Raises HostError with its last line where it ended."""
    end = time.monotonic() + _START_S
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), timeout=5).close()
        except OSError:
            state = units.read_states(unit_names.SHARE).get(unit_names.SHARE, {}).get("state")
            if state in ("failed", "inactive", None) or time.monotonic() > end:
                said = units.read_journal(unit_names.SHARE, 3)
                last = said[-1] if said else "it said nothing"
                raise HostError(f"{unit_names.SHARE} does not listen: {last}") from None
            time.sleep(0.1)
        else:
            return


_VERBS: dict[str, Callable[[Mapping[str, Any]], Mapping[str, Any]]] = {
    "key": lambda _: ensure_key(),
    "open": open_for,
    "take": set_neighbour,
    "drop": lambda _: forget_neighbour(),
    "close": close,
}


def main(argv: list[str]) -> int:
    """Entry point of the subcommand; see the module's docstring."""
    verb, arguments = (argv[0], argv[1:]) if argv else ("", [])
    if verb == "serve":
        return share.main(arguments)
    if verb not in _VERBS or arguments:
        raise HostError(f"usage: share {'|'.join((*_VERBS, 'serve'))}")
    return answer({"ok": True, **_VERBS[verb](json.load(sys.stdin))})
