"""The site's proxy: taken with a password, and shown nowhere with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from plan_inputs import LAB_SETTINGS, lab_facts, plan

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.contract import paths
from kimi_prov.errors import UserError
from kimi_prov.on_host.system import forward_proxy
from kimi_prov.planner.plan import make_plan
from kimi_prov.planner.settings.parsing import parse_settings
from kimi_prov.runner import redaction

PASSWORD = "s3cr3t%40word"
URL = f"http://user:{PASSWORD}@proxy.example.com:3128"


def test_the_plan_has_the_proxy_without_user_and_password() -> None:
    document = plan(http_proxy=URL, https_proxy="http://proxy.example.com:3129")
    assert document["site"]["proxy"] == {
        "http": "http://proxy.example.com:3128",
        "https": "http://proxy.example.com:3129",
        "no_proxy": ["localhost", "127.0.0.1", "::1"],
        "environment": paths.FORWARD_PROXY,
        "apt": paths.APT_PROXY,
    }
    assert "s3cr3t" not in json.dumps(document)
    assert "user:" not in json.dumps(document)


def test_what_downloads_is_given_the_proxy_by_a_file() -> None:
    word = f"--property=EnvironmentFile={paths.FORWARD_PROXY}"
    assert word in plan(https_proxy=URL)["installation"]["run"]
    without = plan(no_proxy=["mirror.example.com"])
    assert word not in without["installation"]["run"]
    assert without["site"]["proxy"] is None


def test_an_engine_has_nothing_of_it() -> None:
    with_it, without = plan(http_proxy=URL, https_proxy=URL), plan()
    assert with_it["instances"] == without["instances"]


def test_hosts_without_the_proxy_stand_before_the_machine_itself() -> None:
    found = plan(http_proxy=URL, no_proxy=[".corp.example.com", "localhost"])["site"]["proxy"]
    assert found["no_proxy"] == [".corp.example.com", "localhost", "127.0.0.1", "::1"]


@pytest.mark.parametrize(
    "value",
    [
        f"socks5://user:{PASSWORD}@proxy.example.com:1080",
        f"http://user:{PASSWORD} @proxy.example.com:3128",
        f"http://user:{PASSWORD}@",
        f'http://user:{PASSWORD}"@proxy.example.com:3128',
        f"http://user:{PASSWORD}\n@proxy.example.com:3128",
        f"user:{PASSWORD}@proxy.example.com:3128",
        "http://user:s3cr3t/word@proxy.example.com:3128",
        "http://user:s3cr3t#word@proxy.example.com:3128",
        "http://user:s3cr3t?word@proxy.example.com:3128",
        "http://proxy.example.com:3128/s3cr3t",
        "http://s3cr3t.example.com:99999",
        ["s3cr3t"],
    ],
)
def test_what_is_refused_is_not_shown(value: object) -> None:
    with pytest.raises(UserError) as error:
        parse_settings(LAB_SETTINGS | {"kimi_https_proxy": value}, host="h1")
    told = f"{error.value.message} {error.value.fix}"
    assert "kimi_https_proxy" in told
    assert "s3cr3t" not in told


def test_its_password_is_masked_wherever_it_turns_up() -> None:
    secrets = redaction.find_variable_secrets({"kimi_http_proxy": URL}, Path())
    masker = redaction.Masker(secrets)
    assert masker.mask("407 for s3cr3t@word or s3cr3t%40word").count("s3cr3t") == 0


def test_the_machine_reads_what_the_role_writes(tmp_path: Path) -> None:
    file = tmp_path / paths.FORWARD_PROXY[1:]
    file.parent.mkdir(parents=True)
    file.write_text(f'# ours\nhttp_proxy="{URL}"\nno_proxy="localhost,::1"\nPATH="/x"\n')
    assert forward_proxy.read_variables(str(tmp_path)) == {
        "http_proxy": URL,
        "no_proxy": "localhost,::1",
        "APT_CONFIG": paths.APT_PROXY,
    }
    assert forward_proxy.read_variables(str(tmp_path / "none")) == {}


def test_a_plan_is_made_of_the_proxy_s_address_alone() -> None:
    """Another password is no other plan: nothing restarts for it."""
    plans = [
        make_plan(
            lab_facts(),
            parse_settings(LAB_SETTINGS | {"kimi_http_proxy": url}, host="h1"),
            load_catalogue(),
        )
        for url in (URL, URL.replace("s3cr3t", "an0ther"))
    ]
    assert plans[0] == plans[1]
