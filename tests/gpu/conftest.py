"""Lab hosts with all GPUs of this machine, one each, and none: each brought to a served model.

Each has a report of its own.
"""

from __future__ import annotations

import os
import re
import shutil
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import card_metrics
import engine_unit as unit
import full_size
import gpu_report
import pytest
import steps_bench
import yaml
from groups import make_group
from machines import Host, make_lab

from kimi_prov.contract import paths
from kimi_prov.errors import UserError
from kimi_prov.lab import gpus, nspawn

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

    from groups import Group
    from machines import Lab

MODEL = "kimi-k2-cut"
# The same behind a vision tower.
SEEING = "kimi-k2.5-cut"
HERE = Path(__file__).resolve().parent
# A site's rows: of the cut models, and what KIMI_PROV_CATALOG names beside.
CATALOGUE = HERE / "catalogue"
_REPORT = pytest.StashKey[dict[str, gpu_report.Report]]()
# The tests that need no GPU, those of two hosts, of KTransformers, of images, and of whole models.
_PROCESSOR, _GROUP, _HYBRID = "test_processor_served", "test_group_served", "test_hybrid_served"
_TOWER, _FULL, _LOADERS = "test_tower_served", "test_full_size_served", "test_loaders_served"
_PREPARED = "test_prepared_gpus_served"
_RESIDENT, _SLEEP = "test_resident_served", "test_sleep_served"
# Folders of their reports within the other's.
_WITHIN = {
    _PROCESSOR: "processor",
    _GROUP: "group",
    _HYBRID: "hybrid",
    _TOWER: "tower",
    _FULL: "full",
    _LOADERS: "loaders",
    _PREPARED: "prepared",
    _SLEEP: "sleep",
    _RESIDENT: "resident",
}
# Of a start from what was compiled: no longer than the first, and what comes before it.
_BEFORE_A_START_S = 60.0
# What comes last whatever time is left, for it gives the machine back.
_LAST = (
    *("test_destroy_frees_the_gpus", "test_destroy_leaves_nothing"),
    *("test_destroy_leaves_nothing_on_both", "test_destroy_of_the_hybrid_frees_the_gpu"),
    "test_destroy_of_the_tower_frees_the_gpus",
    *("test_destroy_at_full_size_frees_the_gpus", "test_destroy_at_full_size_leaves_both_hosts"),
    "test_destroy_after_the_loaders_frees_the_gpus",
    "test_destroy_after_prepared_weights_frees_the_gpus",
    "test_destroy_after_weights_were_held_frees_the_gpus",
    "test_destroy_after_a_sleep_frees_the_gpus",
)
_HOSTS = 2
_SHARED_OUT = 2


@dataclass(frozen=True)
class Clock:
    """How long this may take. `end`: by time.monotonic."""

    end: float
    report: gpu_report.Report
    # What nothing is begun with less than.
    least_s: float = 30.0

    @property
    def left_s(self) -> float:
        """Seconds that are left."""
        return self.end - time.monotonic()

    @property
    def a_start_s(self) -> float:
        """Seconds that a further start of the engine takes at most."""
        first = float(self.report.figures.get("first_start_s", unit.FIRST_START_S))
        return max(_BEFORE_A_START_S, min(first + _BEFORE_A_START_S, self.left_s))


_END = pytest.StashKey[float]()


def pytest_configure(config: pytest.Config) -> None:
    """Start the report; figures come to it as the tests find them."""
    folder = Path(os.environ.get("KIMI_PROV_GPU_REPORT", "gpu-report"))
    reports = {name: gpu_report.Report(folder / within) for name, within in _WITHIN.items()}
    config.stash[_REPORT] = {"": gpu_report.Report(folder), **reports}
    minutes = float(os.environ.get("KIMI_PROV_GPU_MINUTES", "600"))
    config.stash[_END] = time.monotonic() + 60 * minutes


