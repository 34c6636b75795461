"""Reads the plan of this machine, as an apply of whatever version wrote it."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from kimi_prov.on_host.system.files import PathLike, read_json

if TYPE_CHECKING:
    from kimi_prov.contract.documents.plan import MachinePlan, Plan


def read_plan(path: PathLike) -> Plan:
    """Return the plan of a machine or a gateway; empty where there is none."""
    return cast("Plan", read_json(path))


def read_machine_plan(path: PathLike) -> MachinePlan:
    """Return the plan of a machine that serves; empty where there is none.

    Where a gateway has it as well, sections that only machines have are read by `get`.
    """
    return cast("MachinePlan", read_json(path))
