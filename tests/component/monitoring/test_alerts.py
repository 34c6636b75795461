"""Every alert on series that are made up: it fires where it should, is silent where it should.

promtool of Debian's Prometheus evaluates the rules that are handed out. For each case no other
alert fires either; a rule whose comparison is turned round, or whose time is another, fails.
"""

from __future__ import annotations

import os
import re
import subprocess
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from alert_cases import CASES, LAST, WELL

from kimi_prov.cli import cli
from kimi_prov.monitoring import RULES, alerts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from alert_cases import Case

ALERTS = {alert.name: alert for alert in alerts.load()}
SIGNALS = RULES / "kimi-signals.yml"
RULES_OF_ALERTS = RULES / "kimi-alerts.yml"
INVERTED = {">": "<=", "<": ">=", "==": "!=", "<=": ">", ">=": "<"}
COMPARED = re.compile(r"(?<= )(==|<=|>=|>|<)(?= )")


def promtool(folder: Path, rules: Path, cases: Sequence[Case], *, texts: bool) -> tuple[bool, str]:
    """Whether the cases hold under these rules, and what promtool said."""
    document = {
        "rule_files": [str(SIGNALS), str(rules)],
        "evaluation_interval": "30s",
        "group_eval_order": ["kimi-signals", "kimi-alerts"],
        "tests": [_test(case, texts=texts) for case in cases],
    }
    folder.mkdir(exist_ok=True)
    file = folder / "tests.yml"
    file.write_text(yaml.safe_dump(document))
    # A fifth of its time would go into giving memory back that it soon takes again.
    environment = {**os.environ, "GOGC": "800"}
    done = subprocess.run(
        ["promtool", "test", "rules", str(file)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode == 0, done.stdout + done.stderr


def _test(case: Case, *, texts: bool) -> dict[str, Any]:
    series = {**WELL, **case.changes}
    # No more samples than are looked at.
    needed = f"x{round(2 * max(*case.fires, *case.silent, 0, 0)) + 2}"
    labels = {"severity": ALERTS[case.alert].severity, **case.labels}
    firing = ",".join(f'{key}="{value}"' for key, value in labels.items())
    sample = f'ALERTS{{alertname="{case.alert}",alertstate="firing",{firing}}}'
    told = [
        {
            "expr": 'ALERTS{alertstate="firing"}',
            "eval_time": _time(minutes),
            "exp_samples": [{"labels": sample, "value": 1}] if minutes in case.fires else [],
        }
        for minutes in sorted((*case.fires, *case.silent))
    ]
    said = [
        {
            "eval_time": _time(minutes),
            "alertname": case.alert,
            "exp_alerts": [{"exp_labels": labels, "exp_annotations": _annotations(case, labels)}],
        }
        for minutes in case.fires[:1]
    ]
    return {
        "name": f"{case.alert}: {case.what}",
        "interval": "30s",
        "input_series": [
            {"series": name, "values": values.replace(f"x{LAST}", needed)}
            for name, values in series.items()
            if values
        ],
        "promql_expr_test": told,
        **({"alert_rule_test": said} if texts else {}),
    }


def _time(minutes: float) -> str:
    return f"{round(minutes * 60)}s"


def _annotations(case: Case, labels: dict[str, str]) -> dict[str, str]:
    """What the alert says; a description has labels in it and nothing else that is filled in."""
    alert = ALERTS[case.alert]
    described = re.sub(
        r"\{\{ \$labels\.(\w+) \}\}", lambda found: labels.get(found[1], ""), alert.description
    )
    assert "{{" not in described
    return {
        "summary": case.says,
        "description": described,
        "runbook_url": f"/consoles/kimi-alerts.html#{alert.name}",
        "page": alert.page,
    }


@pytest.mark.parametrize("name", ALERTS)
def test_it_fires_alone_and_where_it_should(name: str, tmp_path: Path) -> None:
    cases = [case for case in CASES if case.alert == name]
    assert any(case.fires and case.silent for case in cases), "no case in which it begins and ends"
    holds, said = promtool(tmp_path, RULES_OF_ALERTS, cases, texts=True)
    assert holds, said


def test_each_case_is_of_an_alert() -> None:
    assert {case.alert for case in CASES} == set(ALERTS)


def test_what_to_do_names_commands_that_there_are() -> None:
    seen = 0
    for alert in ALERTS.values():
        for text in (alert.description, *alert.steps):
            for name, options in re.findall(
                r"kimi-prov ([a-z-]+)((?: (?:--?[a-z-]+|[A-Z]+))*)", text
            ):
                command = cli.commands[name]
                known = {option for row in command.params for option in row.opts}
                assert {word for word in options.split() if word.startswith("-")} <= known, text
                seen += 1
    assert seen > 20


def test_promtool_finds_nothing_to_complain_of() -> None:
    done = subprocess.run(
        ["promtool", "check", "rules", "--lint-fatal", str(SIGNALS), str(RULES_OF_ALERTS)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def mutants(rule: dict[str, Any]) -> Iterator[tuple[str, dict[str, Any]]]:
    """The rule with each of its comparisons turned round, without its time, and with thrice it."""
    expression = rule["expr"]
    for found in COMPARED.finditer(expression):
        other = f"{expression[: found.start()]}{INVERTED[found[1]]}{expression[found.end() :]}"
        yield f"{expression[: found.end() + 8]!r} turned", rule | {"expr": other}
    minutes = int(rule["for"].removesuffix("m"))
    if minutes:
        yield "told at once", rule | {"for": "0m"}
    yield "told late", rule | {"for": f"{3 * minutes + 20}m"}


@pytest.mark.slow
@pytest.mark.parametrize("name", ALERTS)
def test_a_rule_that_is_turned_round_fails_its_cases(name: str, tmp_path: Path) -> None:
    cases = [case for case in CASES if case.alert == name]
    groups = yaml.safe_load(RULES_OF_ALERTS.read_text())["groups"]
    rule = next(row for group in groups for row in group["rules"] if row["alert"] == name)

    def survives(numbered: tuple[int, tuple[str, dict[str, Any]]]) -> str | None:
        number, (what, changed) = numbered
        folder = tmp_path / str(number)
        folder.mkdir()
        rules = folder / "rules.yml"
        rules.write_text(yaml.safe_dump({"groups": [{"name": "kimi-alerts", "rules": [changed]}]}))
        holds, _ = promtool(folder, rules, cases, texts=False)
        return what if holds else None

    with ThreadPoolExecutor(2) as pool:
        left = list(pool.map(survives, enumerate(mutants(rule))))
    assert [what for what in left if what] == []
