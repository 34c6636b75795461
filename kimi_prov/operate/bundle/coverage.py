"""Whether an offline bundle has what a machine is to install, before or after it was carried."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kimi_prov.catalog import loader
from kimi_prov.contract.errors import describe_error
from kimi_prov.errors import UserError
from kimi_prov.packaging import bundles, pieces
from kimi_prov.planner.findings import Findings
from kimi_prov.planner.software import bundle

if TYPE_CHECKING:
    from collections.abc import Callable

    from kimi_prov.contract.documents.bundle import Bundle
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.findings import Finding
    from kimi_prov.contract.documents.plan import Plan
    from kimi_prov.planner.software.bundle import WeightsNeed

    Compare = Callable[[Path, tuple[str, ...], str | None], list[str]]


_AGAIN = (
    "make the bundle again for this inventory, with access to the network, and carry what "
    "changed:  kimi-prov bundle INVENTORY --output DIR --sign-with KEY"
)
_LAY = (
    "this is the difference to an earlier bundle: copy it over that one, and name that folder:  "
    "cp -rT DIFFERENCE BUNDLE"
)


def judge_bundle(
    plan: Plan,
    facts: Facts,
    key: str | None,
    *,
    installs: bool = True,
    compare: Compare | None = None,
) -> list[Finding]:
    """Return a plan's findings with one about its offline bundle.

    What the machine has already is not looked for. Without `installs` the weights may come another
    way later. `compare`: `find_faults`, or one that remembers its answers. Raises UserError where
    the bundle is not signed by the operator's key.
    """
    folder = Path(plan["site"]["bundle"]["dir"])
    index = bundles.read_index(folder, key)
    needs = bundle.list_needs(plan, facts)
    faults = bundle.list_missing(needs, index, loader.load_catalogue())
    faults += (compare or find_faults)(folder, tuple(bundle.list_files(needs, index)), key)
    lacks_earlier = "since" in index and any(row.endswith(": missing") for row in faults)
    observed = str(folder)
    weights = [_describe_weights(row, index) for row in needs.weights]
    if installs:
        faults += weights
    elif weights:
        observed = f"{folder}, without {' and '.join(weights)}"
    findings = Findings()
    findings.extend(plan["findings"])
    if faults:
        findings.add(
            "bundle.enough",
            severity="blocker",
            observed=f"{folder}: {'; '.join(faults)}",
            required="every piece that the plan installs, as the index has it",
            fix=_LAY if lacks_earlier else _AGAIN,
        )
    else:
        findings.add(
            "bundle.enough",
            severity="pass",
            observed=observed,
            required="every piece that the plan installs",
        )
    return findings.rows()


def _describe_weights(needs: WeightsNeed, index: Bundle) -> str:
    """Say where the weights come from, and what the index says of another way."""
    if not needs.source:
        return f"the weights of {needs.model}: {needs.variable} is not set"
    rows = (row for row in index["weights"] if row["source"] == needs.source)
    way = next((f": {row['instruction']}" for row in rows), "")
    return f"the weights of {needs.model}, which come from {needs.source}{way}"


def find_faults(folder: Path, files: tuple[str, ...], key: str | None) -> list[str]:
    """Join the pieces where there are some, damaged files again, and compare with the index."""
    index = bundles.read_index(folder, key)
    try:
        pieces.join(folder, index["files"], compare=files)
    except pieces.DamagedError as error:
        return [str(error)]
    except OSError as error:
        raise UserError(
            f"kimi_bundle: {folder}: the pieces cannot be joined: {describe_error(error)}",
            fix="copy them into a folder that can be written, and name that one",
        ) from None
    return bundles.find_faults(folder, index, files)


def find_system(folder: Path, facts: Facts) -> str | None:
    """Return a system of the bundle for a machine of which none is told, such as a sheet's."""
    if facts["host"]["os"]["id"] is not None:
        return None
    rows = bundles.read_index(folder, bundles.find_signer(folder))["archives"]
    arch = facts["host"].get("arch") or bundle.DEFAULT_ARCH
    return next((row["system"] for row in rows if row["arch"] == arch), None)
