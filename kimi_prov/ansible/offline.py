"""Whether the offline bundle on the control machine has what a machine is to install."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kimi_prov.catalog import loader
from kimi_prov.packaging import bundles
from kimi_prov.planner.findings import Findings
from kimi_prov.planner.software import bundle

if TYPE_CHECKING:
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.findings import Finding
    from kimi_prov.contract.documents.plan import Plan


def judge_bundle(plan: Plan, facts: Facts, key: str | None) -> list[Finding]:
    """Return the plan's findings with one about its offline bundle.

    What the machine has already is not looked for. Raises UserError where the bundle is not signed
    by the operator's key.
    """
    folder = Path(plan["site"]["bundle"]["dir"])
    index = bundles.read_index(folder, key)
    needs = bundle.list_needs(plan, facts)
    faults = bundle.list_missing(needs, index, loader.load_catalogue())
    faults += bundles.find_faults(folder, index, bundle.list_files(needs, index))
    findings = Findings()
    findings.extend(plan["findings"])
    if faults:
        findings.add(
            "bundle.enough",
            severity="blocker",
            observed=f"{folder}: {'; '.join(faults)}",
            required="every piece that the plan installs, as the index has it",
            fix="make the bundle again for this inventory, with access to the network, and carry "
            "what changed:  kimi-prov bundle INVENTORY --output DIR --sign-with KEY",
        )
    else:
        findings.add(
            "bundle.enough",
            severity="pass",
            observed=str(folder),
            required="every piece that the plan installs",
        )
    return findings.rows()
