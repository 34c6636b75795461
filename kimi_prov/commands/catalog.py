"""`kimi-prov catalog`: rows of one kind, or all that is known of one name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from kimi_prov.catalog.loader import Catalogue, load
from kimi_prov.catalog.names import nearest, unknown
from kimi_prov.contract import clean_text
from kimi_prov.errors import UserError
from kimi_prov.show.text import tables

if TYPE_CHECKING:
    from kimi_prov.show.output import Output

SCHEMA = "kimi-prov/catalog/v1"
Document = dict[str, Any]
_Rows = Iterable[tuple[str, Any]]


def _one(kind: str) -> Callable[[Catalogue], _Rows]:
    return lambda catalogue: ((kind, row) for row in getattr(catalogue, kind))


def _parts(kind: str, *parts: str) -> Callable[[Catalogue], _Rows]:
    return lambda catalogue: (
        (f"{kind}.{part}", row) for part in parts for row in getattr(getattr(catalogue, kind), part)
    )


def _accepted(catalogue: Catalogue) -> _Rows:
    return (("flags.accepted", row) for row in catalogue.flag_sets)


_KINDS: dict[str, Callable[[Catalogue], _Rows]] = {
    "models": _one("models"),
    "drafts": _one("drafts"),
    "formats": _one("formats"),
    "cpus": _one("cpus"),
    "gpus": _one("gpus"),
    "servers": _one("servers"),
    "clouds": _one("clouds"),
    "engines": _one("engines"),
    "flags": lambda catalogue: (*_one("flags")(catalogue), *_accepted(catalogue)),
    "systems": _one("systems"),
    "pythons": _one("pythons"),
    "web": _one("web"),
    "drivers": _parts("drivers", "cuda", "torch", "rules", "packages", "releases", "repositories"),
    "prices": _parts(
        "prices", "api", "gpu_hour", "machine_hour", "storage", "purchase", "assumptions"
    ),
    "broken": _one("broken"),
    "groups": _one("groups"),
}
# Kinds whose names people write in many ways.
_FOUND_BY: dict[str, Callable[[Catalogue, str], Any]] = {
    "models": Catalogue.model,
    "drafts": Catalogue.draft,
    "formats": Catalogue.format,
    "cpus": Catalogue.cpu,
    "gpus": Catalogue.gpu,
    "servers": Catalogue.server,
}


def run(kind: str | None, name: str | None, output: Output) -> None:
    """Write the rows of a kind, of a name, or all."""
    output.check()
    document = show(load(), kind, name)
    output.write(document, lambda: text(document, output.columns()))


def show(catalogue: Catalogue, kind: str | None, name: str | None) -> Document:
    """Return the requested rows; without a kind all of them.

    Raises UserError for a kind or a name that is not known, with the nearest ones.
    """
    if kind is not None and kind not in _KINDS:
        near = nearest(kind, _KINDS)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UserError(f"unknown kind {kind!r}{hint}", fix=f"choose one of: {', '.join(_KINDS)}")
    wanted = [kind] if kind else list(_KINDS)
    rows = [_row(part, row) for one in wanted for part, row in _KINDS[one](catalogue)]
    if kind is not None and name is not None:
        rows = _named(catalogue, kind, name, rows)
    return {"schema": SCHEMA, "kind": kind, "name": name, "rows": rows}


def _row(kind: str, row: Any) -> Document:  # noqa: ANN401  (any record)
    values = asdict(row)
    if kind == "flags":
        name = " ".join(filter(None, [row.flag, row.value]))
    elif kind == "flags.accepted":
        name = f"{row.engine} {row.name}"
    elif kind == "systems":
        name = f"{row.id}-{row.version}"
    elif kind == "pythons":
        name = row.key
    else:
        name = row.id if kind in ("broken", "groups") else row.name
    extra = {"formats": list(row.formats)} if kind == "models" else {}
    extra |= {"memory_bytes": row.memory_bytes} if kind == "gpus" else {}
    extra |= {key: values.pop(key) for key in ("status", "checked")}
    return {"part": kind, **values, **extra, "name": name}


def _named(catalogue: Catalogue, kind: str, name: str, rows: list[Document]) -> list[Document]:
    if kind in _FOUND_BY:
        found = _FOUND_BY[kind](catalogue, name)
        return [row for row in rows if row["name"] == found.name]
    low = name.lower()
    hits = [row for row in rows if low in _names(row)]
    if not hits:
        raise unknown(kind.removesuffix("s"), name, {row["name"]: _names(row) for row in rows})
    return hits


def _names(row: Document) -> tuple[str, ...]:
    """Ways to ask for a row of the kinds that have no aliases."""
    name = row["name"].lower()
    if row["part"] == "engines":
        variant, version = row["variant"], row["version"]
        return (name, f"{name}-{variant}", f"{name}-{version}", f"{name}-{variant}-{version}")
    if row["part"].startswith("flags"):
        accepted = row.get("flags", ())
        bare = [flag.lstrip("-") for flag in accepted]
        if accepted:
            return (name, row["engine"], *accepted, *bare)
        return (name, name.lstrip("-"), row["flag"], row["engine"])
    if row["part"] == "pythons":
        minor = row["version"].rpartition(".")[0]
        return (name, row["version"], minor, f"python{minor}")
    return (name, row["part"].rpartition(".")[2])


# Beside name and day.
_COLUMNS: dict[str, tuple[str, ...]] = {
    "models": ("confidence", "native_format", "context", "released"),
    "drafts": ("confidence", "repo", "models", "least"),
    "formats": ("confidence", "kind", "expert_bytes", "rest_bytes"),
    "cpus": ("confidence", "cores", "memory_channels", "memory_mt_s", "bandwidth_gb_s"),
    "gpus": ("confidence", "memory_gb", "bandwidth_gb_s", "compute_capability"),
    "servers": ("confidence", "cpu", "sockets", "gpu", "gpus"),
    "clouds": ("confidence", "cloud", "gpu", "gpus", "memory_gb"),
    "engines": ("confidence", "variant", "version", "torch", "cuda", "driver_branch"),
    "flags": ("engine", "replacement"),
    "flags.accepted": ("versions", "flags"),
    "systems": ("glibc", "python", "nvidia_driver", "proven"),
    "pythons": ("confidence", "build", "glibc"),
    "web": ("confidence", "variant", "version", "licence"),
    "drivers.cuda": ("confidence", "driver", "compatible_driver"),
    "drivers.torch": ("confidence", "torch", "cuda", "driver_branch"),
    "drivers.rules": ("text",),
    "drivers.packages": ("packages",),
    "drivers.releases": ("confidence", "version"),
    "drivers.repositories": ("confidence", "url", "fingerprint"),
    "prices.api": ("confidence", "input_usd_per_mtok", "output_usd_per_mtok"),
    "prices.gpu_hour": ("confidence", "neocloud_usd", "rental_3_years_usd", "power_kw"),
    "prices.machine_hour": ("confidence", "usd"),
    "prices.storage": ("confidence", "usd_per_gb_month", "title"),
    "prices.purchase": ("confidence", "low_usd", "high_usd"),
    "prices.assumptions": ("value", "unit"),
    "broken": ("severity", "title"),
    "groups": ("confidence", "ran", "hosts", "gpus", "tensor", "pipeline", "data", "title"),
}
_INDENT = "  "


def text(document: Document, width: int | None = None) -> str:
    """Lay rows out as tables, or one name's rows with all that is known of them.

    `width`: columns of a terminal; without one, each row and each entry is one line.
    """
    if document["name"] is not None:
        return "\n\n".join(_whole(row, width) for row in document["rows"]) + "\n"
    kinds = list(dict.fromkeys(row["part"] for row in document["rows"]))
    laid = [
        _table(kind, [r for r in document["rows"] if r["part"] == kind], width) for kind in kinds
    ]
    return "\n\n".join(laid) + "\n"


def _table(kind: str, rows: list[Document], width: int | None) -> str:
    columns = ["name", "checked", *(c for c in _COLUMNS[kind] if any(c in row for row in rows))]
    cells = [[_shown(row, column) for column in columns] for row in rows]
    room = width and width - len(_INDENT)
    return "\n".join([f"{kind}:", *(_INDENT + line for line in tables.lines(columns, cells, room))])


def _shown(row: Document, column: str) -> str:
    cell = _cell(row.get(column))
    if column == "name" and row["status"] != "available":
        return f"{cell}, {row['status']}"
    return cell


def _whole(row: Document, width: int | None) -> str:
    lines = [f"{_cell(row['name'])} ({row['part']})"]
    for key, value in row.items():
        if key not in ("name", "part") and value not in (None, (), [], ""):
            lines += _entry(key, value, _INDENT)
    return "\n".join(part for line in lines for part in tables.broken(line, width))


def _entry(key: str, value: Any, indent: str) -> list[str]:  # noqa: ANN401
    if isinstance(value, dict):
        inner = [line for k, v in value.items() for line in _entry(k, v, indent + "  ")]
        return [f"{indent}{key}:", *inner]
    if isinstance(value, (list, tuple)) and value and isinstance(value[0], dict):
        return [f"{indent}{key}:", *(f"{indent}  - {_cell(list(v.values()))}" for v in value)]
    return [f"{indent}{key}: {_cell(value)}"]


def _cell(value: Any) -> str:  # noqa: ANN401
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (list, tuple)):
        return ", ".join(_cell(part) for part in value if part is not None)
    # A site's own rows may hold anything: no second line of theirs passes for one of ours.
    return clean_text.clean_row(value)
