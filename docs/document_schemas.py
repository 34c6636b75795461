"""The JSON Schemas of `kimi_prov/schemas`, made from the types of the documents: `make docs`."""

from __future__ import annotations

import inspect
import json
import sys
from typing import TYPE_CHECKING, Any, get_args

from kimi_prov.contract.documents import (
    backup,
    bench,
    bundle,
    catalog,
    check,
    clean,
    connect,
    diagnose,
    diagnose_log,
    drift,
    endpoint,
    facts,
    history,
    jobs,
    load,
    logs,
    offers,
    plan,
    pod_accept,
    render,
    restart,
    seed,
    sessions,
    spec,
    start,
    status,
    stop,
    submit,
    tune,
    update,
    usage,
    verify,
    web,
)
from kimi_prov.contract.documents.plan.gateway import GatewayPlan
from kimi_prov.schemas import from_types

if TYPE_CHECKING:
    from collections.abc import Iterator

DOCUMENTS: dict[str, Any] = {
    "backup": backup.Backup,
    "bench": bench.Bench,
    "bundle": bundle.Bundle,
    "cancel": jobs.Cancel,
    "catalog": catalog.CatalogRows,
    "check": check.Check,
    "clean": clean.Clean,
    "connect": connect.Connect,
    "diagnose": diagnose.Diagnose,
    "diagnose-log": diagnose_log.DiagnoseLog,
    "drift": drift.Drift,
    "endpoint": endpoint.Endpoint,
    "facts": facts.Facts,
    "history": history.History,
    "jobs": jobs.Jobs,
    "load": load.Load,
    "logs": logs.LogLine,
    "gateway-plan": GatewayPlan,
    "offers": offers.Offers,
    "plan": plan.MachinePlan,
    "pod-accept": pod_accept.PodAccept,
    "render": render.RenderRecord,
    "restart": restart.Restart,
    "seed": seed.Seed,
    "sessions": sessions.Sessions,
    "spec": spec.Spec,
    "start": start.Start,
    "status": status.Status,
    "stop": stop.Stop,
    "submit": submit.Submit,
    "tune": tune.Tune,
    "update": update.Update,
    "usage": usage.Usage,
    "verify": verify.Verify,
    "web": web.WebUi,
}
_WIDTH = 100
# People write these: a key that is not known is a typing error there.
WRITTEN_BY_HAND = {"load", "spec"}


def make_schema(name: str, *, closed: bool = False) -> dict[str, Any]:
    """Return the JSON Schema of a document by its name."""
    kind = DOCUMENTS[name]
    found = from_types.make_schema(kind, closed=closed or name in WRITTEN_BY_HAND)
    title, _, rest = inspect.cleandoc(_read_text(kind)).partition("\n\n")
    found["title"] = title.removesuffix(".")
    found["description"] = " ".join(rest.split())
    order = ["title", *(["description"] if rest else [])]
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema"}
    return (
        head
        | {key: found[key] for key in order}
        | {key: value for key, value in found.items() if key not in ("title", "description")}
    )


def _read_text(kind: Any) -> str:  # noqa: ANN401
    """Return the docstring of a type; of one of several forms it is their module's."""
    if not get_args(kind):
        return str(kind.__doc__)
    text = str(sys.modules[get_args(kind)[0].__module__].__doc__).partition("`: ")[2]
    return text[0].upper() + text[1:]


def format_shipped() -> dict[str, str]:
    """Return the file of each document's schema, by its name in `kimi_prov/schemas`."""
    return {f"{name}.json": _format_json(make_schema(name)) + "\n" for name in DOCUMENTS}


def _format_json(value: Any, indent: str = "") -> str:  # noqa: ANN401
    """Write JSON with what is short on one line."""
    line = json.dumps(value)
    if len(indent) + len(line) <= _WIDTH or not isinstance(value, (dict, list)):
        return line
    inner = indent + " "
    if isinstance(value, list):
        parts = [_format_json(part, inner) for part in value]
    else:
        parts = [f"{json.dumps(key)}: {_format_json(part, inner)}" for key, part in value.items()]
    brackets = "[]" if isinstance(value, list) else "{}"
    rows = f",\n{inner}".join(parts)
    return f"{brackets[0]}\n{inner}{rows}\n{indent}{brackets[1]}"


def make_all() -> dict[str, tuple[str, dict[str, Any]]]:
    """Return each document's file and schema, by what its `schema` says."""
    found = {}
    for name in DOCUMENTS:
        made = make_schema(name)
        form = made.get("anyOf", [made])[0]
        found[form["properties"]["schema"]["const"]] = f"{name}.json", made
    return found


def list_meanings(made: dict[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Yield the path and the description of each key of a schema that has one."""
    for key, part in made.get("properties", {}).items():
        name = f"{path}.{key}".removeprefix(".")
        if "description" in part:
            yield name, part["description"]
        yield from list_meanings(part, name)
        if isinstance(part.get("items"), dict):
            yield from list_meanings(part["items"], f"{name}[]")
        if isinstance(part.get("additionalProperties"), dict):
            yield from list_meanings(part["additionalProperties"], f"{name}.NAME")
