"""Which Python an engine is installed for, on the systems that servers run, seen in the plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
from plan_inputs import HUGE, LAB_SETTINGS, blocked_by, found, gpu_facts, hybrid_facts, lab_facts

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.contract import paths
from kimi_prov.planner.plan import make_plan
from kimi_prov.planner.settings.parsing import parse_settings

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

# As each comes: version, glibc, and the version of /usr/bin/python3. The last is made up.
SYSTEMS = {
    "ubuntu-22.04": ("2.35", "3.10.12"),
    "ubuntu-24.04": ("2.39", "3.12.3"),
    "debian-12": ("2.36", "3.11.2"),
    "debian-13": ("2.41", "3.13.5"),
    "debian-99": ("2.47", "3.15.0"),
}
# Facts and settings: vLLM without and with GPUs, KTransformers.
MACHINES: dict[str, tuple[Callable[[], dict[str, Any]], dict[str, Any]]] = {
    "cpu": (lab_facts, {}),
    "vllm": (gpu_facts, HUGE),
    "hybrid": (hybrid_facts, HUGE),
}
MIRROR = "https://python.example/builds"


def on(system: str, facts: dict[str, Any]) -> dict[str, Any]:
    name, _, version = system.partition("-")
    glibc, python = SYSTEMS[system]
    facts["host"]["os"] |= {"id": name, "version_id": version}
    facts["host"]["glibc"] = glibc
    facts["python"] |= {"path": "/usr/bin/python3", "version": python, "others": []}
    return facts


def plan(facts: dict[str, Any], overlay: Path | None = None, **settings: Any) -> dict[str, Any]:
    given = LAB_SETTINGS | {f"kimi_{name}": value for name, value in settings.items()}
    return make_plan(facts, parse_settings(given, host="h1"), load_catalogue(overlay))


def without_gpus(system: str = "debian-13", **settings: Any) -> dict[str, Any]:
    return plan(on(system, lab_facts()), **settings)


@pytest.mark.parametrize("machine", MACHINES)
@pytest.mark.parametrize("system", SYSTEMS)
def test_every_system_has_an_interpreter_or_is_brought_one(system: str, machine: str) -> None:
    facts, settings = MACHINES[machine]
    document = plan(on(system, facts()), **settings)
    assert not {row for row in blocked_by(document) if row.startswith("python.")}
    [row] = found(document, "python.lock")
    engine, brought = document["engine"], document["installation"]["python"]
    assert row["severity"] == "pass"
    assert ("is brought" in engine["python_reason"]) is (brought is not None)
    assert engine["lock"] in load_catalogue().locks
    assert engine["lock"].endswith(f"cp{engine['python_version'].replace('.', '')}.txt")
    own = SYSTEMS[system][1].rpartition(".")[0]
    if own == engine["python_version"]:
        assert (brought, engine["python"]) == (None, "/usr/bin/python3")
    else:
        assert engine["python"].startswith(f"{brought['dir']}/")
        assert brought["dir"].startswith(f"{paths.TOOLS}/")
        assert {own, brought["version"], brought["dir"]} <= words(row["observed"])


def words(text: str) -> set[str]:
    return {word.strip("(),;") for word in text.split()}


def test_the_machine_s_python_is_named_once_and_its_version_is_the_reason() -> None:
    facts = on("debian-13", lab_facts())
    facts["python"]["others"] = [{"path": "/usr/bin/python3.13", "version": "3.13"}]
    document = plan(facts)
    [row] = found(document, "python.lock")
    assert row["observed"].startswith("/usr/bin/python3 (3.13); ")
    assert document["engine"]["python_reason"].endswith(", not for 3.13")


def test_the_distribution_s_own_is_taken_where_a_lock_fits_it() -> None:
    debian, ubuntu = (plan(on(name, gpu_facts()), **HUGE) for name in ("debian-12", "ubuntu-24.04"))
    assert debian["engine"]["lock"].endswith("-cp311.txt")
    assert ubuntu["engine"]["lock"].endswith("-cp312.txt")
    assert debian["installation"]["python"] is ubuntu["installation"]["python"] is None


def test_headers_come_with_what_is_brought_and_uv_with_the_system_s_python() -> None:
    asked = {name: plan(on(name, hybrid_facts()), **HUGE)["packages"] for name in SYSTEMS}
    assert {"g++", "python3-dev", "python3-venv"} <= set(asked["debian-12"])
    assert {"g++", "python3-venv"} <= set(asked["debian-13"])
    assert not [name for name in asked["debian-13"] if name.endswith("-dev")]


def test_disk_room_counts_what_is_brought() -> None:
    more = (without_gpus(name)["disk"]["required_bytes"] for name in ("debian-13", "debian-12"))
    assert next(more) - next(more) > 100_000_000


def test_another_interpreter_is_another_environment() -> None:
    brought = without_gpus()
    own = without_gpus("debian-12")
    assert brought["engine"]["locks"] == own["engine"]["locks"]  # what the tests serve
    assert brought["engine"]["env_name"] != own["engine"]["env_name"]


def test_what_cannot_be_had_is_a_blocker_that_says_why() -> None:
    facts = on("debian-13", lab_facts())
    facts["host"]["glibc"] = "2.12"
    [row] = found(plan(facts), "python.lock")
    assert row["severity"] == "blocker"
    assert "glibc 2.12" in row["observed"]
    facts["host"] |= {"glibc": "2.41", "arch": "riscv64"}
    document = plan(facts)
    assert "riscv64" in found(document, "python.lock")[0]["observed"]
    assert document["installation"]["python"] is None


def test_a_quoted_machine_has_its_system_still_to_be_chosen() -> None:
    facts = on("debian-13", lab_facts())
    facts["origin"] = {"kind": "spec", "name": "x", "values": {}}
    facts["host"]["glibc"] = "2.12"
    assert found(plan(facts), "python.lock")[0]["severity"] == "warning"
    facts["python"] |= {"path": None, "version": None}
    silent = plan(facts)
    assert not found(silent, "python.lock")
    assert silent["engine"]["python"] == "/usr/bin/python3"


def test_a_mirror_stands_in_place_of_the_usual_base(tmp_path: Path) -> None:
    usual = without_gpus()["installation"]["python"]
    assert usual["url"].startswith("https://github.com/astral-sh/python-build-standalone/")
    found_there = without_gpus(python_mirror=f"{MIRROR}/")["installation"]["python"]
    assert found_there["url"].startswith(f"{MIRROR}/{usual['build']}/cpython-{usual['version']}%2B")
    copied = without_gpus(python_mirror=str(tmp_path))["installation"]["python"]
    assert copied["url"] == f"file://{copied['archive']}"
    assert f"{usual['version']}+{usual['build']}" in copied["archive"]
    assert usual["archive"] is found_there["archive"] is None
    rows = [list(one["downloads"].values()) for one in (usual, found_there, copied)]
    assert [row["url"] for [row] in rows] == [usual["url"], found_there["url"], copied["url"]]
    assert {row["sha256"] for [row] in rows} == {usual["sha256"]}


ROW = """
pythons:
  - version: 3.11.99
    build: "20300101"
    arch: x86_64
    glibc: "2.17"
    url: https://builds.example/cpython-3.11.99.tar.gz
    sha256: {digest}
    bytes: 1
    installed_bytes: 2
    source: our own build
    confidence: low
"""


def test_a_site_s_own_build_comes_before_ours(tmp_path: Path) -> None:
    (tmp_path / "pythons.yaml").write_text(ROW.format(digest="ab" * 32))
    brought = plan(on("debian-13", lab_facts()), tmp_path)["installation"]["python"]
    assert (brought["version"], brought["sha256"]) == ("3.11.99", "ab" * 32)
    # A mirror has the usual builds: what comes from elsewhere is fetched there.
    mirrored = plan(on("debian-13", lab_facts()), tmp_path, python_mirror=MIRROR)
    assert mirrored["installation"]["python"]["url"] == brought["url"]
