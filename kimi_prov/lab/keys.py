"""SSH keys of a lab, created by `up` and removed by `down`: host key checking can stay on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.lab.shell import run_tool

if TYPE_CHECKING:
    from pathlib import Path


def ensure_key(path: Path, comment: str) -> str:
    """Create an ed25519 key pair at `path` where there is none; return the public line."""
    public = path.with_suffix(".pub")
    if not (path.exists() and public.exists()):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.unlink(missing_ok=True)
        run_tool(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", path],
            what="making an SSH key",
        )
    return public.read_text()


def format_known_hosts_line(address: str, port: int, public_key: str) -> str:
    """One line of a known_hosts file for a host that answers at address and port."""
    algorithm, key = public_key.split()[:2]
    name = address if port == 22 else f"[{address}]:{port}"
    return f"{name} {algorithm} {key}\n"


def make_ssh_options(known_hosts: Path) -> list[str]:
    """Return ssh options that use only the lab's own known hosts and the lab's key."""
    return [
        "-o",
        f"UserKnownHostsFile={known_hosts}",
        "-o",
        "GlobalKnownHostsFile=/dev/null",
        "-o",
        "StrictHostKeyChecking=yes",
        "-o",
        "IdentitiesOnly=yes",
    ]
