"""The definition of a finding: its parts that do not depend on a machine.

Decides: what a finding is and what its severity does (its type).
"""

from __future__ import annotations

import string
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from collections.abc import Mapping

Severity = Literal["blocker", "warning", "info", "pass"]
Remedy = Literal[
    "none",
    "setting",
    "catalogue",
    "software",
    "process",
    "reboot",
    "firmware",
    "gpus",
    "memory",
    "modules",
    "disk",
    "hardware",
    "depends",
]
# What a finding concerns: the choice of a machine, or the setup of a present one.
Concern = Literal["purchase", "deployment"]
# When `apply` fixes the cause of a finding: in every run, or if the plan's driver has an action.
FixedBy = Literal["always", "driver"]

# The most severe first, with the effect of each.
SEVERITIES: Mapping[Severity, str] = {
    "blocker": "`check`, `plan` and `diagnose` exit with 3; with one in its plan `apply` refuses "
    "the host before it changes anything",
    "warning": "it will probably hurt; `apply` goes on and shows it",
    "info": "what was decided or assumed",
    "pass": "what was looked at and is good",
}
# What takes least to remove first.
REMEDIES: Mapping[Remedy, str] = {
    "none": "nothing has to be done",
    "setting": "a variable of the inventory, or a line of the spec sheet",
    "process": "a program that has to end",
    "software": "packages or settings of the running system",
    "reboot": "a restart of the machine",
    "firmware": "a setting of the firmware, which takes a restart",
    "catalogue": "a row, or a lock, of a catalogue of your own",
    "depends": "depends on what was observed: the finding's own fix says it",
    "disk": "more disk; priced where the site names `disk_tb` in its prices.yaml",
    "modules": "memory modules on the empty channels; priced like memory",
    "memory": "more memory; priced where the site names `memory_gib` in its prices.yaml",
    "gpus": "more GPUs, or others; counted by the plan's own sums and priced from prices.yaml",
    "hardware": "other hardware, which nobody prices here",
}
CONCERNS: Mapping[Concern, str] = {
    "purchase": "who chooses the machine has to weigh it",
    "deployment": "it can be settled on any machine before `apply`; a warning of this kind takes "
    "nothing from the verdict on a spec sheet or a recording",
}


@dataclass(frozen=True)
class Definition:
    """One finding: its stable id and all that does not depend on a machine.

    `title` and `titles` may have {names}, which the maker fills in. `titles` holds other wordings:
    those under the name of a severity go with it, the others are named.
    `concerns`: the purchase of a machine, or only its deployment.
    `own_title`, `own_source`: the maker may name them, from a row of the catalogue.
    `blocks_apply`: `apply` refuses the host whatever the severity; the plan alone is a true answer.
    `fixed_by_apply`: when `apply` fixes it itself, and so does not refuse the host for it.
    `moves`: it comes and goes by itself (free memory, free disk, other programs): no other part of
    the plan may depend on it.
    """

    id: str
    title: str
    severities: tuple[Severity, ...]
    source: str
    remedy: Remedy
    concerns: Concern = "purchase"
    titles: Mapping[str, str] = field(default_factory=dict)
    own_title: bool = False
    own_source: bool = False
    blocks_apply: bool = False
    fixed_by_apply: FixedBy | None = None
    moves: bool = False

    def severity(self, named: Severity | None) -> Severity:
        """Return the severity; a maker names it where there are several to choose from.

        Raises ValueError where none is named of several, or one that this finding never has.
        """
        if named is None and len(self.severities) == 1:
            return self.severities[0]
        if named is None or named not in self.severities:
            message = f"{self.id} is one of {', '.join(self.severities)}, not {named}"
            raise ValueError(message)
        return named

    def wording(self, severity: Severity, named: str | None, names: Mapping[str, object]) -> str:
        """Return the title, its {names} filled in. Raises KeyError where one of them is missing."""
        template = self.titles[named] if named else self.titles.get(severity, self.title)
        return template.format(**names)

    def shown_titles(self) -> list[str]:
        """Return every title as Markdown, the names in italics."""
        return [_mark_names(title) for title in (self.title, *self.titles.values())]


def _mark_names(template: str) -> str:
    parts = string.Formatter().parse(template)
    return "".join(text + (f"*{name}*" if name else "") for text, name, _, _ in parts)
