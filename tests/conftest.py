"""What holds for every test: a time limit, and what its suite may cost."""

from __future__ import annotations

import gc
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import slow_groups
from hypothesis import HealthCheck, settings

if TYPE_CHECKING:
    from _pytest.terminal import TerminalReporter

# A machine that tests is busy: no example fails for the time that it takes.
settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")

TESTS = Path(__file__).resolve().parent


@dataclass(frozen=True)
class Suite:
    """What the tests of a folder may take, in seconds."""

    # After it a test that hangs is ended; many times what the slowest one takes.
    test_limit_s: int
    # Of all tests together that are not slow, on a quiet machine.
    budget_s: int | None = None


SUITES = {
    "unit": Suite(300, 90),
    "component": Suite(300, 8 * 60),
    "lab": Suite(3600, 28 * 60),
}
# Engines, clients, emulated machines: run by hand or by make test-slow.
OTHER = Suite(2 * 3600)

# When the first test of a suite began and its last one ended, in one process or in several.
periods: dict[str, tuple[float, float]] = {}


def suite_of(path: Path) -> str:
    """Return the folder of tests/ that a test is in."""
    return path.relative_to(TESTS).parts[0]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the choice of a group of slow tests."""
    parser.addoption("--slow-group", metavar="NAME", help="run this group of slow tests alone")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Give each test its limit, but one that brings its own; leave other groups out."""
    if name := config.getoption("--slow-group"):
        groups = slow_groups.read_groups()
        kept = [item for item in items if slow_groups.find_group(groups, item.nodeid) == name]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept
    for item in items:
        if item.get_closest_marker("timeout") is None:
            limit_s = SUITES.get(suite_of(item.path), OTHER).test_limit_s
            item.add_marker(pytest.mark.timeout(limit_s))


def pytest_collection_finish() -> None:
    """Leave what was imported out of the collector's rounds: it stays to the end."""
    gc.freeze()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Extend the period of a test's suite by the test, its fixtures included."""
    name = suite_of(TESTS.parent / report.nodeid.partition("::")[0])
    began, ended = periods.get(name, (report.start, report.stop))
    periods[name] = (min(began, report.start), max(ended, report.stop))


def pytest_terminal_summary(terminalreporter: TerminalReporter) -> None:
    """Say what each suite took of its budget; a busy machine fails nothing."""
    for name, (began, ended) in periods.items():
        spent = ended - began
        budget_s = SUITES.get(name, OTHER).budget_s
        text = f"{name}: {spent:.0f} s of tests"
        if budget_s:
            text += f", budget {budget_s} s" + (" EXCEEDED" if spent > budget_s else "")
        terminalreporter.write_line(text)
