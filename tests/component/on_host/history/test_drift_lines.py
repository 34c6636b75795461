"""`drift` shows the lines of a changed file, of files alone that everybody may read."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from applied_machine import DROP_IN

from kimi_prov.contract import paths as layout
from kimi_prov.on_host.drift import changed_lines, compare
from kimi_prov.on_host.history import applied

if TYPE_CHECKING:
    from applied_machine import Applied

SECRET = "hf_of_somebody"
HIDDEN = "a line that names a secret"


def changes(machine: Applied, entry: object) -> dict[str, tuple[str, str]]:
    """Change files after an entry; return what is told of each: applied, and now."""
    was = {**applied.observe(machine.places), "entry": entry}
    machine.put(DROP_IN, f"[Service]\nEnvironment=KIMI_STAMP=2\nTOKEN={SECRET}\nNice=5\n")
    machine.put(layout.SYSCTL, "".join(f"vm.a{at} = 1\n" for at in range(9)))
    machine.put(layout.PLAN, f'{{"{SECRET}": 1}}', 0o640)
    found = compare.list_differences(was, applied.observe(machine.places, was))
    told = changed_lines.add_lines(machine.places, was, found)
    return {row.subject: (row.expected, row.observed) for row in told if row.id == "drift.file"}


def test_the_lines_of_a_changed_file_are_shown(machine: Applied) -> None:
    machine.put(layout.SYSCTL, "vm.swappiness = 1\n")
    told = changes(machine, machine.entry()["number"])
    assert told[DROP_IN][0].endswith(", Environment=KIMI_STAMP=1")
    assert told[DROP_IN][1].endswith(
        ", Environment=KIMI_STAMP=2; a line that names a secret; Nice=5"
    )
    assert told[layout.SYSCTL][1].endswith(", vm.a0 = 1; vm.a1 = 1; vm.a2 = 1; and 6 more")
    assert SECRET not in str(told)


def test_without_a_copy_of_what_was_applied_only_the_sums_are_shown(machine: Applied) -> None:
    machine.put(layout.SYSCTL, "vm.swappiness = 1\n")
    number = machine.entry()["number"]
    # By hand, after the entry and before the record: the copy is not what was applied.
    machine.put(DROP_IN, "[Service]\nEnvironment=KIMI_STAMP=3\n")
    assert "Environment" not in str(changes(machine, number)[DROP_IN])
    for entry in (None, 99):
        machine.put(DROP_IN, "[Service]\nEnvironment=KIMI_STAMP=3\n")
        assert "Environment" not in str(changes(machine, entry)[DROP_IN])


def test_what_is_no_open_file_any_more_is_neither_read_nor_waited_for(machine: Applied) -> None:
    machine.put(layout.SYSCTL, "vm.swappiness = 1\n")
    was = {**applied.observe(machine.places), "entry": machine.entry()["number"]}
    place = machine.places.locate(layout.SYSCTL)
    place.unlink()
    os.mkfifo(place, 0o644)
    machine.put(DROP_IN, f"{SECRET}\n", 0o600)
    found = compare.list_differences(was, applied.observe(machine.places, was))
    told = changed_lines.add_lines(machine.places, was, found)
    assert {layout.SYSCTL, DROP_IN} <= {row.subject for row in told}
    assert SECRET not in str(told)
    assert "swappiness" not in str(told)
