from __future__ import annotations

import json
from pathlib import Path

import closed_form
import jsonschema
import pytest
from host_documents import SERVING

from kimi_prov.acceptance import suite
from kimi_prov.ansible.host_action import complete_findings
from kimi_prov.on_host.engine import runtime
from kimi_prov.show.text import status, verify

CHECKS = [
    {"name": "chat", "status": "ok", "detail": "16 tokens: hello", "seconds": 0.1},
    {"name": "placement", "status": "fail", "detail": "word " * 40, "seconds": 0.0},
    {"name": "known-answers", "status": "skip", "detail": "random weights", "seconds": 0.0},
]
VERIFY = {
    "schema": "kimi-prov/verify/v1",
    "ok": False,
    "hosts": {
        "node1": suite.make_document(
            endpoint="https://10.93.5.11:8000/v1",
            seen_from="control",
            reason="the control machine (10.93.5.1) is in an allowed network",
            checks=CHECKS,
            stand_ins=["the model has random weights: its answers have form and no meaning"],
        )
    },
}
ABSENT = {"ok": False, "provisioned": False, "detail": "not provisioned", "stand_ins": []}
GROUP = {
    "name": "pair",
    "rank": 1,
    "head": "a",
    "members": [{"host": "a", "address": "10.0.0.1"}, {"host": "b", "address": "10.0.0.2"}],
    "unit": "kimi-rank.service",
    "phase": "waiting",
    "said": "waiting for a, the head, at 10.0.0.1: Connection refused",
    "failed_rounds": 2,
}
RANK = {
    "schema": "kimi-prov/status/v1",
    "ok": False,
    "hosts": {"b": {**SERVING, "port": None, "web": None, "group": GROUP}},
}
DRIFT = {
    "timer": "active",
    "looked_at": "2026-11-24T03:00:00Z",
    "complete": False,
    "differences": 1,
    "findings": {"drift.file": 1},
    "detail": "1 difference; could not read the firewall, packages, the engine's processes",
}
WATCHED = {
    "schema": "kimi-prov/status/v1",
    "ok": True,
    "hosts": {"node1": {**SERVING, "drift": DRIFT}},
}
STATUS = {
    "schema": "kimi-prov/status/v1",
    "ok": False,
    "hosts": {"node1": SERVING, "node2": ABSENT},
}
MONITOR = {
    "prometheus": "active",
    "alertmanager": "active",
    "answers": True,
    "listen": "127.0.0.1",
    "port": 9090,
    "targets": 4,
    "targets_down": 1,
    "down": [{"host": "node1", "job": "kimi-engine", "engine": "0"}],
    "alerts_firing": 1,
    "alerts": [
        {
            "name": "KimiEngineEnded",
            "host": "node1",
            "severity": "critical",
            "summary": "node1: instance 0 of the engine ended by itself and was started again",
            "since": "2026-11-24T03:00:00Z",
        }
    ],
    "series_bytes": 3 << 30,
    "series_limit_bytes": 10 << 30,
}
METRICS = {
    "port": 9443,
    "allowed_networks": ["10.0.9.5/32"],
    "listening": runtime.find_listeners([9443], Path("/none"))["9443"],
    "node_exporter": "active",
    "timer": "active",
    "written_at": "2026-11-24T03:00:00Z",
    "monitor": MONITOR,
}
MEASURED = {
    "schema": "kimi-prov/status/v1",
    "ok": True,
    "hosts": {"node1": {**SERVING, "metrics": METRICS}},
}
WATCHER = {
    "schema": "kimi-prov/status/v1",
    "ok": True,
    "hosts": {
        "watcher": {
            "ok": True,
            "provisioned": True,
            "detail": "watches 4 targets; alerts firing: 1",
            "stand_ins": [],
            "monitor": MONITOR,
        }
    },
}


@pytest.mark.parametrize(
    ("name", "document"),
    [
        ("verify", VERIFY),
        ("status", STATUS),
        ("status", RANK),
        ("status", WATCHED),
        ("status", WATCHER),
        ("status", MEASURED),
    ],
)
def test_documents_fit_their_schema_and_a_renamed_key_does_not(name, document):
    closed_form.validate(document, name)
    broken = json.loads(json.dumps(document).replace('"detail"', '"details"'))
    with pytest.raises(jsonschema.ValidationError):
        closed_form.validate(broken, name)


@pytest.mark.parametrize(
    "text",
    [
        verify.format_text(VERIFY),
        *map(status.format_text, (STATUS, RANK, WATCHED, WATCHER, MEASURED)),
    ],
)
def test_text_keeps_to_eighty_columns(text):
    assert max(map(len, text.splitlines())) <= 80
    assert "\x1b" not in text


