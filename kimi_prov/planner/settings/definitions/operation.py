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
        "Compare the machine once an hour with what was applied; `status` shows the result. "
        "`kimi-prov drift` needs no timer.",
    ),
    define(
        _MONITORING,
        "usage_keep_days",
        "count",
        400,
        "800",
        "Days for which the usage of each key is kept for `kimi-prov usage`.",
        most=36500,
    ),
    define(
        _MONITORING,
        "metrics",
        "switch",
        OFF,
        "true",
        "Offer metrics of engine, proxy, machine and GPUs on a port of their own, for Prometheus.",
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
        "Networks from which metrics may be read. Empty: only from the machine itself.",
    ),
    define(
        _MONITORING,
        "metrics_key_file",
        "file",
        None,
        "secrets/metrics-key",
        "File on the control machine with the key for metrics, in one line. Not set: the "
        "machine creates one, /etc/kimi/keys/metrics.key.",
        hides="file",
    ),
    define(
        _MONITORING,
        "monitor_local",
        "switch",
        OFF,
        "true",
        "Run Prometheus and Alertmanager on the machine itself; the head of several hosts "
        "that serve one model monitors all of them. Hosts of the group kimi_monitor monitor the "
        "whole inventory.",
    ),
    define(
        _MONITORING,
        "watchdog",
        "switch",
        ON,
        "false",
        "Detect an engine that hangs (requests wait, and no token comes), save its stacks and "
        "logs, and restart it. Its limits are options of the role watchdog.",
    ),
    define(
        _LIFECYCLE,
        "stopped_memory",
        "choice",
        "free",
        "keep",
        "The RAM disk while the machine is stopped or asleep. free: its memory is "
        "freed, and a start fills it again. keep: it stays, also over a reboot, and a start "
        "is quicker.",
        choices=("free", "keep"),
    ),
    define(
        _LIFECYCLE,
        "idle_stop",
        "interval",
        None,
        "30m",
        "Time without a request after which the machine is idle, as 90s, 30m or 2h. Requests in "
        "progress and waiting are use; health checks, metrics, verify's own key and refused "
        "callers are not. Of hosts that serve one model together the head sleeps, and the others "
        "wait for it. Not set: never.",
    ),
    define(
        _LIFECYCLE,
        "idle_action",
        "choice",
        "stop",
        "poweroff",
        "The action on an idle machine, after a drain. stop: as `kimi-prov stop`, and kimi_wake "
        "says what wakes it. sleep: vLLM's process stays, its weights wait in host memory, and the "
        "memory of the GPUs is free; a wake takes seconds. poweroff: the machine is switched off; "
        "this value is the consent. "
        "hook: kimi_idle_hook is run.",
        choices=("stop", "sleep", "poweroff", "hook"),
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
        "The effect of a request with a valid key on a sleeping machine. refuse: it wakes it, "
        "and gets 503 with Retry-After and the progress until it serves. hold: it wakes it, "
        "and waits until it is answered or its client gives up. off: nothing.",
        choices=("refuse", "hold", "off"),
    ),
)
