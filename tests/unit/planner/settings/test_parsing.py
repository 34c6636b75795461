"""What is wrong in an inventory is refused in one sentence that says where and what instead."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Literal, get_args, get_type_hints

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from plan_inputs import LAB_SETTINGS, lab_facts

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.planner.plan import make_plan
from kimi_prov.planner.settings import definitions
from kimi_prov.planner.settings.locate import make_locator
from kimi_prov.planner.settings.parsing import Auto, Settings, parse_settings

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.planner.settings.definitions.variable import Variable


def refused(values: dict, **more: object) -> UserError:
    with pytest.raises(UserError) as caught:
        parse_settings(LAB_SETTINGS | values, host="h1", **more)
    assert caught.value.exit_code == ExitCode.BAD_INPUT
    assert caught.value.fix
    return caught.value


def test_every_example_and_default_is_accepted_by_its_own_check(tmp_path: Path) -> None:
    for variable in definitions.VARIABLES:
        if variable.kind in ("file", "folder", "links"):
            continue
        value = yaml.safe_load(variable.example)
        extra = {"kimi_model": "kimi-k2-lab"} if variable.name != "kimi_model" else {}
        if value == "acme":
            extra["kimi_tls_names"] = ["kimi.example.com"]
        if variable.name == "kimi_idle_hook":
            extra["kimi_idle_action"] = "hook"
        if variable.name in ("kimi_hour_usd", "kimi_budget_usd"):
            extra |= {"kimi_idle_stop": "20m", "kimi_hour_usd": 26}
        parse_settings({variable.name: value, **extra}, host="h1")


def declared(variable: Variable) -> object:
    """The type of a variable's value, as its definition has it."""
    if variable.choices:
        return Literal[(*variable.choices, *(["auto"] if variable.auto else []))]
    if variable.kind == "off_or_gib":
        return int | Literal["auto", "off"]
    plain: dict[str, Any] = dict.fromkeys(("count", "port", "seconds", "minutes", "interval"), int)
    plain |= {"flags": dict[str, Any], "labels": dict[str, str], "switch": bool}
    plain |= {"share": float, "dollars": float}
    kind = plain.get(variable.kind, str)
    if variable.default == []:
        return list[str]
    if variable.auto and kind is int:
        return int | Literal["auto"]
    return kind | None if variable.default is None and variable.name != "kimi_model" else kind


def test_settings_have_a_field_of_each_variables_type() -> None:
    # What `check` sets beside them, and what is read from elsewhere.
    lengths = {name.removeprefix("kimi_") for name in definitions.LENGTH_VARIABLES}
    beside = {"host", "address", "manifest", "draft_manifest", "kt_manifest", "served", *lengths}
    types = {name: kind for name, kind in get_type_hints(Settings).items() if name not in beside}
    assert types == {v.name.removeprefix("kimi_"): declared(v) for v in definitions.VARIABLES}
    assert set(get_args(Auto)) == {
        v.name.removeprefix("kimi_") for v in definitions.VARIABLES if v.auto
    }


def test_a_misspelt_variable_is_named_with_file_line_and_neighbour(tmp_path: Path) -> None:
    folder = tmp_path / "group_vars"
    folder.mkdir()
    (folder / "kimi.yml").write_text("---\nkimi_model: kimi-k2-lab\nkimi_contxt: 4096\n")
    error = refused({"kimi_contxt": 4096}, locate=make_locator([tmp_path]))
    assert f"{folder / 'kimi.yml'}:3: unknown variable kimi_contxt" in error.message
    assert "kimi_context" in error.message


