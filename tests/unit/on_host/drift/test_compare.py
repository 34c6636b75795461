"""What differs between the record of an apply and a machine, kind by kind."""

from __future__ import annotations

import copy

import pytest

from kimi_prov.contract import paths as layout
from kimi_prov.on_host.drift import compare
from kimi_prov.planner.registry import DEFINITIONS


def row(path, sha256="a" * 64, mode="0644", owner="root", group="root", *, living=False):
    return {
        "path": path,
        "sha256": sha256,
        "owner": owner,
        "group": group,
        "mode": mode,
        "living": living,
    }


APPLIED = {
    "files": [
        row("/etc/kimi/plan.json", mode="0640", group="kimi"),
        row(layout.SYSCTL),
        row(layout.KEY_MAP, None, "0640", group="kimi-proxy", living=True),
        row(layout.OPERATOR_NEW, None, "0600", living=True),
        row(layout.WEB_SECRETS, None, "0600"),
    ],
    "links": [{"path": layout.ENGINE, "target": "/srv/kimi/engines/a"}],
    "mounts": [{"path": layout.RAM, "device": "tmpfs", "type": "tmpfs", "options": ["nodev"]}],
    "users": {
        "kimi": {"uid": 9, "gid": 9, "home": "/var/lib/kimi", "shell": "/usr/sbin/nologin"},
        "kimi-web": None,
    },
    "members": {"kimi": ["kimi-proxy"], "kimi-web": None},
    "packages": {
        "versions": {"haproxy": "2.6-1", "nvidia-driver": "580"},
        "held": ["nvidia-driver"],
    },
    "driver": "580.1",
    "kernel": {"sysctl": {"vm.swappiness": "1"}, "thp": "madvise", "governor": None},
    "firewall": {"table_sha256": "x", "table": ["a", "drop"], "rules": []},
    "keys": ["operator", "verify"],
    "key_digests": {"operator": "1" * 64, "verify": "2" * 64},
    "certificate_sha256": "c" * 64,
}


@pytest.fixture
def now():
    return copy.deepcopy(APPLIED)


def found(now):
    return [(row.id, row.subject) for row in compare.list_differences(APPLIED, now)]


def test_an_untouched_machine_has_none(now):
    assert found(now) == []


def test_a_file_that_was_changed_gone_or_added(now):
    now["files"][0]["sha256"] = "b" * 64
    now["files"][1]["mode"] = "0666"
    del now["files"][4]
    now["files"].append(row("/etc/kimi/plan.json.bak"))
    rows = {row.id: row for row in compare.list_differences(APPLIED, now)}
    assert found(now) == [
        ("drift.file", "/etc/kimi/plan.json"),
        ("drift.file", layout.SYSCTL),
        ("drift.file_missing", layout.WEB_SECRETS),
        ("drift.file_added", "/etc/kimi/plan.json.bak"),
    ]
    assert (rows["drift.file"].expected, rows["drift.file"].observed) == ("mode 0644", "mode 0666")
    assert rows["drift.file_added"].fix == "rm /etc/kimi/plan.json.bak"


def test_what_the_product_changes_by_itself_is_no_drift(now):
    # The key in clear goes when it was shown; a renewal puts a certificate there.
    now["files"] = [item for item in now["files"] if item["path"] != layout.OPERATOR_NEW]
    now["files"].append(row(layout.ACME_PEM, None, "0600", living=True))
    assert found(now) == []


def test_a_secret_that_others_may_read_by_now_is_drift(now):
    now["files"][2]["mode"] = "0644"
    assert found(now) == [("drift.file", layout.KEY_MAP)]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda m: m["links"][0].update(target="/tmp/x"), ("drift.link", layout.ENGINE)),
        (lambda m: m["links"].clear(), ("drift.link", layout.ENGINE)),
        (lambda m: m["mounts"].clear(), ("drift.mount", layout.RAM)),
        (lambda m: m["mounts"][0].update(options=["nodev", "ro"]), ("drift.mount", layout.RAM)),
        (
            lambda m: m["mounts"].append({"path": "/srv/kimi/models", "device": "d", "type": "e"}),
            ("drift.mount", "/srv/kimi/models"),
        ),
        (lambda m: m["users"].update(kimi=None), ("drift.account", "kimi")),
        (lambda m: m["users"]["kimi"].update({"shell": "/bin/sh"}), ("drift.account", "kimi")),
        (lambda m: m["packages"]["versions"].update(haproxy="3"), ("drift.package", "haproxy")),
        (
            lambda m: m["members"].update(kimi=["eve", "kimi-proxy"]),
            ("drift.account", "group kimi"),
        ),
        (lambda m: m["members"].update(kimi=[]), ("drift.account", "group kimi")),
        (lambda m: m["members"].update(kimi=None), ("drift.account", "group kimi")),
        (lambda m: m["packages"]["versions"].pop("haproxy"), ("drift.package_missing", "haproxy")),
        (lambda m: m["packages"]["held"].clear(), ("drift.package_hold", "nvidia-driver")),
        (lambda m: m.update(driver="590"), ("drift.driver", "nvidia")),
        (lambda m: m.update(driver=None), ("drift.driver", "nvidia")),
        (
            lambda m: m["kernel"]["sysctl"].update({"vm.swappiness": "60"}),
            ("drift.kernel", "vm.swappiness"),
        ),
        (lambda m: m["kernel"].update(thp="never"), ("drift.kernel", "transparent huge pages")),
        (
            lambda m: m["firewall"].update(table_sha256=None),
            ("drift.firewall", "table inet kimi"),
        ),
        (
            lambda m: m["firewall"].update(table_sha256="y", table=["a", "accept", "drop"]),
            ("drift.firewall", "table inet kimi"),
        ),
        (lambda m: m["key_digests"].update(eve="3" * 64), ("drift.key_added", "eve")),
        (lambda m: m["key_digests"].pop("operator"), ("drift.key_missing", "operator")),
        (lambda m: m["key_digests"].update(verify="4" * 64), ("drift.key_changed", "verify")),
        (
            lambda m: m.update(certificate_sha256="d" * 64),
            ("drift.certificate", layout.TLS_CERTIFICATE),
        ),
    ],
)
def test_each_kind_is_found_alone(now, change, expected):
    change(now)
    assert found(now) == [expected]
    (row,) = compare.list_differences(APPLIED, now)
    assert row.expected != row.observed
    assert row.fix
    assert row.id in DEFINITIONS


