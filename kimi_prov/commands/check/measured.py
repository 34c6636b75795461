"""`check --measured`: match results of a bench with the target of the same machine."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kimi_prov.acceptance import bench, bench_results
from kimi_prov.errors import UserError
from kimi_prov.facts import outline

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.contract.documents.facts import Facts
    from kimi_prov.contract.documents.facts.measured import BenchFacts
    from kimi_prov.contract.documents.plan import MachinePlan


@dataclass(frozen=True)
class Result:
    """A host's part of a bench document, and its place there."""

    file: Path
    host: str
    found: Mapping[str, Any]

    def refusal(self, problem: str) -> UserError:
        """Return the error that refuses the result."""
        return UserError(
            f"{self.file}: {self.host}: {problem}",
            fix="give results of the same machine, model and engine:  kimi-prov bench INVENTORY "
            "--format json --output bench.json",
        )


def match_results(files: Sequence[Path], targets: Sequence[tuple[str, Facts]]) -> list[Any]:
    """Return the results of each target (name and facts), a list for each.

    They are matched by the host's name; a single host in a file also matches a single target.
    Raises UserError for a file with no host that is a target.
    """
    results: list[list[Result]] = [[] for _ in targets]
    for file in files:
        hosts = [Result(file, host, row) for host, row in bench_results.read_results(file).items()]
        pairs = [(place, row) for row in hosts for place in _find_places(row.host, targets)]
        if not pairs and len(hosts) == len(targets) == 1:
            pairs = [(0, hosts[0])]
        if not pairs:
            names = ", ".join(name for name, _ in targets) or "none"
            raise UserError(
                f"{file}: hosts {', '.join(row.host for row in hosts) or 'none'}; targets {names}",
                fix="give --measured the results of a target's own machine, under the same name",
            )
        for place, row in pairs:
            reason = bench_results.find_refusal(row.found)
            if reason:
                raise row.refusal(reason)
            results[place].append(row)
    return results


def _find_places(host: str, targets: Sequence[tuple[str, Facts]]) -> list[int]:
    return [
        place
        for place, (name, facts) in enumerate(targets)
        if host in (name, facts["host"].get("hostname"))
    ]


def list_readings(results: Sequence[Result]) -> list[BenchFacts]:
    """Return the speeds of all results in the form of facts."""
    return [
        {
            "concurrency": level["concurrency"],
            "input_tokens": row.found["serve"]["input_tokens"],
            "output_tokens": row.found["serve"]["output_tokens"],
            "decode_tok_s": level["decode_tok_s"],
            "prefill_tok_s": level["prefill_tok_s"],
        }
        for row in results
        for level in row.found["serve"]["levels"]
    ]


def refuse_others(
    results: Sequence[Result],
    facts: Facts,
    plan: MachinePlan,
    catalogue: Catalogue,
) -> None:
    """Raise UserError, with the differences, for results of another model, engine or machine."""
    here = bench.describe_service(plan)
    for row in results:
        there = row.found["serving"]
        differs = [
            f"{label}: {one} there, {other} here"
            for label, one, other in (
                ("model", row.found["model"], plan["model"]["name"]),
                ("engine", bench.name_engine(row.found), bench.name_engine(plan)),
                *((key, there[key], here[key]) for key in ("weights_format", "method")),
            )
            if one != other
        ]
        differs += outline.list_differences(
            row.found["machine"], outline.make_outline(facts), catalogue
        )
        if differs:
            raise row.refusal(f"it is of something else: {'; '.join(differs)}")