def test_verify_text_shows_each_check_and_the_verdict():
    text = verify.format_text(VERIFY)
    assert "ok   chat" in text
    assert "fail placement" in text
    assert "FAILED: 1 passed, 1 failed, 1 skipped" in text
    assert "random weights: its answers have form and no meaning" in " ".join(text.split())


def test_status_text_warns_of_what_is_not_as_it_should_be():
    text = " ".join(status.format_text(STATUS).split())
    assert "NOT GUARDED" in text
    assert "kimi-prov key" in text
    assert "restarted 2 times" in text
    assert "policy bind:0; 57 threads; 953.7 MiB in huge pages" in text
    assert "node2 not provisioned" in text


def test_status_tells_of_a_disk_without_room():
    text = " ".join(status.format_text(STATUS).split())
    assert "disk /srv/kimi: 2.0 TiB of 4.0 TiB free disk" in text
    assert "disk /etc/kimi: 0 B of 12.0 GiB free, FULL" in text


def test_status_tells_first_what_begins_to_fail_and_what_helps():
    findings = complete_findings(
        [
            {
                "id": "gpu.row_remap_pending",
                "observed": "GPU 3: yes\x1b[31m",
                "required": "no row that waits",
                "fix": "nvidia-smi --gpu-reset -i 3",
            }
        ]
    )
    host = {**SERVING, "findings": findings}
    closed_form.validate({**STATUS, "hosts": {"node1": host}}, "status")
    text = status.format_text({"hosts": {"node1": host}})
    words = " ".join(text.split())
    assert "HARDWARE A row of a GPU's memory is faulty" in words
    assert "[gpu.row_remap_pending] seen GPU 3: yes fix nvidia-smi --gpu-reset -i 3" in words
    assert text.index("HARDWARE") < text.index("model")
    assert "\x1b" not in text
    assert "HARDWARE" not in status.format_text(STATUS)


def test_status_names_nobody_where_there_is_no_certificate():
    absent = {**SERVING["port"]["certificate"], "names": [], "state": "absent", "detail": "none"}
    host = {**SERVING, "port": {**SERVING["port"], "certificate": absent}}
    text = " ".join(status.format_text({**STATUS, "hosts": {"node1": host}}).split())
    assert "certificate acme: none" in text


def test_status_tells_of_a_renewal_that_fails_with_its_fix():
    text = " ".join(status.format_text(STATUS).split())
    assert "certificate acme for kimi.example.com: it ends on" in text
    assert "FAILING" in text
    assert "let the authority reach port 80" in text
    port = {name: value for name, value in SERVING["port"].items() if name != "certificate"}
    older = {**STATUS, "hosts": {"node1": {**SERVING, "port": port}}}
    assert "certificate" not in status.format_text(older)


def test_a_page_that_was_never_installed_is_told_as_such():
    page = {
        "name": "Open WebUI",
        "version": None,
        "planned_version": "0.12.4",
        "port": 8443,
        "signup": False,
        "answers": False,
        "data": "/srv/kimi/web",
        "data_bytes": 0,
        "admin_not_shown_yet": False,
    }
    text = status.format_text({"hosts": {"node1": {**SERVING, "web": page}}})
    words = "Open WebUI not installed, 0.12.4 is planned, DOES NOT ANSWER"
    assert words in " ".join(text.split())


def test_status_of_a_rank_tells_its_group_and_no_port():
    text = " ".join(status.format_text(RANK).split())
    assert "group pair: a (10.0.0.1), b (10.0.0.2); this host is rank 1" in text
    assert "waiting: waiting for a, the head, at 10.0.0.1: Connection refused" in text
    assert "2 starts in a row failed though all were there" in text
    assert "HAProxy" not in text


def test_status_tells_what_the_timer_found_and_who_tells_more():
    words = " ".join(status.format_text(WATCHED).split())
    assert "drift 1 difference; could not read the firewall" in words
    assert "looked at 2026-11-24T03:00:00Z" in words
    assert "kimi-prov drift shows what" in words
    assert "drift" not in status.format_text(STATUS)


def test_status_of_a_host_that_watches_tells_what_is_down_what_fires_and_what_it_takes():
    words = " ".join(status.format_text(WATCHER).split())
    assert "Prometheus active on 127.0.0.1 port 9090, Alertmanager active" in words
    assert "targets 4, 1 DOWN down node1: kimi-engine 0" in words
    assert "alerts 1 firing critical node1: instance 0 of the engine ended by itself" in words
    assert "series 3.0 GiB of at most 10.0 GiB" in words
    silent = {**MONITOR, "answers": False, "prometheus": "failed"}
    document = {"hosts": {"watcher": {**WATCHER["hosts"]["watcher"], "monitor": silent}}}
    assert "targets" not in status.format_text(document).partition("Prometheus failed")[2]
