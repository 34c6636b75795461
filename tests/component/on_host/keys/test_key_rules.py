"""Keys that end and keys with limits, through the real HAProxy."""

from __future__ import annotations

import json
import time

import pytest

from kimi_prov.contract import key_rules
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.endpoint import api_client
from kimi_prov.on_host.keys import key_map, listing, metadata, publish

BODY = {"model": "tiny", "messages": [{"role": "user", "content": "hi"}], "max_tokens": 1}
HOUR_S = 3600


def told(proxy, name):
    """The headers of the last request that an engine got, by their names in small letters."""
    _, headers = proxy.engines[0].seen[-1]
    assert name in key_rules.KEY_HEADER + key_rules.RULE_HEADER
    return {n.lower(): v for n, v in headers.items()}.get(name)


def test_a_key_that_was_added_opens_at_once_and_survives_the_next_apply(make_proxy):
    proxy = make_proxy(given={"alice": "sk-alice"})
    fresh = publish.add(proxy.paths, "bob", {})
    assert api_client.request_chat(proxy.endpoint, fresh, BODY).status == 200
    publish.ensure(proxy.paths, {"alice": publish.hash_key("sk-alice")})
    assert api_client.request_chat(proxy.endpoint, fresh, BODY).status == 200
    assert fresh not in "".join(f.read_text() for f in proxy.paths.etc.rglob("*") if f.is_file())
    publish.revoke(proxy.paths, "bob")
    assert (
        api_client.request_chat(proxy.endpoint, fresh, BODY).json()["error"]["code"]
        == "invalid_api_key"
    )
    assert "bob" not in metadata.read(proxy.paths)


def test_a_key_ends_with_the_request_after_its_time_and_no_other_does(make_proxy):
    proxy = make_proxy()
    process = proxy.process.pid
    fresh = publish.add(proxy.paths, "bob", {"ends_in_s": HOUR_S})
    assert api_client.request_chat(proxy.endpoint, fresh, BODY).status == 200
    publish.change(proxy.paths, "bob", {"ends": int(time.time()) - 1})
    reply = api_client.request_chat(proxy.endpoint, fresh, BODY)
    assert (reply.status, reply.json()["error"]["code"]) == (401, "key_expired")
    assert api_client.request_chat(proxy.endpoint, proxy.key(), BODY).status == 200
    publish.change(proxy.paths, "bob", {"ends": None})
    assert api_client.request_chat(proxy.endpoint, fresh, BODY).status == 200
    assert (proxy.process.pid, proxy.process.poll()) == (process, None)


def test_the_engine_is_told_whose_request_it_is_whatever_the_client_says(make_proxy):
    proxy = make_proxy()
    fresh = publish.add(proxy.paths, "bob", {"limits": {"tokens_per_day": 7}})
    forged = {
        "X-Kimi-Key": "verify",
        "x-kimi-rule": "0:0:0:0:0",
        "Connection": "x-kimi-key, x-kimi-rule",
        "Content-Type": "application/json",
    }
    for key, name, rule in ((fresh, "bob", "0:0:0:0:7"), (proxy.key(), "verify", None)):
        connection = api_client.connect(proxy.endpoint)
        headers = {**forged, "Authorization": f"Bearer {key}"}
        connection.request("POST", "/v1/chat/completions", json.dumps(BODY), headers)
        assert connection.getresponse().status == 200
        connection.close()
        assert told(proxy, key_rules.KEY_HEADER) == name
        assert told(proxy, key_rules.RULE_HEADER) == rule
        _, headers = proxy.engines[0].seen[-1]
        assert "x-kimi" not in headers.get("Connection", "")


