"""What is generated holds on the oldest system of the catalogue: Ubuntu 22.04.

It has HAProxy 2.4 and systemd 249; Debian 12, where the tests run, has 2.6 and 252.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest
import yaml
from role_templates import ROOT, filled

from kimi_prov.contract import protection

if TYPE_CHECKING:
    from collections.abc import Iterator

# Statements of haproxy.cfg with the version that brought them, of doc/configuration.txt in
# HAProxy's repository: all are in that of v2.4.0 but those of a younger version, which stand
# between `.if version_atleast` and `.endif`.
STATEMENTS = {
    **dict.fromkeys(
        (
            "global",
            "log",
            "maxconn",
            "stats socket",
            "stats timeout",
            "hard-stop-after",
            "ssl-default-bind-options",
            "ssl-default-bind-ciphers",
            "ssl-default-bind-ciphersuites",
            "defaults",
            "mode",
            "option",
            "timeout",
            "retries",
            "retry-on",
            "http-error status",
            "frontend",
            "bind",
            "acl",
            "tcp-request session set-var",
            "tcp-request session reject",
            "tcp-request connection reject",
            "tcp-request connection track-sc0",
            "stick-table",
            "http-request return",
            "http-request set-var",
            "http-request del-header",
            "http-request set-header",
            "http-request track-sc1",
            "http-request track-sc2",
            "http-request lua.kimi_limits",
            "http-response set-var",
            "lua-load",
            "http-request set-uri",
            "http-request set-log-level",
            "http-request use-service",
            "use_backend",
            "http-response set-header",
            "http-response del-header",
            "http-response sc-inc-gpc0",
            "log-format",
            "default_backend",
            "backend",
            "balance",
            "http-check send",
            "default-server",
            "server",
        ),
        (2, 4),
    ),
    "tcp-request connection set-var": (2, 5),
}
# Sample fetches, converters and the rest of expressions, all in that file of v2.4.0.
WORDS = {
    *("src", "dst", "strcmp", "req.fhdr", "word", "sha2", "hex", "lower", "map_str", "str"),
    # Of rules of keys.
    *("field", "mul", "date", "sub"),
    *("req.hdr", "req.hdr_val", "concat", "bool", "status", "sc1_gpc0_rate", "url_dec"),
    "uuid",
    *("var", "nbsrv", "path", "path_sub", "path_beg", "method", "sc0_conn_cur", "ipmask"),
}
# Directives of our units that systemd's NEWS names as new, and where: none is younger than 249.
# What NEWS does not name is older than its first entries.
DIRECTIVES = {
    **dict.fromkeys(
        (
            *("After", "Before", "Wants", "Conflicts", "Description", "Documentation"),
            *("DefaultDependencies", "RequiresMountsFor", "ConditionDirectoryNotEmpty"),
            "ConditionPathExists",
            *("Type", "ExecStartPre", "ExecStart", "ExecStartPost", "ExecReload", "ExecStop"),
            *("ExecStopPost", "RemainAfterExit", "Restart", "RestartSec", "KillMode"),
            *("TimeoutStartSec", "TimeoutStopSec", "SuccessExitStatus", "User", "Group"),
            *("RestartPreventExitStatus", "SupplementaryGroups", "WorkingDirectory", "UMask"),
            *("Environment", "EnvironmentFile", "LimitNOFILE", "LimitMEMLOCK", "StandardInput"),
            *("SyslogIdentifier", "CapabilityBoundingSet", "PrivateTmp", "WantedBy"),
            *("Nice", "IOSchedulingClass", "OnActiveSec", "OnUnitActiveSec"),
            "SyslogLevel",
            *("What", "Where", "Options", "CPUAffinity", "WatchdogSec", "NotifyAccess"),
        ),
        200,
    ),
    **dict.fromkeys(
        ("Requires", "OnUnitInactiveSec", "ListenStream", "SocketMode", "Backlog"), 200
    ),
    "SocketUser": 214,
    "RemoveOnStop": 214,
    "TriggerLimitIntervalSec": 230,
    "OnCalendar": 197,
    "AccuracySec": 209,
    "LogLevelMax": 236,
    "Persistent": 212,
    "RandomizedDelaySec": 229,
    "SystemCallArchitectures": 209,
    "SystemCallErrorNumber": 209,
    "SystemCallFilter": 209,
    "PrivateDevices": 209,
    "DeviceAllow": 210,
    "RuntimeDirectory": 211,
    "RuntimeDirectoryMode": 211,
    "RestrictAddressFamilies": 211,
    "RemoveIPC": 232,
    "PrivateUsers": 232,
    "DevicePolicy": 212,
    "ProtectSystem": 214,
    "ProtectHome": 214,
    "NoNewPrivileges": 227,
    "AmbientCapabilities": 229,
    "StartLimitBurst": 229,
    "StartLimitIntervalSec": 229,
    "RuntimeMaxSec": 229,
    "ReadWritePaths": 231,
    "MemoryDenyWriteExecute": 231,
    "TasksMax": 227,
    "DynamicUser": 232,
    "PrivateNetwork": 209,
    "PrivateIPC": 248,
    "KeyringMode": 235,
    "CPUQuota": 213,
    "CPUWeight": 232,
    "IOWeight": 230,
    "LimitFSIZE": 209,
    "LimitNPROC": 209,
    "LimitAS": 209,
    "LimitCORE": 209,
    "MemoryMax": 231,
    "MemorySwapMax": 232,
    "PrivateMounts": 239,
    "InaccessiblePaths": 231,
    "BindPaths": 233,
    "BindReadOnlyPaths": 233,
    "TemporaryFileSystem": 238,
    "SocketBindDeny": 249,
    "SocketBindAllow": 249,
    "RestrictRealtime": 231,
    "LazyUnmount": 232,
    "ProtectControlGroups": 232,
    "ProtectKernelModules": 232,
    "ProtectKernelTunables": 232,
    "RestrictNamespaces": 233,
    "IPAddressAllow": 235,
    "IPAddressDeny": 235,
    "LockPersonality": 235,
    "RuntimeDirectoryPreserve": 235,
    "StateDirectory": 235,
    "StateDirectoryMode": 235,
    "LogRateLimitIntervalSec": 240,
    "WatchdogSignal": 240,
    "ProtectHostname": 242,
    "RestrictSUIDSGID": 242,
    "OOMPolicy": 243,
    "ProtectKernelLogs": 244,
    "ProtectClock": 245,
    "ProcSubset": 247,
    "ProtectProc": 247,
}
UNITS = sorted(
    path
    for path in (ROOT / "roles").glob("*/templates/*.j2")
    if re.search(r"\.(service|mount|socket|timer)\.j2$|\.conf\.j2$", path.name)
    and "\n[" in path.read_text()
)
SENT = re.compile(r"""["'](?:--property=)?([A-Z][A-Za-z]+)=""")
SENDS = ("contract/protection.py", "on_host/system/sandbox.py", "on_host/driver/apt.py")


