"""Where things are on the managed machine. The plan carries the same paths to the roles.

Decides: paths, unit names and users on the machine.
Applied by: every role, through the plan.
Held by: tests/unit/roles/test_contracts.py, tests/unit/on_host/test_destroy.py.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import unit_names

if TYPE_CHECKING:
    from collections.abc import Mapping

# Whom the engine and its weights belong to; its group has the same name.
USER = "kimi"
PROXY_USER = "kimi-proxy"
# Whom the page belongs to, and what its accounts keep there.
WEB_USER = "kimi-web"
# As whom the ACME client runs: it reads what certificate authorities answer.
ACME_USER = "kimi-acme"
# As whom Prometheus and Alertmanager run on a host that watches.
MONITOR_USER = "kimi-monitor"

ROOT = "/srv/kimi"
ENGINES = f"{ROOT}/engines"
ENGINE = f"{ROOT}/engine"
MODELS = f"{ROOT}/models"
RAM = f"{ROOT}/ram"
LIB = f"{ROOT}/lib"
ZIPAPP = f"{LIB}/kimi-target.pyz"
TOOLS = f"{ROOT}/tools"
# Interpreters that were brought, each in a directory named for its build.
PYTHONS = f"{TOOLS}/python"
CACHE = f"{ROOT}/cache"
TUNED = f"{ROOT}/tuned"
# CUDA kernels of KTransformers, assembled when it is installed.
KT_CUDA = f"{CACHE}/kt-cuda"
# Accounts, chats and uploads of the page; and its environments, with a link to the one in use.
WEB = f"{ROOT}/web"
WEB_ENVS = f"{ROOT}/web-env"
WEB_ENV_NAME = "current"
WEB_ENV = f"{WEB_ENVS}/{WEB_ENV_NAME}"
# An archive, while it is fetched or brought.
TRANSFER = f"{ROOT}/transfer"

ETC = "/etc/kimi"
PLAN = f"{ETC}/plan.json"
WEIGHTS = f"{ETC}/weights.json"
STAGE = f"{ETC}/stage.json"
CONVERT = f"{ETC}/convert.json"
CA_BUNDLE = f"{ETC}/ca-bundle.pem"
# The site's proxy with its password, for systemd and for apt.
FORWARD_PROXY = f"{ETC}/forward-proxy.env"
APT_PROXY = f"{ETC}/apt-proxy.conf"
# The site's mirror, for our own apt calls alone.
APT_CONFIG = f"{ETC}/apt.conf"
APT_SOURCES = f"{ETC}/apt.sources"
HUB_TOKEN = f"{ETC}/keys/hub-token"
BUCKET_CREDENTIALS = f"{ETC}/keys/bucket-credentials"
STOOD_IN_FOR = f"{ETC}/stood-in-for.json"
ENV = f"{ETC}/env"
# What the proxy sends to the engines, and what they ask for.
MACHINE_KEY = f"{ETC}/machine-key.map"
KEYS = f"{ETC}/keys"
# The operator's key in clear until it was shown; the key by which a machine tests itself.
OPERATOR_NEW = f"{KEYS}/operator.new"
VERIFY_KEY = f"{KEYS}/verify.key"
# By which the page speaks to the engine; its first administrator until the account is made, and in
# clear until it was shown.
WEB_KEY = f"{KEYS}/web.key"
# As `key --list` shows it.
WEB_KEY_NAME = "web"
# Of each key when it was made, when it ends, its limits; of those that `key --add` made the hash.
KEY_METADATA = f"{KEYS}/book.json"
WEB_SECRETS = f"{ETC}/web.env"
WEB_ADMIN = f"{ETC}/web-admin.env"
WEB_ADMIN_NEW = f"{KEYS}/web-admin.new"
# By which metrics are read, where the control machine gave none; its hash, as the proxy reads it.
METRICS_KEY = f"{KEYS}/metrics.key"
PROXY = f"{ETC}/proxy"
METRICS_KEY_MAP = f"{PROXY}/metrics-keys.map"
PROXY_CONFIG = f"{PROXY}/haproxy.cfg"
PROXY_CONFIG_DIGEST = f"{PROXY}/stamp.cfg"
KEY_MAP = f"{PROXY}/keys.map"
# When keys end and what limits they have, by name (contract/key_rules.py).
KEY_RULES = f"{PROXY}/rules.map"
# At a gateway: asks the counter whether a key may go on.
KEY_LIMITS = f"{PROXY}/limits.lua"
# What clients are told while the machine does not serve on purpose; empty while it does.
REST_MAP = f"{PROXY}/rest.map"
TLS_PEM = f"{PROXY}/tls.pem"
# At a gateway: the certificate of each host behind it, which it trusts there and no other.
HOSTS = f"{PROXY}/hosts"
# At the gateway that has the page: the certificate, with its key, that the other one trusts for it.
WEB_UI_PEM = f"{PROXY}/page.pem"
# And what keepalived there is told of the address that gateways share.
ADDRESS_CONFIG = f"{ETC}/address.conf"
# Its certificates alone, without the private key.
TLS_CERTIFICATE = f"{PROXY}/tls.crt"
# What is ordered, and what was issued last, with its key.
ACME_SETTINGS = f"{ETC}/acme.json"
ACME_PEM = f"{PROXY}/acme.pem"
FIREWALL = f"{ETC}/firewall.nft"
# Unit files of this product and of the administrator.
UNITS = "/etc/systemd/system"
# Reloads our table after the distribution's firewall has emptied the rule set.
FIREWALL_DROP_IN = f"{UNITS}/nftables.service.d/kimi-firewall.conf"
TMPFILES = "/etc/tmpfiles.d/kimi.conf"
TUNING_TMPFILES = "/etc/tmpfiles.d/kimi-tuning.conf"
SYSCTL = "/etc/sysctl.d/80-kimi.conf"
NVIDIA_PIN = "/etc/apt/preferences.d/kimi-nvidia.pref"
UNATTENDED_UPGRADES = "/etc/apt/apt.conf.d/52kimi-nvidia"
# Keeps needrestart, which upgrades call, from restarting an engine that loads for an hour.
NEEDRESTART = "/etc/needrestart/conf.d/kimi.conf"
# Starts the fabric manager only where there is one to manage.
FABRIC_DROP_IN = f"{UNITS}/{unit_names.FABRIC_MANAGER}.d/kimi.conf"
# What an instance of the engine runs, beside its unit and an administrator's own drop-ins.
SERVE_DROP_IN = "10-plan.conf"

HOME = "/var/lib/kimi"
STATE = f"{HOME}/state"
# What the first apply found, for `destroy`.
BEFORE = f"{STATE}/before.json"
# Rules of ours in ufw or firewalld.
FIREWALL_STATE = f"{STATE}/firewall.json"
# The version of the driver that this product installed, held, and can go back to.
DRIVER_STATE = f"{STATE}/driver.json"
DRIVER = f"{HOME}/driver"
# The ACME client's own: its account and certificates, the program that writes records in DNS.
ACME = f"{HOME}/acme"
ACME_HOOK = f"{ACME}/dns-hook"
# What came of the last order.
ACME_STATE = f"{STATE}/acme.json"
# With which engine and driver the GPUs were seen to sum up over NCCL.
NCCL_STATE = f"{STATE}/nccl.json"
# Held by whoever makes the proxy run what is in place: an apply, or the order of a certificate.
PROXY_LOCK = f"{STATE}/proxy.lock"
# The page that answered last, and its database from before a change, until that has answered.
WEB_STATE = f"{STATE}/web.json"
WEB_BEFORE = f"{STATE}/web-before.db"
# The units that the running engines were started with, by stamp.
STARTED = f"{STATE}/serve"
# What was applied last, and what each apply left: NNNN/entry.json, its plan and its files.
APPLIED = f"{STATE}/applied.json"
HISTORY = f"{STATE}/history"
# What kimi-drift.timer found last, for `status`.
DRIFT_STATE = f"{STATE}/drift.json"
# What keys used: the counter's database, and what it tells the monitoring.
USAGE = f"{HOME}/usage"
USAGE_DB = f"{USAGE}/usage.db"
USAGE_PROM = f"{USAGE}/usage.prom"
# What the node exporter shows beside the machine's own: `*.prom`, each written by its own unit.
METRICS = f"{HOME}/metrics"
METRICS_FILE = f"{METRICS}/kimi.prom"
# Counts that outlast a boot, and what is looked at more seldom than metrics are written.
METRICS_STATE = f"{STATE}/metrics.json"
# Written before the distribution's node exporter is installed for us: its own unit stays off.
NODE_EXPORTER_STATE = f"{STATE}/node-exporter.json"
# Of a host that watches: its settings and keys; its series, and what was there before.
MONITOR_ETC = "/etc/kimi-monitor"
MONITOR_HOME = "/var/lib/kimi-monitor"
MONITOR_FIREWALL = f"{MONITOR_ETC}/firewall.nft"
MONITOR_FIREWALL_DROP_IN = f"{UNITS}/nftables.service.d/kimi-monitor.conf"
# What the watchdog saw and did, its metrics, and what it kept of engines that hung.
WATCHDOG_STATE = f"{STATE}/watchdog.json"
WATCHDOG_METRICS = f"{METRICS}/watchdog.prom"
HANGS = f"{HOME}/hangs"
# While it stands no engine starts: stopped by the operator, or asleep.
STOPPED = f"{STATE}/stopped.json"
# How long the last starts took.
STARTS = f"{STATE}/starts.json"
# How long the machine has rested, in all and the last times.
RESTS = f"{STATE}/rests.json"
# What a machine that is paid for by the hour has cost.
SESSIONS = f"{STATE}/sessions.json"
# A switch under way: written before the first file changes, removed after the verdict.
SWITCH = f"{STATE}/switch.json"
# NCCL plugins that were moved away, each by its own path, until `destroy` brings them back.
QUARANTINE = f"{HOME}/set-aside"

RUN = "/run/kimi"
PROGRESS = f"{RUN}/progress"
# How far long work is, each written by its own unit.
FETCH_PROGRESS = f"{PROGRESS}/fetch.json"
STAGE_PROGRESS = f"{PROGRESS}/stage.json"
CONVERT_PROGRESS = f"{PROGRESS}/convert/convert.json"
BENCH_PROGRESS = f"{PROGRESS}/bench.json"
SWITCH_PROGRESS = f"{PROGRESS}/switch.json"
REST_PROGRESS = f"{PROGRESS}/rest.json"
# A file for each run of the unit of that name, while it lasts; for root's eyes.
SANDBOX_ENVS = f"{RUN}/sandbox"
# What a host gives of its weights and to whom; and, for root's eyes, the certificate that it shows
# them, and from whom it takes weights itself, by which key.
SHARE = f"{RUN}/share.json"
SHARE_LOCK = f"{RUN}/share.lock"
NEIGHBOURS = f"{RUN}/neighbours"
SHARE_PEM = f"{NEIGHBOURS}/tls.pem"
NEIGHBOUR = f"{NEIGHBOURS}/from.json"
APPLY_LOCK = "/run/kimi-apply.lock"
# How often a group's engine did not come up; kept while its unit is started anew.
GROUP_RUN = "/run/kimi-group"
PROXY_SOCKET = "/run/kimi-proxy/admin.sock"
# That of the process above its workers, of which a reload leaves one that ends its requests.
PROXY_MASTER = "/run/kimi-proxy/master.sock"
# Where engines ask the counter whether a key may, and tell it what was used.
USAGE_SOCKET = "/run/kimi-usage/counter.sock"
# Where the proxy asks it for gateways what keys used a moment ago; and at a gateway whether a key
# may go on, by a program of HAProxy's.
USAGE_RECENT_SOCKET = "/run/kimi-usage/recent.sock"
USAGE_LIMITS_SOCKET = "/run/kimi-usage/limits.sock"
# Gone after a boot: what kimi-rest.service is to do, when a start was asked for, and whether the
# engines may start though STOPPED stands, for somebody wakes them.
REST_JOB = "/run/kimi-rest.json"
BEGUN = "/run/kimi-begun.json"
WAKING = "/run/kimi-waking"
# How long nobody has asked, by the monotonic clock.
IDLE = "/run/kimi-idle.json"
WAKE_SOCKET = "/run/kimi-wake.sock"
# When what this session costs was last kept in the bucket of the weights, and what is kept there.
SESSIONS_KEPT = "/run/kimi-sessions.json"
# All of these.
REST_RUN = (REST_JOB, BEGUN, WAKING, IDLE, WAKE_SOCKET, SESSIONS_KEPT)

# Written last into an engine's environment, and beside an interpreter that was brought: without it
# either is half made.
ENV_COMPLETE = ".complete"
# Written last into a model's directory.
MODEL_VERIFIED = ".kimi-verified"
# The table of the firewall, as nft names it.
FIREWALL_TABLE = ("inet", "kimi")
# That of a host that watches: a host may do both.
MONITOR_TABLE = ("inet", "kimi_monitor")


# Files of the roles whose content, owner and mode are facts: a role writes only what differs.
MANAGED = (
    UNATTENDED_UPGRADES,
    NEEDRESTART,
    SYSCTL,
    f"{UNITS}/{unit_names.FIREWALL}",
    f"{UNITS}/{unit_names.PROXY}",
    f"{UNITS}/{unit_names.USAGE}",
    f"{UNITS}/{unit_names.ACME}",
    f"{UNITS}/{unit_names.ACME_TIMER}",
    f"{UNITS}/{unit_names.DRIFT}",
    f"{UNITS}/{unit_names.DRIFT_TIMER}",
    f"{UNITS}/{unit_names.METRICS}",
    f"{UNITS}/{unit_names.METRICS_TIMER}",
    f"{UNITS}/{unit_names.NODE_EXPORTER}",
    f"{UNITS}/{unit_names.WATCHDOG}",
    f"{UNITS}/{unit_names.GATEWAY_ADDRESS}",
    f"{UNITS}/{unit_names.RETURN}",
    f"{UNITS}/{unit_names.IDLE}",
    f"{UNITS}/{unit_names.IDLE_TIMER}",
    f"{UNITS}/{unit_names.WAKE}",
    f"{UNITS}/{unit_names.WAKE_SOCKET}",
    FIREWALL_DROP_IN,
    TUNING_TMPFILES,
    TMPFILES,
    CA_BUNDLE,
    APT_CONFIG,
    APT_SOURCES,
    FIREWALL,
    PROXY_CONFIG,
    KEY_LIMITS,
    ADDRESS_CONFIG,
    PLAN,
    STOOD_IN_FOR,
)

# What comes and changes with the driver.
DRIVER_FILES = (
    FABRIC_DROP_IN,
    UNATTENDED_UPGRADES,
    "/etc/apt/sources.list.d/kimi-nvidia.sources",
    NVIDIA_PIN,
    "/etc/apt/keyrings/kimi-nvidia.asc",
    "/etc/apt/keyrings/kimi-nvidia.gpg",
)
# Files of ours among the distribution's, whatever version wrote them: `destroy` takes these away
# and no other. Units are apart.
AMONG_OTHERS = (
    FIREWALL_DROP_IN,
    MONITOR_FIREWALL_DROP_IN,
    TMPFILES,
    TUNING_TMPFILES,
    SYSCTL,
    NEEDRESTART,
    *DRIVER_FILES,
)
# What a rollback puts back, beside units: what roles write from a plan. Never keys, certificates,
# accounts, packages or the driver: these are as they are now.
RESTORED = (
    PLAN,
    WEIGHTS,
    STAGE,
    CONVERT,
    STOOD_IN_FOR,
    PROXY_CONFIG,
    FIREWALL,
    FIREWALL_DROP_IN,
    SYSCTL,
    TUNING_TMPFILES,
)
# What kimi-prov itself changes between two applies: its content is no drift.
LIVING = (
    f"{KEYS}/*",
    KEY_MAP,
    KEY_RULES,
    METRICS_KEY_MAP,
    REST_MAP,
    TLS_PEM,
    TLS_CERTIFICATE,
    f"{HOSTS}/*",
    WEB_UI_PEM,
    ACME_PEM,
    PROXY_CONFIG_DIGEST,
    MACHINE_KEY,
    WEB_ADMIN,
)
# What holds a password that could be guessed from its hash.
UNHASHED = (FORWARD_PROXY, APT_PROXY, WEB_SECRETS)

# What is ours in ROOT, but for the weights and the page's data.
IN_ROOT = (ENGINES, ENGINE, RAM, LIB, TOOLS, CACHE, TUNED, WEB_ENVS, TRANSFER)

# Homes of the users that are made since the first versions, whose record says nothing of them.
LATER_HOMES = {WEB_USER: WEB, ACME_USER: "/nonexistent"}
_EXISTED = {
    USER: "user_existed",
    PROXY_USER: "proxy_user_existed",
    WEB_USER: "web_user_existed",
    ACME_USER: "acme_user_existed",
}


def did_user_exist(before: Mapping[str, Any], name: str, home: str) -> bool:
    """Whether a user was there before the first apply, by that one's record and the user's home."""
    key = _EXISTED[name]
    if key in before:
        return bool(before[key])
    # The record is of a version that made no such user: by its home one of ours is known.
    return home != LATER_HOMES.get(name, home)


def build_tuned_path(version: str) -> str:
    """Return the folder of the kernels' tables that were tuned with a version of vLLM."""
    return f"{TUNED}/vllm-{version}"


