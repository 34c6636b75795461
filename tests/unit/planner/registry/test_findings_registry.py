"""Every finding is defined once, made by somebody, and made as it is defined."""

from __future__ import annotations

import ast
import re
from collections import Counter
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from plan_inputs import found, gpu_facts, plan

import kimi_prov
from kimi_prov.acceptance.bench import CAUSES
from kimi_prov.planner.findings import make_finding
from kimi_prov.planner.plan import find_refusals
from kimi_prov.planner.registry import DEFINITIONS, SUBJECTS, index_definitions
from kimi_prov.planner.registry.definition import REMEDIES, SEVERITIES
from kimi_prov.planner.rules.context import RULES, register_rule

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCES = Path(kimi_prov.__file__).parent
# How a finding is made: by `findings.add("ID", ...)`, by a call or a decorator of these names.
MAKERS = ("add", "make_finding", "register_rule")


@cache
def calls() -> list[tuple[str, ast.Call]]:
    """Every call that makes a finding, with its file and line."""
    return [
        (f"{path.relative_to(SOURCES)}:{node.lineno}", node)
        for path, tree in parsed("kimi_prov.planner")
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and _maker(node.func) in MAKERS and node.args
    ]


def parsed(word: str, below: str = "") -> Iterator[tuple[Path, ast.Module]]:
    """Every module in whose text a pattern is found: to parse all of them takes seconds."""
    for path in sorted((SOURCES / below).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if re.search(word, text):
            yield path, ast.parse(text)


def _maker(function: ast.expr) -> str | None:
    if isinstance(function, ast.Name) and function.id != "add":
        return function.id
    if isinstance(function, ast.Attribute) and ast.unparse(function.value) == "findings":
        return function.attr
    return None


def made() -> dict[str, list[tuple[str, ast.Call]]]:
    """The calls by the id that they name."""
    ids: dict[str, list[tuple[str, ast.Call]]] = {}
    for where, call in calls():
        if isinstance(call.args[0], ast.Constant):
            ids.setdefault(str(call.args[0].value), []).append((where, call))
    return ids


def told_by_machines() -> set[str]:
    """The ids that the code on the machine names: its answers are completed from the registry."""
    strings = {
        node.value
        for _, tree in parsed("|".join(map(re.escape, DEFINITIONS)), "on_host")
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }
    return strings & set(DEFINITIONS)


def test_what_is_made_is_defined_and_what_is_defined_is_made() -> None:
    ids = set(made())
    assert ids - set(DEFINITIONS) == set(), "made, and not in the registry"
    # Those of drift are computed on the machine: tests/unit/acceptance/test_drift_document.py.
    here = {name for name in DEFINITIONS if not name.startswith("drift.")}
    assert here - ids - told_by_machines() == set(), "in the registry, and made by nobody"


def test_an_id_is_made_under_its_own_name() -> None:
    """A name that is computed would escape this walk: only what passes a maker's on has one."""
    computed = [where for where, call in calls() if not isinstance(call.args[0], ast.Constant)]
    assert [where.rpartition(":")[0] for where in computed] == [
        "ansible/host_action.py",
        "operate/diagnosis/rules/__init__.py",
        "planner/findings.py",
        "planner/rules/context.py",
    ]


def test_no_finding_is_written_by_hand() -> None:
    """A dictionary or a Finding of its own would carry a title that the registry does not know.

    The title of a trouble that a log shows is of its row in the catalogue.
    """
    keys = {"id", "severity", "title", "observed", "required"}
    rows = "operate/diagnosis/rules/troubles.py"
    for path, tree in (row for row in parsed("severity") if not str(row[0]).endswith(rows)):
        for node in ast.walk(tree):
            if isinstance(node, ast.Dict):
                named = {key.value for key in node.keys if isinstance(key, ast.Constant)}
            elif isinstance(node, ast.Call) and path.name != "findings.py":
                named = {keyword.arg for keyword in node.keywords}
            else:
                continue
            assert not keys <= named, f"{path}:{node.lineno}"


def test_a_maker_names_only_what_its_definition_leaves_open() -> None:
    for identity, rows in made().items():
        definition = DEFINITIONS[identity]
        for where, call in rows:
            given = {k.arg: k.value for k in call.keywords}
            severity = given.get("severity")
            if isinstance(severity, ast.Constant):
                assert severity.value in definition.severities, where
            wording = given.get("wording")
            if isinstance(wording, ast.Constant):
                assert wording.value in definition.titles, where
            assert "title" not in given or definition.own_title, where
            assert "source" not in given or definition.own_source, where


def test_ids_are_unique() -> None:
    one = DEFINITIONS["gpu.mig"]
    with pytest.raises(ValueError, match=r"gpu\.mig"):
        index_definitions([one, one])
    assert max(Counter(row.id for row in DEFINITIONS.values()).values()) == 1


@pytest.mark.parametrize("identity", DEFINITIONS)
def test_a_definition_is_whole(identity: str) -> None:
    row = DEFINITIONS[identity]
    assert row.id == identity
    assert identity.partition(".")[0] in SUBJECTS
    assert row.title
    assert row.source
    assert row.remedy in REMEDIES
    assert row.severities
    assert list(row.severities) == [name for name in SEVERITIES if name in row.severities]
    # A table of Markdown is made of it.
    assert "|" not in "".join([row.source, *row.shown_titles()])
    # What only goes on nobody has to pay for; what blocks or warns has a remedy.
    assert row.remedy != "none" or not {"blocker", "warning"} & set(row.severities)


def test_every_subject_has_a_finding() -> None:
    assert {identity.partition(".")[0] for identity in DEFINITIONS} == set(SUBJECTS)


def test_an_unknown_id_fails() -> None:
    with pytest.raises(KeyError, match=r"gpu\.imagined"):
        make_finding("gpu.imagined", observed="a", required="b")
    with pytest.raises(KeyError, match=r"gpu\.imagined"):
        register_rule("gpu.imagined")(lambda _case: [])
    assert "gpu.imagined" not in RULES


def test_what_the_registry_says_is_not_the_makers_to_say() -> None:
    given = {"observed": "a", "required": "b", "fix": "c"}
    with pytest.raises(ValueError, match="blocker"):
        make_finding("gpu.mig", severity="info", **given)
    with pytest.raises(ValueError, match="one of warning, info"):
        make_finding("driver.hold", **given)
    with pytest.raises(ValueError, match="title"):
        make_finding("gpu.mig", title="Another", **given)
    with pytest.raises(ValueError, match="source"):
        make_finding("gpu.mig", source="hearsay", **given)
    with pytest.raises(ValueError, match="fix"):
        make_finding("gpu.mig", observed="a", required="b")
    with pytest.raises(KeyError, match="model"):
        make_finding("context.model", **given)


def test_what_is_settled_by_work_on_the_machine_is_no_matter_of_its_purchase() -> None:
    for row in DEFINITIONS.values():
        if row.remedy in ("gpus", "memory", "modules", "disk", "hardware"):
            assert row.concerns == "purchase", row.id
        if row.remedy in ("process", "reboot"):
            assert row.concerns == "deployment", row.id
    assert (
        make_finding("weights.unpinned", observed="a", required="b", fix="c")["concerns"]
        == "deployment"
    )


def test_a_finding_has_its_keys_in_their_order() -> None:
    row = make_finding("context.model", names={"model": "K"}, observed="a", required="b", fix="c")
    keys = ["id", "severity", "title", "observed", "required", "fix", "source", "concerns"]
    assert list(row) == keys
    assert row["severity"] == "blocker"
    assert row["title"] == "K was not made for so long a context"


def test_what_slows_a_machine_is_a_finding() -> None:
    assert set(CAUSES) <= set(DEFINITIONS)


def test_apply_refuses_by_what_the_registry_says() -> None:
    """A blocker refuses, unless `apply` fixes it; what blocks `apply` alone does so as well."""
    facts = gpu_facts(driver="570.133.20")
    facts["gib"] = {"present": True, "cached": ["libnccl-net.so"]}
    facts["gpus"][0]["mig"] = True
    document = plan(facts, model="kimi-k2.5", weights_source=None)
    for identity in ("driver.branch", "host.gib", "gpu.mig"):
        assert [row["severity"] for row in found(document, identity)] == ["blocker"]
    assert document["driver"]["action"] == "install"
    assert [row["id"] for row in find_refusals(document)] == ["gpu.mig"]
    # Where nothing is done to the driver, what goes with it is not fixed.
    document["driver"]["action"] = "none"
    assert {row["id"] for row in find_refusals(document)} == {"driver.branch", "gpu.mig"}
