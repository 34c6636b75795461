"""One lab host with all GPUs of this machine, brought to a served model once; a report of it."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gpu_report
import pytest
import yaml
from machines import Host, Lab, make_lab

from kimi_prov.errors import UserError
from kimi_prov.lab import gpus, nspawn

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

MODEL = "kimi-k2-cut"
HERE = Path(__file__).resolve().parent
# A site's rows: of the cut model, and what KIMI_PROV_CATALOG names beside.
CATALOGUE = HERE / "catalogue"
_REPORT = pytest.StashKey[gpu_report.Report]()


def pytest_configure(config: pytest.Config) -> None:
    """Start the report; figures come to it as the tests find them."""
    folder = Path(os.environ.get("KIMI_PROV_GPU_REPORT", "gpu-report"))
    config.stash[_REPORT] = gpu_report.Report(folder)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put each test's outcome into the report; a fixture that failed is the test's failure."""
    told = yield
    if item.path.parent == HERE and (told.when == "call" or told.failed):
        report = item.config.stash[_REPORT]
        report.outcome(item.name, item.function.__doc__, told)  # type: ignore[attr-defined]
    return told


@pytest.fixture(scope="session")
def report(request: pytest.FixtureRequest) -> gpu_report.Report:
    """The report, for figures."""
    return request.config.stash[_REPORT]


@pytest.fixture(scope="session")
def given() -> gpus.Given:
    """What this machine can give; says what it lacks, rather than pass in silence."""
    lacking = nspawn.why_not()
    try:
        found = gpus.find()
    except UserError as error:
        pytest.fail(f"make gpu needs a machine with GPUs of NVIDIA, and root on it: {error}")
    if lacking:
        pytest.fail(f"make gpu needs nspawn hosts: {lacking}")
    return found


def requested() -> dict[str, Any]:
    """What is asked for: the cut model, and what the file KIMI_PROV_GPU_SETTINGS adds."""
    named = os.environ.get("KIMI_PROV_GPU_SETTINGS")
    return {
        "kimi_model": MODEL,
        "kimi_weights_source": f"file:///opt/models/{MODEL}",
        "kimi_context": 4096,
        "kimi_concurrency": 8,
        **(yaml.safe_load(Path(named).read_text()) if named else {}),
    }


@pytest.fixture(scope="session")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lay the cut model's row beside a site's own rows and locks."""
    folder = tmp_path_factory.mktemp("catalogue") / "site"
    site = os.environ.get("KIMI_PROV_CATALOG")
    if site:
        shutil.copytree(site, folder)
    shutil.copytree(CATALOGUE, folder, dirs_exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def host(
    given: gpus.Given, catalogue: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Host]:
    """A host with the GPUs, up; taken away at the end, with all that it made."""
    assert given.devices
    os.environ["KIMI_PROV_CATALOG"] = str(catalogue)
    lab = _lab(tmp_path_factory.mktemp("gpu") / "inv")
    lab.up()
    prepare = os.environ.get("KIMI_PROV_GPU_PREPARE")
    if prepare:
        lab.hosts["gpu1"].ssh(prepare)
    yield lab.hosts["gpu1"]
    if not os.environ.get("KIMI_PROV_GPU_KEEP"):
        lab.down()


@pytest.fixture
def served(host: Host, report: gpu_report.Report) -> Host:
    """The host, where apply has served before: what waits for an engine need not wait in vain."""
    before = report.rows.get("test_apply_serves_on_the_gpus", {})
    if before.get("outcome") != "passed":
        pytest.fail("apply has not served, so there is nothing to look at")
    return host


def _lab(inventory: Path) -> Lab:
    files = [{"src": f"model:{MODEL}", "dest": f"/opt/models/{MODEL}"}]
    asked = requested()
    lab_settings = {"lab_gpus": "all", "lab_image": asked.pop("lab_image", "debian-13")}
    settings = {**lab_settings, "lab_files": files}
    return make_lab(inventory, "10.93.87", nodes=["gpu1"], settings=settings, **asked)
