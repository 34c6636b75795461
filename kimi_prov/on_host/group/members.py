"""The members of a group, and what has to be equal on all of its hosts."""

from __future__ import annotations

import hashlib
import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.system.files import read_json, read_text

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# What has to be equal, by name, on each host.
Facts = dict[str, str]


@dataclass(frozen=True)
class Member:
    """A host of the group: its name in the inventory and its address on the group's network."""

    host: str
    address: str

    @classmethod
    def parse(cls, text: str) -> Member:
        """Read `HOST=ADDRESS`; raises HostError for anything else."""
        host, _, address = text.rpartition("=")
        try:
            return cls(host, normalize_address(address))
        except ValueError:
            raise HostError(f"--member {text}: expected HOST=ADDRESS") from None


@dataclass(frozen=True)
class Group:
    """A group as one of its hosts sees it; members in the order of their ranks."""

    name: str
    members: tuple[Member, ...]
    rank: int

    @property
    def this_host(self) -> Member:
        """Return this host."""
        return self.members[self.rank]

    @property
    def head(self) -> Member:
        """Return the host that serves."""
        return self.members[0]

    @property
    def others(self) -> list[int]:
        """Return the ranks of the other hosts."""
        return [rank for rank in range(len(self.members)) if rank != self.rank]

    def hosts(self, ranks: Sequence[int]) -> str:
        """Name hosts by their ranks, for a sentence."""
        return ", ".join(self.members[rank].host for rank in ranks)


def normalize_address(address: str) -> str:
    """Return an address as the kernel writes it; raises ValueError for anything else."""
    found = ipaddress.ip_address(address)
    mapped = getattr(found, "ipv4_mapped", None)
    return str(mapped or found)


def collect_facts(group: Group, digest: str, environment: Path, weights: Sequence[Path]) -> Facts:
    """Return what must be equal on all hosts: the plan, and the digests of what is installed.

    `environment` and `weights` are the files that are written last: the lock and the manifest.
    """
    listed = " ".join(f"{member.host}={member.address}" for member in group.members)
    return {
        "group": group.name,
        "members": listed,
        "plan": digest,
        "environment": _compute_digest(read_text(environment)),
        "weights": _compute_digest(
            *(str(read_json(mark).get("manifest_sha256")) for mark in weights)
        ),
    }


def _compute_digest(*texts: str) -> str:
    return hashlib.sha256("\0".join(texts).encode()).hexdigest()[:16]


def list_differing(own: Facts, other: Facts) -> list[str]:
    """Name the facts that differ, sorted; a fact that one host lacks is not named."""
    return sorted(key for key in {*own, *other} if own.get(key) != other.get(key))
