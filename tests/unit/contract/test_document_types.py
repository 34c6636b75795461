"""Documents keep to their types: what these do not declare fails, and schemas are made of them."""

from __future__ import annotations

import copy
import importlib
import json
import pkgutil
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, TypedDict, get_type_hints

import closed_form
import jsonschema
import pytest
from document_schemas import DOCUMENTS
from golden import CASES, planned

from kimi_prov import schemas
from kimi_prov.contract import documents
from kimi_prov.contract.documents.form import DEPRECATED, NotRequired, Rule
from kimi_prov.schemas.from_types import make_schema

if TYPE_CHECKING:
    from collections.abc import Iterator

DATA = Path(__file__).resolve().parents[2] / "data"
REPORTS = DATA / "recordings" / "gpu-reports"
RECORDED = [
    *sorted((DATA / "facts").glob("*.json")),
    *sorted(REPORTS.glob("*/facts.json")),
    *sorted(REPORTS.glob("*/*/plan.json")),
]


class Disk(TypedDict):
    """A disk.

    Sizes in bytes.
    """

    size_bytes: Annotated[int, Rule(minimum=0)] | None
    """Of all of it."""
    kind: Literal["nvme", "ssd"]
    name: NotRequired[Annotated[str, DEPRECATED]]


class Machine(TypedDict, total=False):
    """A machine."""

    disks: Annotated[list[Disk], Rule(min_items=1)]
    mounts: dict[Literal["/", "/srv"], Disk | bool]


def test_a_type_gives_its_schema() -> None:
    disk = {
        "description": "A disk. Sizes in bytes.",
        "type": "object",
        "properties": {
            "size_bytes": {
                "type": ["integer", "null"],
                "minimum": 0,
                "description": "Of all of it.",
            },
            "kind": {"enum": ["nvme", "ssd"]},
            "name": {"type": "string", "deprecated": True},
        },
        "required": ["size_bytes", "kind"],
    }
    assert make_schema(Machine) == {
        "description": "A machine.",
        "type": "object",
        "properties": {
            "disks": {"type": "array", "items": disk, "minItems": 1},
            "mounts": {
                "type": "object",
                "propertyNames": {"enum": ["/", "/srv"]},
                "additionalProperties": {"anyOf": [disk, {"type": "boolean"}]},
            },
        },
    }


def test_the_closed_form_refuses_what_is_not_declared_at_any_depth() -> None:
    wrong = {"disks": [{"size_bytes": 1, "kind": "ssd", "size": 1}]}
    jsonschema.validate(wrong, make_schema(Machine))
    with pytest.raises(jsonschema.ValidationError, match="'size' was unexpected"):
        closed_form.validate_part(wrong, Machine)


@pytest.mark.parametrize("name", DOCUMENTS)
def test_a_shipped_schema_is_one_and_a_reader_takes_newer_keys(name: str) -> None:
    schema = schemas.load(name)
    jsonschema.Draft202012Validator.check_schema(schema)
    if name not in ("spec", "load"):  # people write these: an unknown key is a typing error
        assert '"additionalProperties": false' not in json.dumps(schema)


@pytest.fixture(scope="module")
def plans() -> dict[str, dict[str, Any]]:
    return {case: planned(case) for case in CASES}


def test_golden_plans_have_no_key_that_is_not_declared(plans: dict[str, dict[str, Any]]) -> None:
    for plan in plans.values():
        closed_form.validate(plan, "plan")


def test_no_part_of_a_plan_takes_an_undeclared_key(plans: dict[str, dict[str, Any]]) -> None:
    plan = plans["h100x8-pair"]
    parts = [path for path in mappings(plan) if not free(path)]
    for path in parts:
        odd = copy.deepcopy(plan)
        part: Any = odd
        for key in path:
            part = part[key]
        part["undeclared"] = 1
        with pytest.raises(jsonschema.ValidationError, match="'undeclared' was unexpected"):
            closed_form.validate(odd, "plan")
    assert len(parts) > 40


def mappings(part: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the path of each mapping in a document; of a list the first entry's alone."""
    if isinstance(part, dict):
        yield path
        for key, value in part.items():
            yield from mappings(value, (*path, key))
    elif isinstance(part, list) and part:
        yield from mappings(part[0], (*path, 0))


def free(path: tuple[Any, ...]) -> bool:
    """Tell whether a part of the plan has names for keys: paths, units, variables."""
    words = ".".join(map(str, path))
    named = (
        r"paths|units|marks|users|proxy\.timeouts|tuning\.sysctl|installation\.python\.downloads"
    )
    return bool(re.search(rf"^({named})|(env|environment)$|findings\.0\.", words))


@pytest.mark.parametrize("file", RECORDED, ids=lambda file: str(file.relative_to(DATA)))
def test_a_recorded_document_is_still_read(file: Path) -> None:
    document = json.loads(file.read_text())
    name = document["schema"].split("/")[1]
    jsonschema.Draft202012Validator(schemas.load(name)).validate(document)
    closed_form.validate(document, name)


def document_types() -> Iterator[type]:
    """Yield each type of a document, of every module of the package."""
    for row in pkgutil.walk_packages(documents.__path__, f"{documents.__name__}."):
        module = importlib.import_module(row.name)
        for kind in vars(module).values():
            if isinstance(kind, type) and kind.__module__ == row.name:
                yield kind


@pytest.mark.parametrize("kind", list(document_types()), ids=lambda kind: kind.__qualname__)
def test_a_type_can_be_read_when_an_answer_is_held_to_it(kind: type) -> None:
    """A name that is imported for types alone would end the run in which an answer arrives."""
    assert get_type_hints(kind, include_extras=True) is not None
