"""The largest body of a request, seen in the plans of hosts and gateways."""

from __future__ import annotations

from typing import Any

import pytest
from plan_inputs import LAB_SETTINGS, lab_facts, plan

from kimi_prov.catalog import loader
from kimi_prov.planner import gateways
from kimi_prov.planner.gateways import GatewayAddress, ServingHost
from kimi_prov.planner.service.request_size import choose_request_size
from kimi_prov.planner.settings.parsing import parse_settings

MIB = 1 << 20


def most_of(**wishes: Any) -> int:
    document = plan(lab_facts(), **wishes)
    return int(document["proxy"]["request_body_max_bytes"])


def chosen(model: str, context: int) -> int:
    settings = parse_settings({**LAB_SETTINGS, "kimi_model": model}, host="gpu1")
    return choose_request_size(settings, loader.load_catalogue().model(model), context)


def test_a_setting_wins_and_else_a_short_context_leaves_room_for_tools() -> None:
    assert most_of() == MIB
    assert most_of(request_body_max=5000) == 5000


def test_the_size_grows_with_the_context_and_where_images_are_served() -> None:
    text = [chosen("kimi-k2-thinking", tokens) for tokens in (1000, 131072, 262144)]
    assert text == sorted(set(text))
    # Every token of the context, each as one escaped character: six bytes.
    assert text[-1] > 6 * 262144
    # An image of 20 MB, in base64.
    assert chosen("kimi-k2.5", 262144) - text[-1] > 20_000_000 * 4 / 3


@pytest.mark.parametrize(("context", "least"), [("auto", MIB), (262144, 4 * MIB)])
def test_a_gateway_lets_pass_what_its_hosts_take(context: object, least: int) -> None:
    settings = parse_settings({**LAB_SETTINGS, "kimi_context": context}, host="gw1")
    hosts = [ServingHost("gpu1", "10.0.9.11", 8000, 32)]
    peers = [GatewayAddress("gw1", "10.0.9.1")]
    found = gateways.make_plan(lab_facts(), settings, loader.load_catalogue(), hosts, peers)
    assert found["proxy"]["request_body_max_bytes"] >= least
    own = plan(lab_facts(), context=context)["proxy"]["request_body_max_bytes"]
    assert found["proxy"]["request_body_max_bytes"] >= own