def _report_of(item: pytest.Item | pytest.FixtureRequest) -> gpu_report.Report:
    reports = item.config.stash[_REPORT]
    return reports.get(item.path.stem, reports[""])


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Begin nothing that there is no time for; what was not run is told as failed."""
    clock = Clock(item.config.stash[_END], _report_of(item))
    if item.name not in _LAST and clock.left_s < clock.least_s:
        pytest.fail("not run: KIMI_PROV_GPU_MINUTES were over")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Put each test's outcome into the report; a fixture that failed is the test's failure."""
    told = yield
    if item.path.parent == HERE and (told.when == "call" or told.failed):
        report = _report_of(item)
        claim = str(item.function.__doc__)  # type: ignore[attr-defined]
        which = getattr(item, "callspec", None)
        report.outcome(item.name, f"{which.id}: {claim}" if which else claim, told)
    return told


@pytest.fixture(scope="module")
def report(request: pytest.FixtureRequest) -> gpu_report.Report:
    """The module's report, for figures."""
    return _report_of(request)


@pytest.fixture(scope="session")
def given() -> gpus.GpuAccess:
    """What this machine can give; says what it lacks, rather than pass in silence."""
    lacking = nspawn.find_obstacle()
    try:
        found = gpus.find_gpus()
    except UserError as error:
        pytest.fail(f"make gpu needs a machine with GPUs of NVIDIA, and root on it: {error}")
    if lacking:
        pytest.fail(f"make gpu needs nspawn hosts: {lacking}")
    return found


def requested(settings: str, model: str = MODEL) -> dict[str, Any]:
    """What is asked for: a cut model, and what the file that `settings` names adds."""
    named = os.environ.get(settings)
    return {
        "kimi_model": model,
        "kimi_weights_source": f"file:///opt/models/{model}",
        "kimi_context": 4096,
        "kimi_concurrency": 8,
        **(yaml.safe_load(Path(named).read_text()) if named else {}),
    }


@pytest.fixture(scope="session", autouse=True)
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lay the cut models' rows beside a site's own rows and locks."""
    folder = tmp_path_factory.mktemp("catalogue") / "site"
    site = os.environ.get("KIMI_PROV_CATALOG")
    if site:
        shutil.copytree(site, folder)
    shutil.copytree(CATALOGUE, folder, dirs_exist_ok=True)
    os.environ["KIMI_PROV_CATALOG"] = str(folder)
    return folder


@pytest.fixture(scope="session")
def hollow(
    given: gpus.GpuAccess, catalogue: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[full_size.Models]:
    """A file system for models of Kimi's size, whose experts are zeros, and their rows.

    They have as many layers as the cards hold; KIMI_PROV_GPU_LAYERS says fewer.
    """
    assert given.devices
    most = int(os.environ.get("KIMI_PROV_GPU_LAYERS", "1000"))
    folder = tmp_path_factory.mktemp("hollow") / "models"
    folder.mkdir()
    models = full_size.Models(folder, gpu_report.cards(), most)
    models.add_rows(catalogue / "models.yaml")
    full_size.room(folder)
    try:
        yield models
    finally:
        full_size.leave(folder)


@pytest.fixture(scope="session")
def full(
    given: gpus.GpuAccess, hollow: full_size.Models, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[full_size.Asked]:
    """A host with all GPUs and these models, up."""
    assert given.devices
    inventory = tmp_path_factory.mktemp("full") / "inv"
    settings, wishes = _of_full_size()
    made = make_lab(inventory, "10.93.83", nodes=["full1"], settings=settings, **wishes)
    for host in _up(made, hollow.folder):
        yield full_size.Asked.of(host, hollow)


@pytest.fixture(scope="module")
def full_pair(
    given: gpus.GpuAccess, hollow: full_size.Models, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Group, full_size.Asked]]:
    """Two hosts that serve one of these models, up; each has half of the GPUs."""
    cards = _cards(given)
    half = len(cards) // _HOSTS
    if not half:
        pytest.fail(f"one model over {_HOSTS} hosts needs as many GPUs: there is {len(cards)}")
    settings, wishes = _of_full_size()
    folder = tmp_path_factory.mktemp("pair") / "inv"
    made = make_group(folder, "10.93.82", _HOSTS, settings=settings, **wishes)
    shares = [cards[half * at : half * (at + 1)] for at in range(_HOSTS)]
    _deal(made, shares)
    for host in _up(made.lab, hollow.folder):
        yield made, full_size.Asked.of(host, hollow, tuple(made.members[1:]))


def _of_full_size() -> tuple[dict[str, Any], dict[str, Any]]:
    """The lab's variables of a host with these models, and what its inventory asks for always."""
    asked = requested("KIMI_PROV_GPU_SETTINGS")
    own = {"lab_gpus": "all", **_lab_settings(asked, None), "lab_shared": [paths.MODELS]}
    for cut in ("kimi_model", "kimi_weights_source", "kimi_context", "kimi_concurrency"):
        del asked[cut]
    return own, asked