def test_a_variable_beside_a_host_in_an_ini_file_is_found(tmp_path: Path) -> None:
    (tmp_path / "hosts.ini").write_text("[kimi]\nnode1 kimi_port=8o00\n")
    error = refused({"kimi_port": "8o00"}, locate=make_locator([tmp_path / "hosts.ini"]))
    assert f"{tmp_path / 'hosts.ini'}:2: kimi_port" in error.message


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("kimi_port", 0),
        ("kimi_port", 70000),
        ("kimi_port", True),
        ("kimi_context", "many"),
        ("kimi_context", 0),
        ("kimi_concurrency", "auto"),
        ("kimi_concurrency", 1.5),
        ("kimi_hosts_per_model", 0),
        ("kimi_hosts_per_model", 65),
        ("kimi_engine", "vlm"),
        ("kimi_engine_version", 0.32),
        ("kimi_ram_disk", True),
        ("kimi_allowed_networks", "10.0.0.0/8"),
        ("kimi_allowed_networks", ["10.0.0.1/8"]),
        ("kimi_allowed_networks", [8]),
        ("kimi_allowed_networks", ["fe80::1%x } accept ; #/128"]),
        ("kimi_allowed_networks", ["fe80::1%eth0/128"]),
        ("kimi_apt_mirror", "https://mirror.example.com/\x00debian"),
        ("kimi_apt_mirror", 'https://mirror.example.com/"debian'),
        ("kimi_apt_mirror", "https://mirror.example.com/\x85debian"),
        ("kimi_pip_index_url", "https://pypi.example.com/\u202esimple"),
        ("kimi_weights_source", "ftp://x/y"),
        ("kimi_weights_source", "hf://onlyname"),
        ("kimi_weights_source", "/srv/model"),
        ("kimi_pip_index_url", "index.example/simple"),
        ("kimi_ca_bundle", "/nowhere/ca.pem"),
        ("kimi_pip_find_links", "/nowhere"),
        ("kimi_engine_args", ["--seed", "1"]),
        ("kimi_engine_args", {"a b": 1}),
        ("kimi_served_names", ["two words"]),
        ("kimi_model", 5),
        ("kimi_upgrade_min_speed", 0),
        ("kimi_upgrade_min_speed", 1.5),
        ("kimi_upgrade_min_speed", True),
        ("kimi_upgrade_min_speed", "90%"),
        ("kimi_keep_versions", 0),
        ("kimi_keep_versions", 101),
    ],
)
def test_a_wrong_value_is_refused(name: str, value: object) -> None:
    assert name in refused({name: value}).message


@pytest.mark.parametrize(
    "source",
    [
        "hf://a/b@..",
        "hf://a/b@.",
        "hf://a/b@refs/../main",
        "hf://a/b@/main",
        "hf://a/..@main",
        "hf://../b@main",
        "hf://-a/b",
        "hf://a/b@\u202emain",
        "file:///srv/\x1b[2J",
        "file:///srv/\u202ex",
        "file:///srv/a b",
    ],
)
def test_a_source_that_leaves_its_folder_is_refused(source: str) -> None:
    message = refused({"kimi_weights_source": source}).message
    assert "kimi_weights_source: expected file:///DIRECTORY" in message


@pytest.mark.parametrize("name", ["pip_index_url", "weights_source", "pip_find_links"])
def test_credentials_in_a_url_are_refused_and_not_repeated(name: str) -> None:
    message = str(refused({f"kimi_{name}": "https://me:canary@host.test/x"}))
    assert "credentials" in message
    assert "canary" not in message


def test_a_choice_gets_the_nearest_one() -> None:
    assert "did you mean vllm?" in refused({"kimi_engine": "vlm"}).message


def test_the_model_is_the_one_thing_that_must_be_named() -> None:
    with pytest.raises(UserError, match="kimi_model is not set"):
        parse_settings({}, host="h1")


def test_certificate_and_key_go_together(tmp_path: Path) -> None:
    (tmp_path / "cert.pem").write_text("x")
    refused({"kimi_tls_cert_file": "cert.pem"}, base=tmp_path)


@pytest.mark.parametrize(
    "endpoint",
    [
        "http://hub.example.com",
        "HTTP://10.0.0.7:8080",
        "http://localhost.example.com",
        "http://[::2]",
    ],
)
def test_a_token_is_not_sent_in_clear(tmp_path: Path, endpoint: str) -> None:
    (tmp_path / "token").write_text("hf_canary")
    token = {"kimi_hf_token_file": str(tmp_path / "token")}
    error = refused({"kimi_hf_endpoint": endpoint, **token}, locate=lambda name: f"{name}.yml:3")
    assert error.message.startswith("kimi_hf_endpoint.yml:3: kimi_hf_endpoint: expected https")
    assert "hf_canary" not in str(error)
    parse_settings(LAB_SETTINGS | {"kimi_hf_endpoint": endpoint}, host="h1")
    for safe in (
        "https://hub.example.com",
        "http://localhost:8080",
        "http://127.0.0.2",
        "http://[::1]",
    ):
        parse_settings(LAB_SETTINGS | {"kimi_hf_endpoint": safe, **token}, host="h1")


