"""The page in the plan."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from plan_inputs import LAB_SETTINGS, found, lab_facts, plan

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.planner.plan import make_plan
from kimi_prov.planner.settings.parsing import parse_settings

if TYPE_CHECKING:
    from pathlib import Path


def test_without_a_wish_there_is_no_page() -> None:
    document = plan(lab_facts())
    assert document["web"] is None
    assert not [row for row in document["findings"] if row["id"].startswith("web.")]


def test_the_page_is_locked_and_named_for_its_version_and_lock() -> None:
    web = plan(lab_facts(), web_ui=True)["web"]
    row = load_catalogue().web[-1]
    assert web["lock"] == f"open-webui-slim-{row.version}-cp311.txt"
    assert web["env_name"] == f"{row.version}-{load_catalogue().locks[web['lock']][:12]}"
    assert web["env_dir"] == f"/srv/kimi/web-env/{web['env_name']}"


def brought(folder: Path, digest: str) -> dict[str, Any]:
    """The page's plan on a machine to which a build of CPython with this digest is brought."""
    facts = lab_facts()
    facts["python"] |= {"path": "/usr/bin/python3", "version": "3.13.5", "others": []}
    build = next(
        row for row in load_catalogue().pythons if (row.minor, row.arch) == ("3.11", "x86_64")
    )
    names = ("version", "build", "arch", "glibc", "url", "bytes", "installed_bytes", "source")
    row = {name: getattr(build, name) for name in names}
    row |= {"confidence": "low", "sha256": digest}
    folder.mkdir()
    (folder / "pythons.yaml").write_text(yaml.safe_dump({"pythons": [row]}))
    given = parse_settings(LAB_SETTINGS | {"kimi_web_ui": True}, host="h1")
    web: dict[str, Any] = make_plan(facts, given, load_catalogue(folder))["web"]
    return web


def test_another_interpreter_that_is_brought_is_another_environment(tmp_path: Path) -> None:
    one, other = (brought(tmp_path / digest, digest * 64) for digest in "ab")
    assert one["lock"] == other["lock"]
    assert one["python"] != other["python"]
    assert one["env_name"] != other["env_name"]
    assert one["env_name"].rpartition("-")[0] == one["version"]


def test_it_asks_the_proxy_alone_and_keeps_to_itself() -> None:
    web = plan(lab_facts(), web_ui=True)["web"]
    given = web["environment"]
    assert given["OPENAI_API_BASE_URL"] == f"http://127.0.0.1:{web['api_port']}/v1"
    assert json.loads(given["OPENAI_API_CONFIGS"])["0"]["model_ids"] == ["kimi-k2-lab"]
    for name in ("SIGNUP", "PLUGINS", "WEB_SEARCH", "ADMIN_CHAT_ACCESS", "PERSISTENT_CONFIG"):
        assert given[f"ENABLE_{name}"] == "false"
    assert not [name for name in given if "SECRET" in name or "PASSWORD" in name or "_KEY" in name]


@pytest.mark.parametrize(("model", "sees"), [("kimi-k2.5", True), ("kimi-k2-instruct", False)])
def test_images_are_offered_where_the_model_sees(model: str, sees: bool) -> None:
    web = plan(lab_facts(), model=model, weights_source=None, web_ui=True)["web"]
    told = json.loads(web["environment"]["DEFAULT_MODEL_METADATA"])
    assert (web["sees_images"], told["capabilities"]["vision"]) == (sees, sees)


def test_a_chat_begins_with_the_question_alone() -> None:
    given = plan(lab_facts(), web_ui=True)["web"]["environment"]
    capabilities = json.loads(given["DEFAULT_MODEL_METADATA"])["capabilities"]
    assert {name for name, able in capabilities.items() if able} == set()
    more = [name for name in given if name.startswith("ENABLE_") and name.endswith("_GENERATION")]
    assert {given[name] for name in more} == {"false"}
    assert json.loads(given["DEFAULT_INTERFACE_SETTINGS"]) == {"showChangelog": False}


@pytest.mark.parametrize(("model", "sees"), [("kimi-k2.5", True), ("kimi-k2-instruct", False)])
def test_an_image_is_suggested_where_the_model_sees(model: str, sees: bool) -> None:
    web = plan(lab_facts(), model=model, weights_source=None, web_ui=True)["web"]
    suggestions = json.loads(web["environment"]["DEFAULT_PROMPT_SUGGESTIONS"])
    assert {len(row["title"]) for row in suggestions} == {2}
    assert any("image" in row["content"] for row in suggestions) == sees


def test_sign_up_is_open_where_it_is_wished_for() -> None:
    web = plan(lab_facts(), web_ui=True, web_signup=True)["web"]
    assert web["environment"]["ENABLE_SIGNUP"] == "true"
    assert web["environment"]["DEFAULT_USER_ROLE"] == "pending"


def test_its_room_on_the_disk_counts_until_it_is_installed() -> None:
    facts = lab_facts()
    without = plan(facts)["disk"]["required_bytes"]
    page = plan(facts, web_ui=True)
    assert page["disk"]["required_bytes"] - without == page["web"]["install_bytes"]
    needs = found(page, "disk.room")[0]["required"]
    facts["kimi"]["web_envs"] = [page["web"]["env_name"]]
    assert found(plan(facts, web_ui=True), "disk.room")[0]["required"] != needs


def test_its_licence_is_told() -> None:
    [row] = found(plan(lab_facts(), web_ui=True), "web.licence")
    assert row["severity"] == "info"
    assert "name and logo stay" in row["observed"]