@pytest.fixture(scope="session")
def host(given: gpus.GpuAccess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A host with the GPUs, up; taken away at the end, with all that it made."""
    assert given.devices
    network = "10.93.87"
    asked = {**card_metrics.wishes(network), **requested("KIMI_PROV_GPU_SETTINGS")}
    settings = {**_lab_settings(asked), "lab_gpus": "all"}
    inventory = tmp_path_factory.mktemp("gpu") / "inv"
    yield from _up(make_lab(inventory, network, nodes=["gpu1"], settings=settings, **asked))


@pytest.fixture(scope="module")
def processor_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A host without the GPUs, up."""
    lacking = nspawn.find_obstacle()
    if lacking:
        pytest.fail(f"make gpu needs nspawn hosts: {lacking}")
    asked = requested("KIMI_PROV_GPU_PROCESSOR_SETTINGS")
    inventory = tmp_path_factory.mktemp("processor") / "inv"
    settings = _lab_settings(asked)
    steps = steps_bench.gather_files(tmp_path_factory.mktemp("steps") / "files")
    settings["lab_files"] = [*settings["lab_files"], steps]
    for host in _up(make_lab(inventory, "10.93.86", nodes=["cpu1"], settings=settings, **asked)):
        # A container sees the PCI devices of its machine: a driver would be planned for them.
        host.ssh("mount -t tmpfs -o ro none /sys/bus/pci/devices")
        yield host


@pytest.fixture(scope="module")
def hybrid_host(given: gpus.GpuAccess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A host with the first GPU for KTransformers, up; most experts stay on its processors."""
    assert given.devices
    asked = {
        **requested("KIMI_PROV_GPU_SETTINGS"),
        "kimi_engine": "ktransformers",
        # A card holds the whole cut model: a share of each layer's 384, as a full model leaves.
        "kimi_engine_args": {"kt-num-gpu-experts": 72},
    }
    settings = {**_lab_settings(asked), "lab_gpus": [0]}
    inventory = tmp_path_factory.mktemp("hybrid") / "inv"
    yield from _up(make_lab(inventory, "10.93.85", nodes=["hybrid1"], settings=settings, **asked))


@pytest.fixture(scope="module")
def tower_host(given: gpus.GpuAccess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A host with the GPUs for a model that sees, up."""
    if len(_cards(given)) < _SHARED_OUT:
        pytest.fail("images are shared out over GPUs: that needs two, and there is one")
    network = "10.93.84"
    asked = {
        **card_metrics.wishes(network),
        **requested("KIMI_PROV_GPU_SETTINGS", SEEING),
        # The engine takes its memory's measure by an image of 4225 tokens.
        "kimi_context": 8192,
    }
    settings = {**_lab_settings(asked, SEEING), "lab_gpus": "all"}
    inventory = tmp_path_factory.mktemp("tower") / "inv"
    yield from _up(make_lab(inventory, network, nodes=["tower1"], settings=settings, **asked))


@pytest.fixture(scope="module")
def group(given: gpus.GpuAccess, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Group]:
    """Two hosts that serve one model, up; each has one of the GPUs."""
    cards = _cards(given)
    if len(cards) < _HOSTS:
        pytest.fail(f"one model over {_HOSTS} hosts needs as many GPUs: there is {len(cards)}")
    asked = requested("KIMI_PROV_GPU_SETTINGS")
    folder = tmp_path_factory.mktemp("group")
    made = make_group(folder / "inv", "10.93.88", _HOSTS, settings=_lab_settings(asked), **asked)
    _deal(made, [[card] for card in cards])
    for _ in _up(made.lab):
        yield made


def _deal(group: Group, shares: list[list[int]]) -> None:
    """Give each host of a group its own cards."""
    file = group.lab.inventory / "hosts.yml"
    document = yaml.safe_load(file.read_text())
    for host, cards in zip(group.members, shares, strict=False):
        document["all"]["children"]["kimi"]["hosts"][host.name]["lab_gpus"] = cards
    file.write_text(yaml.safe_dump(document))


@pytest.fixture(scope="module")
def clock(request: pytest.FixtureRequest, report: gpu_report.Report) -> Clock:
    """How much time is left."""
    return Clock(request.config.stash[_END], report)


@pytest.fixture
def served(request: pytest.FixtureRequest, report: gpu_report.Report) -> Host:
    """The host, where apply has served before: what waits for an engine need not wait in vain."""
    outcomes = {row["outcome"] for name, row in report.rows.items() if "apply_serves" in name}
    if outcomes != {"passed"}:
        pytest.fail("apply has not served, so there is nothing to look at")
    hosts = {_PROCESSOR: "processor_host", _HYBRID: "hybrid_host", _TOWER: "tower_host"}
    name = hosts.get(request.path.stem, "host")
    return request.getfixturevalue(name)  # type: ignore[no-any-return]


@pytest.fixture
def serving(served: Host, clock: Clock) -> Host:
    """The host with its engine up: what a test before has left is taken back first."""
    if not unit.serves(served):
        unit.release_memory(served)
        unit.lay(served, [])
        start = unit.restart(served, clock.a_start_s)
        if start.reason:
            pytest.fail(f"it does not serve any more: {start.reason}")
    return served


def _cards(given: gpus.GpuAccess) -> list[int]:
    """The numbers of this machine's cards."""
    found = [re.findall(r"/nvidia(\d+)$", name) for name in given.devices]
    return sorted(int(number) for numbers in found for number in numbers)


def _lab_settings(asked: dict[str, Any], model: str | None = MODEL) -> dict[str, Any]:
    """The lab's own variables, those that were asked for taken out of the others."""
    own = {name: asked.pop(name) for name in [*asked] if name.startswith("lab_")}
    files = [{"src": f"model:{model}", "dest": f"/opt/models/{model}"}] if model else []
    return {"lab_image": "debian-13", "lab_files": files, **own}


def _up(made: Lab, models: Path | None = None) -> Iterator[Host]:
    """Bring a lab up and give its first host; taken away at the end, with all that it made.

    `models`: what its hosts have as their folder of models, where they share one.
    """
    try:
        with full_size.lent(made.inventory, models):
            made.up()
        prepare = os.environ.get("KIMI_PROV_GPU_PREPARE")
        for host in made.hosts.values() if prepare else ():
            host.ssh(str(prepare))
        yield next(iter(made.hosts.values()))
    finally:
        if not os.environ.get("KIMI_PROV_GPU_KEEP"):
            made.down()


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Run what KIMI_PROV_GPU_ORDER names, by words of names and in that order; all without it."""
    words = [word for word in os.environ.get("KIMI_PROV_GPU_ORDER", "").split(",") if word]
    if words:
        chosen = [item for word in words for item in items if word in item.name]
        left = [item for item in items if item not in chosen]
        config.hook.pytest_deselected(items=left)
        items[:] = list(dict.fromkeys(chosen))