def test_files_are_looked_for_beside_the_inventory(tmp_path: Path) -> None:
    (tmp_path / "ca.pem").write_text("x")
    settings = parse_settings(LAB_SETTINGS | {"kimi_ca_bundle": "ca.pem"}, host="h1", base=tmp_path)
    assert settings.ca_bundle == str(tmp_path / "ca.pem")


def test_numbers_that_templates_turned_into_text_are_taken() -> None:
    settings = parse_settings(
        LAB_SETTINGS | {"kimi_port": "9000", "kimi_context": " 2048 "}, host="h1"
    )
    assert (settings.port, settings.context) == (9000, 2048)


def test_a_manifest_pins_what_is_served(tmp_path: Path) -> None:
    pinned = tmp_path / "m.json"
    pinned.write_text('{"files": [{"path": "a", "size": 7, "sha256": "%s"}]}' % ("a" * 64))
    settings = parse_settings(LAB_SETTINGS | {"kimi_weights_manifest": str(pinned)}, host="h1")
    plan = make_plan(lab_facts(), settings, load_catalogue())
    assert plan["weights"]["bytes"] == 7
    assert plan["weights"]["manifest"]["files"][0]["path"] == "a"


@pytest.mark.parametrize(
    "text", ["", "{", "[]", '{"files": []}', '{"files": [{"path": "a", "size": 1, "sha256": "x"}]}']
)
def test_a_broken_manifest_is_named(tmp_path: Path, text: str) -> None:
    broken = tmp_path / "m.json"
    broken.write_text(text)
    assert str(broken) in refused({"kimi_weights_manifest": str(broken)}).message


ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=12)
    | st.sampled_from(
        ["auto", "always", "never", "int4", "http://[", "hf://a/b", "~nobody-at-all/x"]
    ),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=100)
@given(
    st.dictionaries(
        st.sampled_from([variable.name for variable in definitions.VARIABLES])
        | st.text(max_size=6).map(lambda tail: "kimi_" + tail),
        ANYTHING,
        max_size=4,
    )
)
def test_no_inventory_however_broken_ends_in_a_traceback(values: dict) -> None:
    try:
        make_plan(
            lab_facts(), parse_settings({**LAB_SETTINGS, **values}, host="h1"), load_catalogue()
        )
    except UserError as error:
        problem = error
    else:
        return
    assert problem.message
    assert problem.fix


def test_a_pipe_is_no_file_and_a_nest_no_manifest(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name in ("kimi_api_keys_file", "kimi_ca_bundle", "kimi_weights_manifest"):
        assert name in refused({name: str(tmp_path / "pipe")}).message
    (tmp_path / "nest.json").write_text("[" * 100_000)
    message = refused({"kimi_weights_manifest": str(tmp_path / "nest.json")}).message
    assert "nested deeper" in message


@pytest.mark.parametrize("value", [float("nan"), float("inf"), [float("-inf")]])
def test_a_flag_s_value_is_one_that_json_can_hold(value: object) -> None:
    assert "kimi_engine_args" in refused({"kimi_engine_args": {"seed": value}}).message


@pytest.mark.parametrize(("given", "meant"), [(True, True), ("true", True), ("False", False)])
def test_a_switch_is_true_or_false_also_as_text(given: object, meant: bool) -> None:
    assert parse_settings(LAB_SETTINGS | {"kimi_web_ui": given}, host="h1").web_ui is meant


@pytest.mark.parametrize("given", [1, "yes, please", ["true"]])
def test_a_switch_is_nothing_else(given: object) -> None:
    assert "kimi_web_ui: expected true or false" in refused({"kimi_web_ui": given}).message
