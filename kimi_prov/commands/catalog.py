"""`kimi-prov catalog`: rows of one kind, or all rows of one name."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from kimi_prov.catalog.loader import Catalogue, load_catalogue
from kimi_prov.catalog.names import find_nearest, refuse_unknown
from kimi_prov.commands import pin
from kimi_prov.commands.common.command import Command
from kimi_prov.commands.common.options import CATALOG, PATH, add_output_options
from kimi_prov.errors import UserError
from kimi_prov.show.text import catalog as catalog_text

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.show.output import Output

SCHEMA = "kimi-prov/catalog/v1"
Document = dict[str, Any]
_Rows = Iterable[tuple[str, Any]]


def _select_rows(kind: str) -> Callable[[Catalogue], _Rows]:
    return lambda catalogue: ((kind, row) for row in getattr(catalogue, kind))


def _select_part_rows(kind: str, *parts: str) -> Callable[[Catalogue], _Rows]:
    return lambda catalogue: (
        (f"{kind}.{part}", row) for part in parts for row in getattr(getattr(catalogue, kind), part)
    )


def _list_accepted(catalogue: Catalogue) -> _Rows:
    return (("flags.accepted", row) for row in catalogue.flag_sets)


_KINDS: dict[str, Callable[[Catalogue], _Rows]] = {
    "models": _select_rows("models"),
    "unserved": _select_rows("unserved"),
    "drafts": _select_rows("drafts"),
    "formats": _select_rows("formats"),
    "cpus": _select_rows("cpus"),
    "gpus": _select_rows("gpus"),
    "servers": _select_rows("servers"),
    "clouds": _select_rows("clouds"),
    "engines": _select_rows("engines"),
    "flags": lambda catalogue: (*_select_rows("flags")(catalogue), *_list_accepted(catalogue)),
    "systems": _select_rows("systems"),
    "pythons": _select_rows("pythons"),
    "web": _select_rows("web"),
    "drivers": _select_part_rows(
        "drivers", "cuda", "torch", "rules", "packages", "releases", "repositories"
    ),
    "prices": _select_part_rows(
        "prices",
        "api",
        "gpu_hour",
        "rent",
        "machine_hour",
        "storage",
        "purchase",
        "parts",
        "assumptions",
    ),
    "broken": _select_rows("broken"),
    "groups": _select_rows("groups"),
    "loads": lambda catalogue: (
        *(("loads.ways", row) for row in catalogue.load_ways),
        *(("loads.times", row) for row in catalogue.load_times),
    ),
}
# Kinds whose names are written in many ways.
_FOUND_BY: dict[str, Callable[[Catalogue, str], Any]] = {
    "models": Catalogue.model,
    "drafts": Catalogue.draft,
    "formats": Catalogue.format,
    "cpus": Catalogue.cpu,
    "gpus": Catalogue.gpu,
    "servers": Catalogue.server,
}


@click.command(cls=Command)
@click.argument("kind", required=False)
@click.argument("name", required=False)
@CATALOG
@add_output_options
@click.option(
    "--older-than",
    type=click.IntRange(min=0),
    metavar="DAYS",
    help="Only rows last checked so many days ago or earlier.",
)
@click.option("--hf-token-file", type=PATH, metavar="FILE", help="The hub's token, for `pin`.")
@click.option("--ca-bundle", type=PATH, metavar="FILE", help="Certificates, for `pin`.")
def catalog(
    kind: str | None,
    name: str | None,
    output: Output,
    older_than: int | None,
    hf_token_file: Path | None,
    ca_bundle: Path | None,
) -> None:
    """Show what is known: models, cpus, gpus, engines, flags, drivers, prices and more kinds.

    `catalog pin hf://OWNER/NAME@REVISION` writes a manifest for kimi_weights_manifest instead: size
    and SHA-256 of each file, from the hub (or from the one that HF_ENDPOINT names).
    """
    output.check()
    if kind == "pin":
        manifest = pin.pin(name or "", token_file=hf_token_file, ca_bundle=ca_bundle)
        output.write(manifest, lambda: pin.format_text(manifest))
        return
    document = collect(load_catalogue(), kind, name)
    if older_than is not None:
        limit = datetime.datetime.now(tz=datetime.UTC).date() - datetime.timedelta(days=older_than)
        document["rows"] = select_stale(document["rows"], limit)
    output.write(document, lambda: catalog_text.format_text(document, output.columns()))


def collect(catalogue: Catalogue, kind: str | None, name: str | None) -> Document:
    """Return the requested rows; without a kind all rows.

    A name in the kind's place is looked for in every kind. Raises UserError for an unknown kind or
    name, with the nearest ones.
    """
    if kind is not None and kind not in _KINDS:
        if name is None and (rows := _find_everywhere(catalogue, kind)):
            return {"schema": SCHEMA, "kind": None, "name": kind, "rows": rows}
        near = find_nearest(kind, _KINDS)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise UserError(f"unknown kind {kind!r}{hint}", fix=f"choose one of: {', '.join(_KINDS)}")
    wanted = [kind] if kind else list(_KINDS)
    rows = [_build_row(part, row) for one in wanted for part, row in _KINDS[one](catalogue)]
    if kind is not None and name is not None:
        rows = _filter_by_name(catalogue, kind, name, rows)
    return {"schema": SCHEMA, "kind": kind, "name": name, "rows": rows}


def select_stale(rows: list[Document], limit: datetime.date) -> list[Document]:
    """Return the rows that were last checked on a day or earlier, and those without a day."""
    return [row for row in rows if row["checked"] is None or row["checked"] <= limit.isoformat()]


def _find_everywhere(catalogue: Catalogue, name: str) -> list[Document]:
    """Return the rows of all kinds that have this name."""
    rows: list[Document] = []
    for kind, select in _KINDS.items():
        with contextlib.suppress(UserError):
            own = [_build_row(part, row) for part, row in select(catalogue)]
            rows += _filter_by_name(catalogue, kind, name, own)
    return rows


def _build_row(kind: str, row: Any) -> Document:  # noqa: ANN401  (any record)
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
        name = row.id if kind in ("broken", "groups", "loads.times") else row.name
    extra = {"formats": list(row.formats)} if kind == "models" else {}
    extra |= {"memory_bytes": row.memory_bytes} if kind == "gpus" else {}
    extra |= {key: values.pop(key) for key in ("status", "checked")}
    return {"part": kind, **values, **extra, "name": name}


def _filter_by_name(
    catalogue: Catalogue, kind: str, name: str, rows: list[Document]
) -> list[Document]:
    if kind in _FOUND_BY:
        record = _FOUND_BY[kind](catalogue, name)
        return [row for row in rows if row["name"] == record.name]
    low = name.lower()
    hits = [row for row in rows if low in _list_names(row)]
    if not hits:
        raise refuse_unknown(
            kind.removesuffix("s"), name, {row["name"]: _list_names(row) for row in rows}
        )
    return hits


def _list_names(row: Document) -> tuple[str, ...]:
    """Return the names of a row of a kind without aliases."""
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