def config(*, addresses: tuple[str, ...] = ("10.0.0.1", "fd00::1")) -> str:
    defaults = yaml.safe_load((ROOT / "roles/proxy/defaults/main.yml").read_text())
    names = ("key_map", "key_rules", "metrics_key_map", "machine_key", "proxy_socket", "tls_pem")
    names += ("key_limits",)
    plan = {
        "paths": {name: f"/etc/kimi/{name}" for name in names},
        "proxy": {
            "port": 8000,
            "allowed_networks": ["10.0.0.0/8"],
            "request_body_max_bytes": 1000,
            "backends": [{"index": 0, "port": 8001}],
            "tls": {"mode": "files", "trusted": True, "acme": {"port": 8003}},
        },
        "web": {"port": 8443, "backend_port": 8002, "api_port": 8003, "upload_max_bytes": 1000},
        "usage": {"waits_s": 60},
        "model": {"served_names": ["tiny"], "context": 4096},
        "metrics": {"port": 9443, "node_port": 8004, "allowed_networks": ["10.9.0.0/16"]},
    }
    plan["paths"] |= {
        name: f"/etc/kimi/{name}" for name in ("rest_map", "wake_socket", "key_rules")
    }
    plan["rest"] = {"idle": {"after_s": 60}, "wake": "hold"}
    facts = {"network": {"addresses": list(addresses)}}
    return filled("proxy", "haproxy.cfg.j2", plan, kimi_facts=facts, **defaults)


def statements(text: str) -> Iterator[tuple[tuple[int, int], str]]:
    """Each line without its indent, and the least version that comes to it."""
    least = (2, 4)
    for line in (row.strip() for row in text.splitlines()):
        if line.startswith(".if "):
            [(when, *number)] = re.findall(r"^\.if version_(atleast|before)\((\d+)\.(\d+)\)$", line)
            least = (int(number[0]), int(number[1])) if when == "atleast" else (2, 4)
        elif line == ".endif":
            least = (2, 4)
        elif line and not line.startswith("#"):
            yield least, line


def test_the_proxys_configuration_has_no_statement_that_haproxy_2_4_does_not_know() -> None:
    seen = set()
    for least, line in statements(config()):
        words = re.split(r"[\s(]", line)
        known = next((name for n in (3, 2, 1) if (name := " ".join(words[:n])) in STATEMENTS), None)
        assert known, f"not in the table, look it up: {line}"
        assert STATEMENTS[known] <= least, f"younger than 2.4: {line}"
        seen.add(known)
    assert seen == set(STATEMENTS), "the table has statements that nothing uses"


def test_the_proxys_expressions_have_no_word_that_haproxy_2_4_does_not_know() -> None:
    text = re.sub(r"string '.*?'", "", config()).replace("\\ ", "_")
    found = set()
    for body in (
        *re.findall(r"%\[([^\]]+)\]", text),
        *re.findall(r"\{ !?([^}]+) \}", text),
        *re.findall(r"set-var\(\S+\) (\S+)", text),
        *re.findall(r"acl \w+ (\S+)", text),
        *re.findall(r"track-sc0 (\S+)", text),
    ):
        expression = re.sub(r"\([^)]*\)", "", body.split()[0])
        found |= set(expression.split(","))
    assert found == WORDS


@pytest.mark.parametrize("unit", UNITS, ids=lambda path: path.name)
def test_a_units_directives_are_known_to_systemd_249(unit) -> None:
    for name in re.findall(r"^([A-Z][A-Za-z]+)=", unit.read_text(), re.MULTILINE):
        assert DIRECTIVES[name] <= 249, name


def test_what_protects_units_is_known_to_systemd_249() -> None:
    for kind in protection.KINDS:
        for name, _ in protection.build_settings(kind, gpus=kind == "engine", write=["/srv"]):
            assert DIRECTIVES[name] <= 249, name
    for file in SENDS:
        for name in SENT.findall((ROOT / "kimi_prov" / file).read_text()):
            assert DIRECTIVES[name] <= 249, f"{file}: {name}"
