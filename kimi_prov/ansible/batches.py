"""The batches of machines that a run changes one after the other: `kimi_serial`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.ansible import gateway_hosts, group_hosts
from kimi_prov.errors import UserError
from kimi_prov.planner.hosts.batches import Machine, split_into_batches

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SERIAL = "kimi_serial"
# A fact of a host that this run may change: whether the host serves.
FACT = "kimi_batch"
_ALL = "kimi"


def list_batches(
    groups: Mapping[str, Sequence[str]],
    known: Mapping[str, Mapping[str, Any]],
    *,
    apart: bool = False,
) -> list[list[str]]:
    """Name the hosts of each batch: those of `kimi` that have the fact, in the inventory's order.

    Gateways with that fact come after them, each in a batch of its own: never both at once.
    `known`: the variables of all hosts. `apart`: hosts that serve one model together may be in
    different batches, and without `kimi_serial` each host is a batch. Raises UserError.
    """
    names = [str(name) for name in groups.get(_ALL) or () if FACT in known.get(name, ())]
    heads = {} if apart else group_hosts.find_heads(groups, known)
    machines = [Machine(name, heads.get(name, name), bool(known[name][FACT])) for name in names]
    gateways = [
        name for name in groups.get(gateway_hosts.GROUP) or () if FACT in known.get(name, ())
    ]
    return [
        *split_into_batches(machines, find_batch_size(groups, known, names, apart=apart)),
        *([str(name)] for name in gateways),
    ]


def find_batch_size(
    groups: Mapping[str, Sequence[str]],
    known: Mapping[str, Mapping[str, Any]],
    names: Sequence[str],
    *,
    apart: bool = False,
) -> int | None:
    """Return how many machines are changed at once: the smallest value of a host; None for all.

    The default is one behind a gateway, and all without one.
    """
    sizes = [_read_serial(name, known[name]) for name in names]
    given_sizes = [size for size in sizes if size is not None]
    if given_sizes:
        return min(given_sizes)
    return 1 if apart or groups.get(gateway_hosts.GROUP) else None


def _read_serial(host: str, variables: Mapping[str, Any]) -> int | None:
    value = str(variables.get(SERIAL, "auto"))
    if value == "auto":
        return None
    if not value.isdecimal() or int(value) < 1:
        raise UserError(
            f"host {host}: {SERIAL}: a whole number from 1, or auto, was expected",
            fix=f"set {SERIAL}: 1 for all hosts",
        )
    return int(value)


def list_before(rows: Sequence[Sequence[str]], host: str) -> list[str]:
    """Name the hosts in batches before a host's batch."""
    return [name for row in rows[: _find_batch(rows, host)] for name in row]


def list_after(rows: Sequence[Sequence[str]], host: str) -> list[str]:
    """Name the hosts in batches after a host's batch."""
    return [name for row in rows[_find_batch(rows, host) + 1 :] for name in row]


def _find_batch(rows: Sequence[Sequence[str]], host: str) -> int:
    return next((index for index, row in enumerate(rows) if host in row), len(rows))