def join_root(root: str, name: str) -> str:
    """Return an absolute path of the machine below `root`, which is `/` on the machine.

    Code that reads files takes such a root, so that a test can give it a directory.
    """
    return root.rstrip("/") + name


class _At:
    """A path of the machine, below the root of whoever has it."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __get__(self, paths: Paths, owner: object = None) -> Path:
        return paths.locate(self._name)


class Paths:
    """Files of the proxy, the keys and the firewall under one root."""

    etc = _At(ETC)
    plan = _At(PLAN)
    machine_key = _At(MACHINE_KEY)
    keys = _At(KEYS)
    operator_new = _At(OPERATOR_NEW)
    verify_key = _At(VERIFY_KEY)
    web_key = _At(WEB_KEY)
    key_book = _At(KEY_METADATA)
    key_rules = _At(KEY_RULES)
    usage_db = _At(USAGE_DB)
    usage_prom = _At(USAGE_PROM)
    usage_socket = _At(USAGE_SOCKET)
    usage_recent_socket = _At(USAGE_RECENT_SOCKET)
    usage_limits_socket = _At(USAGE_LIMITS_SOCKET)
    key_limits = _At(KEY_LIMITS)
    web_secrets = _At(WEB_SECRETS)
    web_admin = _At(WEB_ADMIN)
    web_admin_new = _At(WEB_ADMIN_NEW)
    web_env = _At(WEB_ENV)
    transfer = _At(TRANSFER)
    web_state = _At(WEB_STATE)
    web_before = _At(WEB_BEFORE)
    proxy = _At(PROXY)
    key_map = _At(KEY_MAP)
    metrics_key = _At(METRICS_KEY)
    metrics_key_map = _At(METRICS_KEY_MAP)
    metrics = _At(METRICS)
    metrics_file = _At(METRICS_FILE)
    metrics_state = _At(METRICS_STATE)
    monitor_etc = _At(MONITOR_ETC)
    monitor_home = _At(MONITOR_HOME)
    monitor_firewall = _At(MONITOR_FIREWALL)
    monitor_firewall_drop_in = _At(MONITOR_FIREWALL_DROP_IN)
    tls_pem = _At(TLS_PEM)
    tls_crt = _At(TLS_CERTIFICATE)
    hosts = _At(HOSTS)
    page_pem = _At(WEB_UI_PEM)
    acme_settings = _At(ACME_SETTINGS)
    acme_pem = _At(ACME_PEM)
    acme = _At(ACME)
    acme_hook = _At(ACME_HOOK)
    acme_state = _At(ACME_STATE)
    proxy_config = _At(PROXY_CONFIG)
    proxy_stamp = _At(PROXY_CONFIG_DIGEST)
    proxy_lock = _At(PROXY_LOCK)
    firewall = _At(FIREWALL)
    srv = _At(ROOT)
    home = _At(HOME)
    state = _At(STATE)
    applied = _At(APPLIED)
    history = _At(HISTORY)
    switch = _At(SWITCH)
    drift_state = _At(DRIFT_STATE)
    watchdog_state = _At(WATCHDOG_STATE)
    watchdog_metrics = _At(WATCHDOG_METRICS)
    hangs = _At(HANGS)
    rest_map = _At(REST_MAP)
    stopped = _At(STOPPED)
    starts = _At(STARTS)
    rests = _At(RESTS)
    sessions = _At(SESSIONS)
    sessions_kept = _At(SESSIONS_KEPT)
    rest_job = _At(REST_JOB)
    begun = _At(BEGUN)
    waking = _At(WAKING)
    idle = _At(IDLE)
    wake_socket = _At(WAKE_SOCKET)
    firewall_state = _At(FIREWALL_STATE)
    before = _At(BEFORE)
    units = _At(UNITS)
    socket = _At(PROXY_SOCKET)
    group_run = _At(GROUP_RUN)

    def __init__(self, root: str | Path = "/") -> None:
        self.root = Path(root)

    def locate(self, name: str) -> Path:
        """Return an absolute path of the machine below this root."""
        return Path(join_root(str(self.root), name))


def collect_paths() -> dict[str, str]:
    """Return the plan's `paths`: a name and an absolute path for each place a role writes to."""
    return {
        "root": ROOT,
        "engines": ENGINES,
        "engine": ENGINE,
        "models": MODELS,
        "ram": RAM,
        "lib": LIB,
        "zipapp": ZIPAPP,
        "tools": TOOLS,
        "pythons": PYTHONS,
        "cache": CACHE,
        "tuned": TUNED,
        "web": WEB,
        "web_envs": WEB_ENVS,
        "web_env": WEB_ENV,
        "kt_cuda": KT_CUDA,
        "etc": ETC,
        "plan": PLAN,
        "weights": WEIGHTS,
        "stage": STAGE,
        "convert": CONVERT,
        "ca_bundle": CA_BUNDLE,
        "forward_proxy": FORWARD_PROXY,
        "apt_proxy": APT_PROXY,
        "hub_token": HUB_TOKEN,
        "env": ENV,
        "machine_key": MACHINE_KEY,
        "stood_in_for": STOOD_IN_FOR,
        "keys": KEYS,
        "web_secrets": WEB_SECRETS,
        "web_admin": WEB_ADMIN,
        "proxy": PROXY,
        "proxy_config": PROXY_CONFIG,
        "proxy_stamp": PROXY_CONFIG_DIGEST,
        "proxy_socket": PROXY_SOCKET,
        "proxy_master": PROXY_MASTER,
        "key_map": KEY_MAP,
        "key_rules": KEY_RULES,
        "usage": USAGE,
        "usage_prom": USAGE_PROM,
        "rest_map": REST_MAP,
        "tls_pem": TLS_PEM,
        "acme": ACME,
        "firewall": FIREWALL,
        "firewall_drop_in": FIREWALL_DROP_IN,
        "units": UNITS,
        "tmpfiles": TMPFILES,
        "tuning_tmpfiles": TUNING_TMPFILES,
        "sysctl": SYSCTL,
        "unattended_upgrades": UNATTENDED_UPGRADES,
        "needrestart": NEEDRESTART,
        "home": HOME,
        "state": STATE,
        "before": BEFORE,
        "run": RUN,
        "progress": PROGRESS,
        "fetch_progress": FETCH_PROGRESS,
        "stage_progress": STAGE_PROGRESS,
        "convert_progress": CONVERT_PROGRESS,
        "bench_progress": BENCH_PROGRESS,
        "switch": SWITCH,
        "switch_progress": SWITCH_PROGRESS,
        "stopped": STOPPED,
        "waking": WAKING,
        "wake_socket": WAKE_SOCKET,
        "drift_state": DRIFT_STATE,
        "metrics": METRICS,
        "metrics_file": METRICS_FILE,
        "metrics_state": METRICS_STATE,
        "metrics_key": METRICS_KEY,
        "metrics_key_map": METRICS_KEY_MAP,
        "node_exporter_state": NODE_EXPORTER_STATE,
        "hangs": HANGS,
        "watchdog_state": WATCHDOG_STATE,
        "watchdog_metrics": WATCHDOG_METRICS,
    }


def collect_marks() -> dict[str, str]:
    """Return the plan's `marks`: names of the files that tell that a directory is whole."""
    return {"environment": ENV_COMPLETE, "model": MODEL_VERIFIED}


def collect_users() -> dict[str, str]:
    """Return the plan's `users`; the group of each has its name."""
    return {"service": USER, "proxy": PROXY_USER, "web": WEB_USER, "acme": ACME_USER}