def test_requests_at_once_are_the_sixth_number_of_a_rule(make_proxy):
    proxy = make_proxy()
    fresh = publish.add(proxy.paths, "bob", {"limits": {"parallel": 4, "tokens_per_day": 7}})
    api_client.request_chat(proxy.endpoint, fresh, BODY)
    assert told(proxy, key_rules.RULE_HEADER) == "0:0:0:0:7:4"
    rule = key_rules.parse("0:0:0:0:7:4")
    assert rule.limits == {"tokens_per_day": 7, "parallel": 4}
    assert rule.text() == "0:0:0:0:7:4"
    (row,) = [row for row in listed(proxy) if row["name"] == "bob"]
    assert row["limits"] == {"tokens_per_day": 7, "parallel": 4}
    publish.change(proxy.paths, "bob", {"limits": {"parallel": None}})
    api_client.request_chat(proxy.endpoint, fresh, BODY)
    assert told(proxy, key_rules.RULE_HEADER) == "0:0:0:0:7"


def test_a_changed_limit_is_told_from_the_next_request_on_and_what_is_not_named_stays(make_proxy):
    proxy = make_proxy()
    fresh = publish.add(
        proxy.paths, "bob", {"limits": {"requests_per_minute": 3}, "ends": 4102444800}
    )
    publish.change(proxy.paths, "bob", {"limits": {"tokens_per_day": 9}})
    api_client.request_chat(proxy.endpoint, fresh, BODY)
    assert told(proxy, key_rules.RULE_HEADER) == "4102444800:3:0:0:9"
    publish.change(proxy.paths, "bob", {"limits": {"requests_per_minute": None}, "ends": None})
    api_client.request_chat(proxy.endpoint, fresh, BODY)
    assert told(proxy, key_rules.RULE_HEADER) == "0:0:0:0:9"


def test_names_that_are_taken_and_rules_that_make_no_sense_are_refused(make_proxy):
    proxy = make_proxy(given={"alice": "sk-alice"})
    before = proxy.paths.key_map.read_text()
    for name in ("alice", "operator", "verify", "watchdog", "web", "a b", ""):
        with pytest.raises(HostError):
            publish.add(proxy.paths, name, {})
    for wish in (
        {"limits": {"tokens_per_hour": 1}},
        {"limits": {"tokens_per_day": 0}},
        {"ends": 0},
    ):
        with pytest.raises(HostError):
            publish.add(proxy.paths, "bob", wish)
    with pytest.raises(HostError, match="no key nobody"):
        publish.change(proxy.paths, "nobody", {"ends": None})
    for name in ("operator", "verify"):
        with pytest.raises(HostError):
            publish.change(proxy.paths, name, {"ends_in_s": 60})
    assert proxy.paths.key_map.read_text() == before


def test_a_rule_of_the_inventory_counts_and_one_that_it_does_not_name_stays(make_proxy):
    proxy = make_proxy(given={"alice": "sk-alice"})
    sha256 = publish.hash_key("sk-alice")
    publish.change(proxy.paths, "alice", {"limits": {"tokens_per_day": 5}})
    publish.ensure(proxy.paths, {"alice": sha256})
    [row] = [r for r in listed(proxy) if r["name"] == "alice"]
    assert row["limits"] == {"tokens_per_day": 5}
    wish = {"sha256": sha256, "ends": None, "limits": {"requests_per_day": 8}}
    assert publish.ensure(proxy.paths, {"alice": wish})["changed"]
    assert not publish.ensure(proxy.paths, {"alice": wish})["changed"]
    [row] = [r for r in listed(proxy) if r["name"] == "alice"]
    assert row["limits"] == {"requests_per_day": 8}


def listed(proxy):
    book = metadata.read(proxy.paths)
    return listing.list_keys(proxy.paths, key_map.parse_map(proxy.paths.key_map.read_text()), book)


def test_the_list_tells_when_keys_were_made_and_end(make_proxy):
    proxy = make_proxy()
    before = int(time.time())
    publish.add(proxy.paths, "bob", {"ends_in_s": HOUR_S})
    publish.add(proxy.paths, "old", {"ends": 1000})
    found = {row["name"]: row for row in listed(proxy)}
    assert before <= found["bob"]["made"] <= time.time()
    assert found["bob"]["ends"] == found["bob"]["made"] + HOUR_S
    assert {name: row["ended"] for name, row in found.items()} == {
        "bob": False, "old": True, "operator": False, "verify": False,
    }  # fmt: skip
    assert found["operator"]["made"] is None
    assert all(row["last_used"] is None for row in found.values())
