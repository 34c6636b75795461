"""Find parts of a spec sheet that are unknown, and parts that no machine has together."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.catalog.names import format_value, read_cores
from kimi_prov.facts.schema_check import MisfitError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kimi_prov.catalog.hardware import Cpu, Gpu
    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.errors import UserError
    from kimi_prov.facts.schema_check import Key

Sheet = dict[str, Any]
_GIB = 1 << 30
# The speeds at which each generation of modules is sold for servers (JEDEC; MRDIMM for DDR5).
_SPEEDS_MT_S = {"DDR4": (1600, 3600), "DDR5": (3600, 12800)}
_MAX_THREADS = 8192


def find_contradictions(
    sheet: Sheet, catalogue: Catalogue, torn: set[Any]
) -> Iterator[MisfitError]:
    """Yield unknown parts, and combinations of parts that no machine can have.

    `torn`: the parts of the sheet that do not satisfy the schema.
    """
    yield from _find_cpu_faults(sheet, catalogue, torn)
    if "gpus" not in torn:
        for path, group in list_cards(sheet.get("gpus")):
            if find_card(group, catalogue) is None:
                yield _refuse_card((*path, "model"), group["model"], catalogue)
    memory, price = sheet.get("memory"), sheet.get("price")
    if isinstance(memory, dict) and "memory" not in torn:
        yield from _find_two_sums(memory)
    if isinstance(price, dict) and "price" not in torn:
        yield from _find_price_faults(price)
    if sheet.get("link") and sheet.get("hosts", 1) == 1:
        problem = "joins hosts that serve one model together: wanted hosts beside it"
        yield MisfitError(("link",), problem, "write  hosts: 2, or nics for a machine's own ports")


def _find_cpu_faults(sheet: Sheet, catalogue: Catalogue, torn: set[Any]) -> Iterator[MisfitError]:
    cpu, memory = sheet.get("cpu"), sheet.get("memory")
    if not (isinstance(cpu, dict) and isinstance(cpu.get("model"), str)):
        return
    row = catalogue.match_cpu(cpu["model"])
    if row is None:
        yield _make_misfit("cpus", ("cpu", "model"), catalogue.unknown_cpu(cpu["model"]))
    elif "cpu" not in torn:
        yield from _find_impossible(cpu, row)
        if isinstance(memory, dict) and "memory" not in torn:
            yield from _find_other_memory(memory, row)


def _refuse_card(path: Key, model: str, catalogue: Catalogue) -> MisfitError:
    """Return the fault of an unknown GPU, or of a known one with other memory."""
    near = catalogue.match_gpu(model, any_size=True)
    if near is None:
        return _make_misfit("gpus", path, catalogue.unknown_gpu(model))
    problem = f"the catalogue's {near.name} has {near.memory_gb} GB, found {format_value(model)}"
    return MisfitError(path, problem, _list_known("gpus"))


def _find_other_memory(sheet: Sheet, row: Cpu) -> Iterator[MisfitError]:
    """Yield memory of another generation than the processor takes."""
    known, stated = row.memory_type, sheet.get("type")
    if stated and known and stated != known:
        problem = f"{row.name} takes {known}, found {stated}"
        yield MisfitError(("memory", "type"), problem)
    elif known in _SPEEDS_MT_S and sheet.get("speed_mt_s"):
        low, high = _SPEEDS_MT_S[known]
        if not low <= sheet["speed_mt_s"] <= high:
            problem = (
                f"{row.name} takes {known}, which runs at {low} to {high} MT/s, "
                f"found {sheet['speed_mt_s']}"
            )
            yield MisfitError(("memory", "speed_mt_s"), problem)


def _find_two_sums(sheet: Sheet) -> Iterator[MisfitError]:
    if {"dimms", "dimm_gb", "total_gb"} <= set(sheet):
        modules, size, total = sheet["dimms"], sheet["dimm_gb"], sheet["total_gb"]
        if modules * size != total:
            problem = f"{modules} modules of {size} GB are {modules * size}, found {total}"
            yield MisfitError(("memory", "total_gb"), problem)


def _find_impossible(sheet: Sheet, row: Cpu) -> Iterator[MisfitError]:
    sockets, cores = sheet.get("sockets", 1), sheet.get("cores", row.cores)
    if sockets > row.max_sockets:
        problem = f"{row.name} goes into machines of at most {row.max_sockets}, found {sockets}"
        yield MisfitError(("cpu", "sockets"), problem)
    if cores * sockets * sheet.get("threads_per_core", row.threads_per_core) > _MAX_THREADS:
        yield MisfitError(("cpu",), f"more than {_MAX_THREADS} threads: no Linux has so many")
    said = read_cores(sheet["model"])
    if said not in (None, row.cores, row.cores * sockets):
        problem = f"{row.name} has {row.cores} cores, found {format_value(sheet['model'])}"
        yield MisfitError(("cpu", "model"), problem, "write the model that it is, or cpu.cores")
    nodes = sheet.get("numa_nodes", 1)
    if nodes > cores * sockets:
        yield MisfitError(("cpu", "numa_nodes"), f"wanted at most one for each core, found {nodes}")


def _find_price_faults(sheet: Sheet) -> Iterator[MisfitError]:
    """Yield contradictions between the keys of a price."""
    amounts = [key for key in ("purchase", "hourly") if key in sheet]
    if amounts and ("currency" not in sheet or "usd_per_unit" not in sheet):
        yield MisfitError(
            ("price", amounts[0]), "wanted currency and usd_per_unit beside it, or its key in _usd"
        )
    for key in amounts:
        if f"{key}_usd" in sheet:
            yield MisfitError(("price", f"{key}_usd"), f"there twice: {key} says it too; keep one")


def _make_misfit(kind: str, path: tuple[str | int, ...], error: UserError) -> MisfitError:
    return MisfitError(path, error.message, _list_known(kind))


def _list_known(kind: str) -> str:
    return (
        f"`kimi-prov catalog {kind}` lists those that are known; rows of your own go into "
        f"DIR/{kind}.yaml, for  kimi-prov check --catalog DIR"
    )


def list_cards(sheet: Any) -> Iterator[tuple[Key, Sheet]]:  # noqa: ANN401
    """Yield each kind of GPU with the keys that lead to it."""
    if isinstance(sheet, list):
        yield from ((("gpus", index), group) for index, group in enumerate(sheet))
    elif sheet:
        yield ("gpus",), sheet


def find_card(group: Sheet, catalogue: Catalogue) -> Gpu | None:
    """Find a group's GPU by its model, and by its memory where the sheet gives that."""
    size = group.get("memory_gb")
    if size:
        return catalogue.find_gpu(group["model"], round(size * _GIB))
    return catalogue.match_gpu(group["model"])
