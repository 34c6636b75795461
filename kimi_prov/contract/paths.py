"""Paths on the managed machine. The plan passes the same paths to the roles.

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

# The user of the engine and its weights; its group has the same name.
USER = "kimi"
PROXY_USER = "kimi-proxy"
# The user of the web UI and of its accounts' data.
WEB_USER = "kimi-web"
# The user of the ACME client, which reads the answers of certificate authorities.
ACME_USER = "kimi-acme"
# The user of Prometheus and Alertmanager on a monitoring host.
MONITOR_USER = "kimi-monitor"

ROOT = "/srv/kimi"
ENGINES = f"{ROOT}/engines"
ENGINE = f"{ROOT}/engine"
MODELS = f"{ROOT}/models"
RAM = f"{ROOT}/ram"
LIB = f"{ROOT}/lib"
ZIPAPP = f"{LIB}/kimi-target.pyz"
TOOLS = f"{ROOT}/tools"
# Bundled interpreters, each in a directory named for its build.
PYTHONS = f"{TOOLS}/python"
CACHE = f"{ROOT}/cache"
TUNED = f"{ROOT}/tuned"
# What engines keep of their weights for their next start.
PREPARED = f"{ROOT}/prepared"
# CUDA kernels of KTransformers, assembled when it is installed.
KT_CUDA = f"{CACHE}/kt-cuda"
# Accounts, chats and uploads of the web UI; and its environments, with a link to the one in use.
WEB = f"{ROOT}/web"
WEB_ENVS = f"{ROOT}/web-env"
WEB_ENV_NAME = "current"
WEB_ENV = f"{WEB_ENVS}/{WEB_ENV_NAME}"
# The distribution's packages of an offline bundle.
OFFLINE = f"{ROOT}/offline"
OFFLINE_LABEL = "kimi-prov-bundle"
# An archive, while it is fetched or uploaded.
TRANSFER = f"{ROOT}/transfer"

ETC = "/etc/kimi"
PLAN = f"{ETC}/plan.json"
WEIGHTS = f"{ETC}/weights.json"
STAGE = f"{ETC}/stage.json"
CONVERT = f"{ETC}/convert.json"
CA_BUNDLE = f"{ETC}/ca-bundle.pem"
# The site's forward proxy with its password, for systemd and for apt.
FORWARD_PROXY = f"{ETC}/forward-proxy.env"
APT_PROXY = f"{ETC}/apt-proxy.conf"
# The site's mirror, for our own apt calls alone.
APT_CONFIG = f"{ETC}/apt.conf"
APT_SOURCES = f"{ETC}/apt.sources"
HUB_TOKEN = f"{ETC}/keys/hub-token"
BUCKET_CREDENTIALS = f"{ETC}/keys/bucket-credentials"
STOOD_IN_FOR = f"{ETC}/stood-in-for.json"
ENV = f"{ETC}/env"
# The key that the proxy sends to the engines, and that they require.
MACHINE_KEY = f"{ETC}/machine-key.map"
KEYS = f"{ETC}/keys"
# The operator's key in clear until it was shown; the key with which a machine tests itself.
OPERATOR_NEW = f"{KEYS}/operator.new"
VERIFY_KEY = f"{KEYS}/verify.key"
# The web UI's own API key. Its first administrator until the account exists, and the password in
# clear until it was shown.
WEB_KEY = f"{KEYS}/web.key"
# The web UI's key as `key --list` shows it.
WEB_KEY_NAME = "web"
# Of each key its creation, expiry and limits; of keys that `key --add` made also the hash.
KEY_METADATA = f"{KEYS}/book.json"
WEB_SECRETS = f"{ETC}/web.env"
WEB_ADMIN = f"{ETC}/web-admin.env"
WEB_ADMIN_NEW = f"{KEYS}/web-admin.new"
# The key by which metrics are read, if the control machine gave none; its hash, for the proxy.
METRICS_KEY = f"{KEYS}/metrics.key"
PROXY = f"{ETC}/proxy"
METRICS_KEY_MAP = f"{PROXY}/metrics-keys.map"
PROXY_CONFIG = f"{PROXY}/haproxy.cfg"
PROXY_CONFIG_DIGEST = f"{PROXY}/stamp.cfg"
KEY_MAP = f"{PROXY}/keys.map"
# Expiry and limits of keys, by name (contract/key_rules.py).
KEY_RULES = f"{PROXY}/rules.map"
# At a gateway: asks the counter whether a key may go on.
KEY_LIMITS = f"{PROXY}/limits.lua"
# The answer to clients while the machine is stopped or asleep; empty while it serves.
REST_MAP = f"{PROXY}/rest.map"
TLS_PEM = f"{PROXY}/tls.pem"
# At a gateway: the certificate of each host behind it, the only one that it trusts there.
HOSTS = f"{PROXY}/hosts"
# At the gateway with the web UI: the certificate, with its key, that the other gateway trusts for
# it.
WEB_UI_PEM = f"{PROXY}/page.pem"
# The one certificate, with its key, by which two gateways know each other.
PEERS_PEM = f"{PROXY}/peers.pem"
# keepalived's settings there for the address that gateways share.
ADDRESS_CONFIG = f"{ETC}/address.conf"
# Its certificates alone, without the private key.
TLS_CERTIFICATE = f"{PROXY}/tls.crt"
# The settings of the order, and the certificate that was issued last, with its key.
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
# Starts the fabric manager only where there is a fabric.
FABRIC_DROP_IN = f"{UNITS}/{unit_names.FABRIC_MANAGER}.d/kimi.conf"
# The command of an engine's instance, beside its unit and an administrator's own drop-ins.
SERVE_DROP_IN = "10-plan.conf"

HOME = "/var/lib/kimi"
STATE = f"{HOME}/state"
# The state before the first apply, for `destroy`.
BEFORE = f"{STATE}/before.json"
# Our rules in ufw or firewalld.
FIREWALL_STATE = f"{STATE}/firewall.json"
# The version of the driver that this product installed, holds, and can roll back to.
DRIVER_STATE = f"{STATE}/driver.json"
DRIVER = f"{HOME}/driver"
# The ACME client's own: its account and certificates, the program that writes DNS records.
ACME = f"{HOME}/acme"
ACME_HOOK = f"{ACME}/dns-hook"
# The result of the last order.
ACME_STATE = f"{STATE}/acme.json"
# The engine and driver with which the GPUs passed the NCCL all-reduce.
NCCL_STATE = f"{STATE}/nccl.json"
# Held by the process that converges the proxy: an apply, or the order of a certificate.
PROXY_LOCK = f"{STATE}/proxy.lock"
# The web UI that answered last, and its database from before a change, until the new one answers.
WEB_STATE = f"{STATE}/web.json"
WEB_BEFORE = f"{STATE}/web-before.db"
# The units with which the running engines were started, by config digest.
STARTED = f"{STATE}/serve"
# What was applied last, and the entries of the history: NNNN/entry.json, its plan and its files.
APPLIED = f"{STATE}/applied.json"
HISTORY = f"{STATE}/history"
HISTORY_ENTRY = f"{HISTORY}/NNNN/entry.json"
# The last result of kimi-drift.timer, for `status`.
DRIFT_STATE = f"{STATE}/drift.json"
# The use of keys: the counter's database, and its metrics.
USAGE = f"{HOME}/usage"
USAGE_DB = f"{USAGE}/usage.db"
USAGE_PROM = f"{USAGE}/usage.prom"
# Metrics for the node exporter: `*.prom`, each written by its own unit.
METRICS = f"{HOME}/metrics"
METRICS_FILE = f"{METRICS}/kimi.prom"
# Counters that outlast a boot, and values that are read less often than metrics are written.
METRICS_STATE = f"{STATE}/metrics.json"
# Written before the distribution's node exporter is installed for us: its own unit stays off.
NODE_EXPORTER_STATE = f"{STATE}/node-exporter.json"
# Of a monitoring host: its settings and keys; its series, and its state from before.
MONITOR_ETC = "/etc/kimi-monitor"
MONITOR_HOME = "/var/lib/kimi-monitor"
MONITOR_BEFORE = f"{MONITOR_HOME}/before.json"
MONITOR_FIREWALL = f"{MONITOR_ETC}/firewall.nft"
MONITOR_FIREWALL_DROP_IN = f"{UNITS}/nftables.service.d/kimi-monitor.conf"
# The watchdog's memory, its metrics, and the evidence of engines that hung.
WATCHDOG_STATE = f"{STATE}/watchdog.json"
WATCHDOG_METRICS = f"{METRICS}/watchdog.prom"
HANGS = f"{HOME}/hangs"
# The stop state: while this file exists no engine starts: stopped by the operator, or asleep.
STOPPED = f"{STATE}/stopped.json"
# The durations of the last starts.
STARTS = f"{STATE}/starts.json"
# How long the machine was stopped or asleep, in all and the last times.
RESTS = f"{STATE}/rests.json"
# The cost of a machine that is paid for by the hour.
SESSIONS = f"{STATE}/sessions.json"
# A switch under way: written before the first file changes, removed after the verdict.
SWITCH = f"{STATE}/switch.json"
# NCCL plugins that were moved away, each by its own path, until `destroy` restores them.
QUARANTINE = f"{HOME}/set-aside"

RUN = "/run/kimi"
PROGRESS = f"{RUN}/progress"
# The progress of long jobs, each written by its own unit.
FETCH_PROGRESS = f"{PROGRESS}/fetch.json"
STAGE_PROGRESS = f"{PROGRESS}/stage.json"
CONVERT_PROGRESS = f"{PROGRESS}/convert/convert.json"
BENCH_PROGRESS = f"{PROGRESS}/bench.json"
SWITCH_PROGRESS = f"{PROGRESS}/switch.json"
REST_PROGRESS = f"{PROGRESS}/rest.json"
TUNE_PROGRESS = f"{PROGRESS}/tune.json"
# Jobs and results of a tune, only for root; a boot forgets them.
TUNE_RUN = f"{RUN}/tune"
# A file for each run of the unit of that name, while it lasts; only for root.
SANDBOX_ENVS = f"{RUN}/sandbox"
# The weights that a host shares, and with whom; and, only for root, the certificate that it shows,
# and the neighbour from which it takes weights itself, with the key.
SHARE = f"{RUN}/share.json"
SHARE_LOCK = f"{RUN}/share.lock"
NEIGHBOURS = f"{RUN}/neighbours"
SHARE_PEM = f"{NEIGHBOURS}/tls.pem"
NEIGHBOUR = f"{NEIGHBOURS}/from.json"
APPLY_LOCK = "/run/kimi-apply.lock"
# How often a group's engine did not start; kept while its unit is restarted.
GROUP_RUN = "/run/kimi-group"
PROXY_SOCKET = "/run/kimi-proxy/admin.sock"
# The master's socket, which also reaches the workers that a reload left to end their requests.
PROXY_MASTER = "/run/kimi-proxy/master.sock"
# Where engines ask the counter whether a key may begin a request, and report what was used.
USAGE_SOCKET = "/run/kimi-usage/counter.sock"
# Where the proxy asks the counter for gateways what keys used a moment ago; and, at a gateway,
# whether a key may go on (for a program of HAProxy).
USAGE_RECENT_SOCKET = "/run/kimi-usage/recent.sock"
USAGE_LIMITS_SOCKET = "/run/kimi-usage/limits.sock"
# Gone after a boot: the job of kimi-rest.service, when a start was requested, and whether the
# engines may start although STOPPED exists, because a request wakes them.
REST_JOB = "/run/kimi-rest.json"
BEGUN = "/run/kimi-begun.json"
WAKING = "/run/kimi-waking"
# How long no client has asked, by the monotonic clock.
IDLE = "/run/kimi-idle.json"
WAKE_SOCKET = "/run/kimi-wake.sock"
# Where an engine that may sleep takes the order, by the variable of that name: in a folder that
# systemd makes for its unit, and that only its user and root enter.
CONTROL_VARIABLE = "KIMI_CONTROL_SOCKET"
_CONTROL = "/run/kimi-serve-{index}/control.sock"
# When the cost of this session was last stored in the bucket of the weights, and what is stored
# there.
SESSIONS_KEPT = "/run/kimi-sessions.json"
# All of these.
REST_RUN = (REST_JOB, BEGUN, WAKING, IDLE, WAKE_SOCKET, SESSIONS_KEPT)

# Written last into an engine's environment, and beside a bundled interpreter: without it either is
# incomplete.
ENV_COMPLETE = ".complete"
# Written last into a model's directory.
MODEL_VERIFIED = ".kimi-verified"
# The table of the firewall, as nft names it.
FIREWALL_TABLE = ("inet", "kimi")
# The table of a monitoring host: a host may have both.
MONITOR_TABLE = ("inet", "kimi_monitor")


# Files of the roles whose content, owner and mode are facts: a role writes only files that differ.
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

# Files that come and change with the driver.
DRIVER_FILES = (
    FABRIC_DROP_IN,
    UNATTENDED_UPGRADES,
    "/etc/apt/sources.list.d/kimi-nvidia.sources",
    NVIDIA_PIN,
    "/etc/apt/keyrings/kimi-nvidia.asc",
    "/etc/apt/keyrings/kimi-nvidia.gpg",
)
# Our files in the distribution's folders, of any version: `destroy` removes these and no others.
# Units are listed elsewhere.
AMONG_OTHERS = (
    FIREWALL_DROP_IN,
    MONITOR_FIREWALL_DROP_IN,
    TMPFILES,
    TUNING_TMPFILES,
    SYSCTL,
    NEEDRESTART,
    *DRIVER_FILES,
)
# Files that a rollback restores, beside units: what roles write from a plan. Never keys,
# certificates, accounts, packages or the driver: these stay as they are.
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
# Files that kimi-prov itself changes between two applies: their content is no drift.
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
    PEERS_PEM,
    ACME_PEM,
    PROXY_CONFIG_DIGEST,
    MACHINE_KEY,
    WEB_ADMIN,
)
# Files with a password that could be guessed from their hash.
UNHASHED = (FORWARD_PROXY, APT_PROXY, WEB_SECRETS)

# Our folders in ROOT, without the weights and the web UI's data.
IN_ROOT = (ENGINES, ENGINE, RAM, LIB, TOOLS, CACHE, TUNED, PREPARED, WEB_ENVS, OFFLINE, TRANSFER)

# Homes of the users that exist only since later versions, whose records do not have them.
LATER_HOMES = {WEB_USER: WEB, ACME_USER: "/nonexistent"}
_EXISTED = {
    USER: "user_existed",
    PROXY_USER: "proxy_user_existed",
    WEB_USER: "web_user_existed",
    ACME_USER: "acme_user_existed",
}


def did_user_exist(before: Mapping[str, Any], name: str, home: str) -> bool:
    """Return whether a user existed before the first apply, by its record and the user's home."""
    key = _EXISTED[name]
    if key in before:
        return bool(before[key])
    # The record is of a version that made no such user: the home identifies one of ours.
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
    """A path of the machine, below the owner's root."""

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
    peers_pem = _At(PEERS_PEM)
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


def build_control_socket(index: int) -> str:
    """Return where the engine of instance `index` takes the order to sleep or to wake."""
    return _CONTROL.format(index=index)


def collect_paths() -> dict[str, str]:
    """Return the plan's `paths`: a name and an absolute path for each path that a role writes."""
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
        "key_limits": KEY_LIMITS,
        "usage_limits_socket": USAGE_LIMITS_SOCKET,
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
        **_collect_state_paths(),
    }


def _collect_state_paths() -> dict[str, str]:
    """Return the paths of what services write: state, progress and metrics."""
    return {
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
    """Return the plan's `marks`: names of the files that mark a directory as complete."""
    return {"environment": ENV_COMPLETE, "model": MODEL_VERIFIED}


def collect_users() -> dict[str, str]:
    """Return the plan's `users`; the group of each has its name."""
    return {"service": USER, "proxy": PROXY_USER, "web": WEB_USER, "acme": ACME_USER}
