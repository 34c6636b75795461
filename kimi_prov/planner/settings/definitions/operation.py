"""Variables of an inventory: monitoring, and when the model is stopped or asleep."""

from __future__ import annotations

from kimi_prov.planner.settings.definitions.variable import OFF, ON, Variable, define

_MONITORING = "Watching"
_LIFECYCLE = "Stopped and asleep"

VARIABLES: tuple[Variable, ...] = (
    define(
        _MONITORING,
        "drift_timer",
        "switch",
        OFF,
        "true",
        "Have the machine compare itself once an hour with what was applied; `status` tells what "
        "came of it. `kimi-prov drift` needs no timer.",
    ),
    define(
        _MONITORING,
        "usage_keep_days",
        "count",
        400,
        "800",
        "Days for which `kimi-prov usage` knows what each key used.",
        most=36500,
    ),
    define(
        _MONITORING,
        "metrics",
        "switch",
        OFF,
        "true",
        "Show metrics of engine, proxy, machine and GPUs on a port of their own, for a Prometheus.",
    ),
    define(
        _MONITORING,
        "metrics_port",
        "port",
        9443,
        "9443",
        "TCP port of the metrics, behind the proxy, with its certificate and a key of its own.",
    ),
    define(
        _MONITORING,
        "metrics_networks",
        "networks",
        [],
        '["10.0.9.5/32"]',
        "Networks from which metrics may be read. Empty: from the machine itself alone.",
    ),
    define(
        _MONITORING,
        "metrics_key_file",
        "file",
        None,
        "secrets/metrics-key",
        "File on the control machine with the key that metrics ask for, in one line. Not set: the "
        "machine makes one, /etc/kimi/keys/metrics.key.",
    ),
    define(
        _MONITORING,
        "monitor_local",
        "switch",
        OFF,
        "true",
        "Have the machine run Prometheus and Alertmanager for itself, the head of several hosts "
        "that serve one model for all of them; hosts of the group kimi_monitor do that for all of "
        "the inventory.",
    ),
    define(
        _MONITORING,
        "watchdog",
        "switch",
        ON,
        "false",
        "Have the machine see that an engine hangs (requests wait, and no token comes), keep what "
        "it was at, and restart it. Its limits are options of the role watchdog.",
    ),
    define(
        _LIFECYCLE,
        "stopped_memory",
        "choice",
        "free",
        "keep",
        "What becomes of the RAM disk while the machine is stopped or asleep. free: its memory is "
        "given back, and a start fills it again. keep: it stays, also over a reboot, and a start "
        "is quicker.",
        choices=("free", "keep"),
    ),
    define(
        _LIFECYCLE,
        "idle_stop",
        "interval",
        None,
        "30m",
        "Time without a request after which the machine rests, as 90s, 30m or 2h. Requests under "
        "way and waiting are use; health checks, metrics, verify's own key and refused callers are "
        "not. Of hosts that serve one model together the head rests, and the others wait for it. "
        "Not set: never.",
    ),
    define(
        _LIFECYCLE,
        "idle_action",
        "choice",
        "stop",
        "poweroff",
        "What happens then, after a drain. stop: as `kimi-prov stop`, and kimi_wake says who wakes "
        "it. poweroff: the machine is switched off; naming it is the consent. hook: kimi_idle_hook "
        "is run.",
        choices=("stop", "poweroff", "hook"),
    ),
    define(
        _LIFECYCLE,
        "idle_hook",
        "place",
        None,
        "/usr/local/sbin/release-machine",
        "For hook: a program on the machine, run as root with JSON on its standard input.",
    ),
    define(
        _LIFECYCLE,
        "idle_poweroff_self",
        "switch",
        OFF,
        "true",
        "Consent to poweroff of a machine that is its own control machine.",
    ),
    define(
        _LIFECYCLE,
        "wake",
        "choice",
        "refuse",
        "hold",
        "What a request with a valid key does to a machine that is asleep. refuse: it wakes it, "
        "and is answered 503 with Retry-After and the progress until it serves. hold: it wakes it, "
        "and is kept until it is answered or its client gives up. off: nothing.",
        choices=("refuse", "hold", "off"),
    ),
)
