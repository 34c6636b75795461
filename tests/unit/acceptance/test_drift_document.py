"""The drift document: what a machine's own code found, in the registry's words."""

from __future__ import annotations

import json
from pathlib import Path

import closed_form
import jsonschema
import pytest

from kimi_prov.acceptance import drift
from kimi_prov.on_host.drift import compare, run, weights
from kimi_prov.planner.registry import DEFINITIONS
from kimi_prov.show.text import drift as drift_text

ROW = {
    "id": "drift.file",
    "subject": "/srv/kimi/models/kimi-k2-lab/lab-1/model-00001-of-00062-long.safetensors",
    "expected": "sha256 aaaaaaaaaaaa",
    "observed": "sha256 bbbbbbbbbbbb",
    "since": "2026-11-24T02:29:00Z",
    "since_from": "the file's change time",
    "by": "apt-get upgrade, by operator",
    "fix": "rm /x && kimi-prov apply INVENTORY",
}
PLAN = {
    "engine": {"version": "0.32.0", "locks": ["a"]},
    "instances": [{"argv": ["a"], "port": 8001}],
    "findings": [{"id": "disk.room"}],
}
FOUND = {
    "ok": False,
    "complete": False,
    "provisioned": True,
    "detail": "1 difference; could not read weights",
    "looked_at": "2026-11-24T03:00:00Z",
    "applied": {
        "entry": 3,
        "at": "2026-11-24T02:00:00Z",
        "by": {"user": "ann", "control_host": "desk"},
        "inventory": "inventories/one",
        "kimi_prov": "1.0",
    },
    "weights_read": False,
    "weights_read_from": {},
    "drift": [ROW],
    "unseen": [{"what": "weights", "why": "no manifest", "fix": None}],
    "plan": PLAN,
}


def document(planned=PLAN, why=None, inventory="inv dir"):
    host = {**drift.make_document(FOUND, planned, why, inventory), "stand_ins": []}
    hosts = {"a": host, "b": drift.make_unreached_entry("ssh: no route")}
    return {"schema": "kimi-prov/drift/v1", "ok": False, "complete": False, "hosts": hosts}


@pytest.mark.parametrize(("planned", "why"), [(PLAN, None), (None, "kimi_model: no such model")])
def test_it_fits_its_schema_and_a_renamed_key_does_not(planned, why):
    closed_form.validate(document(planned, why), "drift")
    broken = json.loads(json.dumps(document()).replace('"subject"', '"path"'))
    with pytest.raises(jsonschema.ValidationError):
        closed_form.validate(broken, "drift")


def test_the_command_names_the_inventory_as_one_word():
    assert document()["hosts"]["a"]["drift"][0]["fix"] == "rm /x && kimi-prov apply 'inv dir'"


GROUP = {"members": [{"host": "a"}, {"host": "b"}]}


@pytest.mark.parametrize(
    ("hosts", "group", "applies", "removes"),
    [
        (["a"], None, "kimi-prov apply inv", "kimi-prov key inv --remove eve"),
        (
            ["a", "c"],
            None,
            "kimi-prov apply inv --limit a",
            "kimi-prov key inv --limit a --remove eve",
        ),
        # A group is applied as a whole, and its keys are its head's.
        (
            ["a", "b", "c"],
            GROUP,
            "kimi-prov apply inv --limit a,b",
            "kimi-prov key inv --limit a --remove eve",
        ),
    ],
)
def test_a_command_names_the_host_where_the_inventory_has_others(hosts, group, applies, removes):
    rows = [
        {**ROW, "fix": "rm /x && kimi-prov apply INVENTORY"},
        {**ROW, "fix": "kimi-prov key INVENTORY --remove eve"},
        {**ROW, "fix": "systemctl restart --no-block kimi-serve@0.service"},
    ]
    limit = drift.make_limit_options("a", hosts, group)
    found = drift.make_document({**FOUND, "drift": rows}, PLAN, None, "inv", limit)
    fixes = [row["fix"] for row in found["drift"]]
    assert fixes == [f"rm /x && {applies}", removes, rows[2]["fix"]]


def test_what_would_be_planned_is_apart_and_no_drift():
    planned = {
        "engine": {"version": "0.33.0", "locks": ("a",)},
        "instances": [{"argv": ["a", "--more"], "port": 8001}],
        "findings": [],
        "web": None,
    }
    rows = document(planned)["hosts"]["a"]["would_change"]
    assert [(row["key"], row["applied"], row["planned"]) for row in rows] == [
        ("engine.version", "0.32.0", "0.33.0"),
        ("instances[0].argv", ["a"], ["a", "--more"]),
    ]
    assert document()["hosts"]["a"]["would_change"] == []
    assert document(None, "why")["hosts"]["a"]["would_change"] is None


def test_the_machines_own_code_makes_no_finding_that_the_registry_lacks():
    made = set()
    for module in (compare, run, weights):
        text = Path(module.__file__).read_text()
        made |= {word for word in text.split('"') if word.startswith("drift.")}
    defined = {name for name in DEFINITIONS if name.startswith("drift.")}
    assert made | {drift.OTHERWISE} == defined


def test_text_keeps_to_eighty_columns_but_for_paths_and_breaks_no_word_of_a_command():
    planned = {**PLAN, "engine": {"version": "0.33.0" * 40, "locks": ["a"]}}
    text = drift_text.format_text(document(planned))
    wide = [line for line in text.splitlines() if len(line) > 80]
    assert [line.split()[-1] for line in wide] == [ROW["subject"]]
    words = " ".join(text.split())
    for told in ("could not read weights", "since 2026-11-24T02:29:00Z", "by ann on desk"):
        assert told in words
    assert "no drift): engine.version" in words
    assert "not known: ssh: no route" in words


def test_text_says_why_nothing_was_planned():
    assert "is not known: no such model" in " ".join(
        drift_text.format_text(document(None, "no such model")).split()
    )
