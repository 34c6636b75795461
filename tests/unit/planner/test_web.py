"""The page in the plan."""

from __future__ import annotations

import json

import pytest
from plan_inputs import found, lab_facts, plan

from kimi_prov.catalog.loader import load


def test_without_a_wish_there_is_no_page() -> None:
    document = plan(lab_facts())
    assert document["web"] is None
    assert not [row for row in document["findings"] if row["id"].startswith("web.")]


def test_the_page_is_locked_and_named_for_its_version_and_lock() -> None:
    web = plan(lab_facts(), web_ui=True)["web"]
    row = load().web[-1]
    assert web["lock"] == f"open-webui-slim-{row.version}-cp311.txt"
    assert web["env_name"] == f"{row.version}-{load().locks[web['lock']][:12]}"
    assert web["env_dir"] == f"/srv/kimi/web-env/{web['env_name']}"


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
