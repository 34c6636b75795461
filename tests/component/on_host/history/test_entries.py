"""An entry of the history puts back what was in place, and tells where it cannot."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kimi_prov.contract import paths as layout
from kimi_prov.contract import unit_names
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.history import applied, entries
from kimi_prov.packaging.resources import find_root

if TYPE_CHECKING:
    from applied_machine import Applied

DROP_IN = f"{layout.UNITS}/kimi-serve@0.service.d/10-plan.conf"


def test_what_was_in_place_comes_back_with_its_link_and_its_mode(machine: Applied) -> None:
    first = machine.entry()
    former = {row["path"]: row for row in first["files"]}
    machine.version("2")
    machine.put(layout.FIREWALL, "new", 0o640)
    assert entries.list_surplus(machine.places, first) == [machine.places.locate(layout.FIREWALL)]

    changed = entries.restore(machine.places, first)

    assert set(changed) == {layout.PLAN, DROP_IN, layout.ENGINE}
    assert machine.places.locate(layout.ENGINE).readlink().name == "vllm-1"
    assert oct(machine.places.plan.stat().st_mode)[-3:] == "640"
    now = {
        name: applied.describe_file(machine.places, machine.places.locate(name))["sha256"]
        for name in former
    }
    assert now == {name: row["sha256"] for name, row in former.items()}
    assert entries.restore(machine.places, first) == []


def test_a_restore_that_was_cut_is_completed_by_the_next(machine: Applied) -> None:
    first = machine.entry()
    machine.version("2")
    # One file of two was replaced when it was cut.
    machine.places.plan.write_text(
        entries.find_copy(machine.places, first, layout.PLAN).read_text()
    )
    assert set(entries.restore(machine.places, first)) == {DROP_IN, layout.ENGINE}
    assert json.loads(machine.places.plan.read_text())["engine"]["version"] == "1"


def test_no_secret_and_no_key_is_kept(machine: Applied) -> None:
    for name in (layout.VERIFY_KEY, layout.KEY_MAP, layout.TLS_PEM, layout.MACHINE_KEY):
        machine.put(name, "SECRET", 0o600)
    machine.put(layout.FORWARD_PROXY, "SECRET", 0o600)
    kept = machine.entry()
    below = [
        p for p in entries.find_folder(machine.places, kept["number"]).rglob("*") if p.is_file()
    ]
    assert not [path for path in below if "SECRET" in path.read_text()]
    document = applied.observe(machine.places)
    hidden = {row["path"] for row in document["files"] if row["sha256"] is None}
    assert {layout.VERIFY_KEY, layout.TLS_PEM, layout.FORWARD_PROXY} <= hidden


def test_a_key_or_a_certificate_that_changes_is_no_other_version(machine: Applied) -> None:
    machine.put(layout.KEY_MAP, "a")
    before = applied.hash_decided(applied.observe(machine.places))
    machine.put(layout.KEY_MAP, "b")
    machine.put(layout.OPERATOR_NEW, "b")
    assert applied.hash_decided(applied.observe(machine.places)) == before
    machine.put(layout.STAGE, "b")
    assert applied.hash_decided(applied.observe(machine.places)) != before


@pytest.mark.parametrize(
    ("gone", "why"),
    [
        (f"{layout.ENGINES}/vllm-1/{layout.ENV_COMPLETE}", "environment is gone"),
        (f"{layout.MODELS}/a/r/{layout.MODEL_VERIFIED}", "weights are gone"),
    ],
)
def test_what_lacks_its_engine_or_its_weights_is_not_put_back(
    machine: Applied, gone: str, why: str
) -> None:
    first = machine.entry()
    assert entries.explain_not_restorable(machine.places, first) is None
    machine.places.locate(gone).unlink()
    assert why in str(entries.explain_not_restorable(machine.places, first))


def test_a_copy_that_is_lost_is_told_before_anything_changes(machine: Applied) -> None:
    first = machine.entry()
    machine.version("2")
    entries.find_copy(machine.places, first, DROP_IN).unlink()
    with pytest.raises(HostError, match=r"has lost .*10-plan\.conf"):
        entries.restore(machine.places, first)
    assert json.loads(machine.places.plan.read_text())["engine"]["version"] == "2"


def test_the_newest_versions_that_served_stay_restorable(machine: Applied) -> None:
    for version in ("1", "2", "3"):
        machine.version(version)
        machine.entry()
    machine.version("4")
    machine.entry(entries.FAILED)
    machine.version("3")
    again = machine.entry()

    dropped = entries.prune(machine.places, keep=2)

    # The third is what the last one is again.
    assert dropped == [1, 3, 4]
    kept = [row["number"] for row in entries.read_all(machine.places) if row["files"]]
    assert kept == [2, again["number"]]
    assert len(entries.read_all(machine.places)) == 5
    assert entries.prune(machine.places, keep=2) == []


def test_an_entry_of_another_form_is_damaged(machine: Applied) -> None:
    made = machine.entry()
    file = entries.find_folder(machine.places, made["number"]) / "entry.json"
    file.write_text('{"schema": "other"}')
    with pytest.raises(HostError, match="its schema is not"):
        entries.read(machine.places, made["number"])
    file.write_text("[")
    with pytest.raises(HostError, match="is damaged"):
        entries.read_all(machine.places)


# Other than a plan decides over them: the page and the certificate stay as they are, and what goes
# back at a boot is of the program. No way back goes to a gateway.
STAY = {
    "kimi-web.service",
    "kimi-acme.service",
    "kimi-return.service",
    "kimi-gateway-address.service",
}


def test_every_unit_that_is_written_from_a_plan_goes_back_with_it(machine: Applied) -> None:
    templates = sorted((find_root() / "roles").glob("*/templates/*.j2"))
    units = {path.stem for path in templates if "kimi_plan" in path.read_text()}
    named = {name for name in units if unit_names.is_ours(name)} - STAY
    assert "kimi-watchdog.service" in named
    for name in named:
        machine.put(f"{layout.UNITS}/{name}", "[Unit]")
    kept = {path.name for path in entries.list_restored_files(machine.places)}
    assert named <= kept
