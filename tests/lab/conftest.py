"""Hosts that the lab tests share: each is brought up once and taken away at the end."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

import cluster
import pytest
import upgrades
from machines import Host, Lab, make_lab

if TYPE_CHECKING:
    from collections.abc import Iterator

# Tests use the hosts of `shared_lab` or those of their file: make test runs both halves at once.
SHARED, OWN = "shared", "own"

# Allowed is the control machine as the hosts see it, so the outsider is not.
CONTROL = ["{{ lab_gateway }}/32", "{{ lab_gateway6 }}/128"]


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the choice of a half."""
    parser.addoption("--hosts", choices=(SHARED, OWN), help="run the tests of such hosts alone")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave the other half out."""
    if hosts := config.getoption("--hosts"):
        sharing = [item for item in items if "shared_lab" in getattr(item, "fixturenames", ())]
        kept = [item for item in items if (item in sharing) == (hosts == SHARED)]
        config.hook.pytest_deselected(items=[item for item in items if item not in kept])
        items[:] = kept


@pytest.fixture(scope="session", autouse=True)
def _able() -> None:
    """Say what is missing, rather than pass in silence."""
    if os.geteuid() != 0:
        pytest.fail("the lab tests need root: run them as root, or `make test-fast` without them")
    missing = [tool for tool in ("systemd-nspawn", "mmdebstrap", "nft") if not shutil.which(tool)]
    if missing:
        pytest.fail(f"the lab tests need {', '.join(missing)}: make deps")


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Print the figures that tests recorded: how long a group took to serve again, say."""
    for outcome in ("passed", "failed"):
        for report in terminalreporter.getreports(outcome):
            for name, value in report.user_properties:
                terminalreporter.write_line(f"{report.nodeid}: {name}: {value}")


def _lab(factory: pytest.TempPathFactory, name: str, network: str, **parts: object) -> Lab:
    # ssh's control sockets have short paths only.
    return make_lab(factory.mktemp(name) / "inv", network, **parts)  # type: ignore[arg-type]


@pytest.fixture(scope="session")
def shared_lab(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Lab]:
    """One host to be served, one to stay virgin, one to be killed on, one outside."""
    made = _lab(
        tmp_path_factory,
        "lab",
        "10.93.20",
        nodes=["node1", "node2", "node3"],
        outsiders=["client"],
        kimi_allowed_networks=CONTROL,
    )
    made.up()
    yield made
    made.down()


@pytest.fixture(scope="session")
def lab_host(shared_lab: Lab) -> Host:
    """A host that is up."""
    return shared_lab.hosts["node1"]


@pytest.fixture(scope="session")
def virgin_host(shared_lab: Lab) -> Host:
    """A host that no apply has finished on."""
    return shared_lab.hosts["node2"]


@pytest.fixture(scope="session")
def cut_host(shared_lab: Lab) -> Host:
    """A host whose first applies are killed."""
    return shared_lab.hosts["node3"]


@pytest.fixture(scope="session")
def second_host(shared_lab: Lab) -> Host:
    """A host whose address is not allowed."""
    return shared_lab.hosts["client"]


@pytest.fixture(scope="session")
def served_host(lab_host: Host) -> Host:
    """The host after one apply that succeeded."""
    done = lab_host.apply()
    assert done.returncode == 0, done.stdout + done.stderr
    return lab_host


@pytest.fixture(scope="session")
def shaken(tmp_path_factory: pytest.TempPathFactory) -> Iterator[upgrades.Shaken]:
    """A host that serves and that upgrades are tried on; a test leaves it serving."""
    with upgrades.shaken_host(tmp_path_factory.mktemp("shaken")) as made:
        yield made


@pytest.fixture(scope="session")
def slurm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[cluster.Cluster]:
    """A SLURM cluster; a test leaves it without jobs and with both nodes idle."""
    lab = cluster.declare(tmp_path_factory.mktemp("slurm"), "10.93.94")
    try:
        yield cluster.start(lab)
    finally:
        lab.down()
