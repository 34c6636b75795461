"""What is recognised in the logs and metrics of one machine: a pure function for each finding.

Decides: what `diagnose` recognises.
Applied by: playbooks/diagnose.yml.
Held by: tests/unit/operate/test_diagnosis_rules.py, tests/data/recordings/diagnose,
  tests/unit/commands/test_diagnose_command.py, tests/lab/test_diagnose.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.operate.diagnosis.rules import hardware, logs, metrics, service
from kimi_prov.operate.diagnosis.rules.registry import RULES
from kimi_prov.operate.diagnosis.rules.troubles import find_troubles
from kimi_prov.planner.findings import make_finding, sort_by_severity

if TYPE_CHECKING:
    from kimi_prov.contract.documents.diagnose import Diagnosis
    from kimi_prov.contract.documents.findings import Finding
    from kimi_prov.operate.diagnosis.evidence import Evidence

# Imported for the rules that they register.
_MODULES = (logs, metrics, service)


def run_rules(evidence: Evidence) -> list[Finding | Diagnosis]:
    """Return what is recognised, the most severe first."""
    seen = [
        *((identity, check(evidence)) for identity, check in RULES.items()),
        *hardware.list_failing(evidence),
    ]
    findings: list[Finding | Diagnosis] = [
        make_finding(identity, **observation)
        for identity, observation in seen
        if observation is not None
    ]
    return sort_by_severity([*findings, *find_troubles(evidence, load_catalogue().troubles)])
