"""Variables of an inventory: machines that serve one model, and those behind one address."""

from __future__ import annotations

from kimi_prov.planner.settings.definitions.variable import Variable, define

_GROUP = "One model over several machines"
_GATEWAY = "Several machines behind one address"

VARIABLES: tuple[Variable, ...] = (
    define(
        _GROUP,
        "hosts_per_model",
        "count",
        1,
        "2",
        "Number of hosts that serve one model together. Above 1 each child group of kimi with so "
        "many hosts is one such group, else all hosts of kimi are one; the first host of a group "
        "is its head, and has the API's port.",
        most=64,
    ),
    define(
        _GROUP,
        "group_port",
        "port",
        29500,
        "29500",
        "TCP port at which the hosts of a group monitor each other. The engine takes the next "
        "one, and those from 10 to 41 after it.",
    ),
    define(
        _GROUP,
        "group_address",
        "text",
        None,
        "10.1.0.11",
        "This host's own address on the network of the group. Not set: ansible_host if the "
        "machine has that address, else its only one.",
    ),
    define(
        _GATEWAY,
        "gateway_address",
        "text",
        None,
        "10.0.9.10",
        "Address that the hosts of kimi_gateway share: one of them has it, and the other takes it "
        "over if that one fails. Not set: each gateway has its own address.",
    ),
    define(
        _GATEWAY,
        "gateway_requests",
        "count",
        None,
        "32",
        "Requests at once that a gateway sends to this host; more wait at the gateway. Not set: "
        "twice kimi_concurrency for each instance, at least 8.",
    ),
    define(
        _GATEWAY,
        "serial",
        "count",
        "auto",
        "2",
        "Number of machines that a command changes at the same time, while the others serve; hosts "
        "that serve one model together count as one. auto: 1 behind a gateway, all machines "
        "without one; update takes one at a time.",
        auto=True,
    ),
)