def test_a_new_rule_of_the_firewall_is_named(now):
    now["firewall"].update(table_sha256="y", table=["a", "accept", "drop"])
    (row,) = compare.list_differences(APPLIED, now)
    assert row.observed == "accept"


def test_an_account_is_mended_by_what_differs_alone(now):
    now["users"]["kimi"]["shell"] = "/bin/sh"
    (row,) = compare.list_differences(APPLIED, now)
    assert row.fix == "usermod --shell /usr/sbin/nologin kimi"


UNIT = {
    "enabled": "enabled",
    "state": "active",
    "file": "/etc/systemd/system/kimi-proxy.service",
    "drop_ins": [],
}
NAME = "kimi-proxy.service"


@pytest.mark.parametrize(
    ("state", "expected"),
    [
        ({}, []),
        ({"state": "activating"}, []),
        ({"state": "reloading"}, []),
        ({"enabled": "disabled"}, ["drift.unit_disabled"]),
        ({"enabled": "masked", "load": "masked", "state": "inactive"}, ["drift.unit_masked"]),
        ({"state": "failed"}, ["drift.unit_stopped"]),
        ({"state": "inactive"}, ["drift.unit_stopped"]),
        ({"file": "/run/systemd/system/kimi-proxy.service"}, ["drift.unit_replaced"]),
        (
            {"drop_ins": ["/etc/systemd/system/kimi-proxy.service.d/own.conf"]},
            ["drift.unit_override"],
        ),
        # On the disk, and not read by systemd yet.
        ({"extra": ["/etc/systemd/system/kimi-proxy.service.d/own.conf"]}, ["drift.unit_override"]),
        ({"state": "", "enabled": "", "file": ""}, ["drift.unit_disabled", "drift.unit_stopped"]),
    ],
)
def test_units(state, expected):
    there = {NAME: {**UNIT, "extra": [], **state}}
    assert [row.id for row in compare.compare_units({NAME: UNIT}, there)] == expected


def test_a_unit_that_was_not_running_when_it_was_applied_need_not_run():
    was = {"kimi-acme.service": {**UNIT, "state": "inactive", "enabled": "static"}}
    assert list(compare.compare_units(was, was)) == []


LINE = ["/srv/kimi/engines/a/bin/python", "/srv/kimi/lib/kimi-target.pyz", "engine", "-m", "vllm"]
PROCESS = {
    "unit": "kimi-serve@0.service",
    "runs": [*LINE, "--port", "8001"],
    "would": ["numactl", "--membind=0", *LINE, "--port", "8001"],
    "stamp": "s",
    "applied_stamp": "s",
    "started": 5,
}


def test_a_process_that_its_unit_would_start_is_no_drift():
    assert list(compare.compare_processes([PROCESS])) == []


@pytest.mark.parametrize(
    ("change", "observed"),
    [
        ({"runs": [*LINE, "--port", "8001", "--max-num-seqs", "1"]}, "--max-num-seqs 1"),
        ({"runs": ["/bin/sleep", "9"]}, "/bin/sleep 9"),
        ({"stamp": "t"}, "started with the unit t"),
        ({"stamp": ""}, "started with the unit of somebody else"),
    ],
)
def test_a_process_that_runs_otherwise(change, observed):
    (row,) = compare.compare_processes([{**PROCESS, **change}])
    assert (row.id, row.observed) == ("drift.process", observed)


def test_a_key_on_another_command_line_is_not_shown():
    secret = ["--api-key", "geheim", "--hf-token=geheim", "--port", "8001", "--max-tokens", "5"]
    (row,) = compare.compare_processes([{**PROCESS, "runs": [*LINE, *secret]}])
    assert row.observed == "--api-key *** --hf-token=*** --max-tokens 5"


def test_an_unseen_environment_is_not_taken_for_another():
    assert list(compare.compare_processes([{**PROCESS, "stamp": None}])) == []


def test_keys_of_the_running_proxy_alone_are_found():
    state = {
        "loaded": "s",
        "wanted": "s",
        "only_loaded": ["eve"],
        "only_in_file": ["new", "operator"],
    }
    rows = list(compare.compare_proxy(state, APPLIED["key_digests"]))
    assert [(row.id, row.subject) for row in rows] == [
        ("drift.key_added", "eve"),
        ("drift.key_missing", "operator"),
    ]


def test_a_proxy_that_has_not_loaded_its_files():
    state = {"loaded": "a", "wanted": "b", "only_loaded": [], "only_in_file": []}
    assert [row.subject for row in compare.compare_proxy(state, {})] == ["kimi-proxy.service"]
