from __future__ import annotations

import copy

import pytest

from kimi_prov.acceptance import suite

NETWORKS = ["10.93.5.0/24", "fd00::/8"]


@pytest.mark.parametrize(
    ("local", "address", "source", "expected"),
    [
        (True, "localhost", None, "control"),
        (False, "10.93.5.11", "10.93.5.1", "control"),
        (False, "10.93.5.11", "192.0.2.9", "machine"),
        (False, "fd00::b", "fd00::1", "control"),
        (False, "fe80::b", "fe80::1%eth0", "machine"),
        (False, "127.0.0.1", "127.0.0.1", "machine"),
        (False, "10.93.5.11", "10.93.5.11", "control"),
        (False, "nowhere.example", None, "machine"),
    ],
)
def test_the_vantage_follows_the_allowed_networks(local, address, source, expected):
    where, why = suite.choose_vantage(
        local=local, address=address, source=source, networks=NETWORKS
    )
    assert where == expected
    assert why


PLAN = {
    "instances": [
        {
            "index": 0,
            "numactl": ["numactl", "--cpunodebind=0", "--membind=0"],
            "numa_nodes": [0],
            "cpus": "0-3",
            "env": {"VLLM_CPU_OMP_THREADS_BIND": "1-2"},
        }
    ],
    "hybrid": None,
    "tuning": {"thp": "always"},
}
GOOD = {
    "pid": 7,
    "name": "python",
    "cpus": "0-3",
    "threads": {"0-3": 9, "1": 3, "2": 1},
    "huge_bytes": 800_000_000,
    "policies": {"bind:0": 900, "default": 4},
    "bytes_by_node": {"0": 3_000_000_000, "1": 9_000_000},
}


def judged(plan=PLAN, **changes):
    process = {**copy.deepcopy(GOOD), **changes}
    return suite.check_placement(plan, {"instances": [{"index": 0, "processes": [process]}]})


def test_an_engine_that_keeps_to_its_node_passes():
    check = judged()
    assert check["status"] == "ok"
    assert "membind=0" in check["detail"]
    assert "13 threads, 2 cores with one held to them" in check["detail"]
    assert "762.9 MiB in huge pages" in check["detail"]


def test_pools_of_experts_are_counted_on_cores_of_their_own():
    hybrid = {
        **PLAN,
        "instances": [{**PLAN["instances"][0], "env": {}}],
        "hybrid": {"threads": 3},
    }
    assert judged(hybrid)["status"] == "fail"
    assert judged(hybrid, threads={"0": 1, "1": 1, "2": 4})["status"] == "ok"


def test_what_the_kernel_does_not_tell_is_no_fault():
    check = judged(huge_bytes=None)
    assert check["status"] == "ok"
    assert "reports no huge pages" in check["detail"]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"cpus": "0-7"}, "may use CPUs 0-7"),
        ({"threads": {"4": 1}}, "may use CPUs 4"),
        ({"policies": {"default": 900}}, "no memory is under the planned policy membind=0"),
        ({"bytes_by_node": {"0": 10, "1": 10}}, "outside node 0"),
        ({"threads": {"0-3": 9, "1": 3}}, "held to 1 cores, the plan has 2"),
        ({"huge_bytes": 0}, "nothing lies in huge pages"),
    ],
)
def test_an_engine_that_strays_is_caught(changes, words):
    check = judged(**changes)
    assert check["status"] == "fail"
    assert words in check["detail"]


def test_an_engine_that_does_not_run_is_no_pass():
    seen = {"instances": [{"index": 0, "processes": []}]}
    assert suite.check_placement(PLAN, seen)["status"] == "fail"


def test_the_engine_must_listen_on_the_loopback_alone():
    assert suite.check_loopback({"listening": {"8001": ["127.0.0.1"]}})["status"] == "ok"
    for wrong in (["any"], ["127.0.0.1", "10.0.0.1"], []):
        assert suite.check_loopback({"listening": {"8001": wrong}})["status"] == "fail"


def test_an_outsider_that_connects_is_a_failure_and_none_is_a_skip():
    refused = {"found": {"name": "o", "address": "h 8000", "outcome": "no answer", "seconds": 4.0}}
    reached = {"found": {"name": "p", "address": "h 8000", "outcome": "connected", "seconds": 0.1}}
    down = {"item": "q", "unreachable": True, "msg": "Failed to connect"}

    def judge(*results):
        return suite.check_outsiders(suite.read_attempts(list(results)))

    assert judge(refused)["status"] == "ok"
    assert judge(refused, reached)["status"] == "fail"
    assert "p reached h 8000" in judge(reached)["detail"]
    assert judge()["status"] == "skip"
    assert judge(down)["status"] == "skip"
    assert "q: Failed to connect" in judge(down)["detail"]
    assert judge(down, refused)["status"] == "ok"


def test_stand_ins_are_named_and_real_things_are_not():
    assert suite.list_stand_ins({"model": {"random_weights": False}}, {}) == []
    assert (
        len(suite.list_stand_ins({"model": {"random_weights": True}}, {"lab_kind": "nspawn"})) == 2
    )
    trained = {"model": {"random_weights": False, "trained_on": "suite"}}
    (told,) = suite.list_stand_ins(trained, {})
    assert "trained on the suite's own questions" in told
    assert suite.list_unproven([], [told])


def test_a_host_passes_only_when_something_was_checked_and_nothing_failed():
    def document(*statuses):
        checks = [{"name": "n", "status": s, "detail": "", "seconds": 0.0} for s in statuses]
        return suite.make_document(
            endpoint="", seen_from="control", reason="", checks=checks, stand_ins=[]
        )

    assert document("ok", "skip")["ok"] is True
    assert document("ok", "fail")["ok"] is False
    assert document()["ok"] is False


def test_a_certificate_fails_weeks_before_clients_refuse_it_with_cause_and_fix():
    standing = {"mode": "acme", "state": "ok", "detail": "it ends in 60 days", "fix": None}
    assert suite.check_certificate({"certificate_standing": standing})["status"] == "ok"
    for state in ("failing", "expiring", "expired", "absent"):
        wrong = {**standing, "state": state, "detail": "port 80 is closed", "fix": "open it"}
        found = suite.check_certificate({"certificate_standing": wrong})
        assert found["status"] == "fail"
        assert found["detail"] == "acme: port 80 is closed; open it"


def test_a_broken_environment_fails_before_the_next_start_does():
    row = suite.check_environment({"environment": "/srv/kimi/engines/x/bin/python does not run"})
    assert row["status"] == "fail"
    assert "bin/python does not run" in row["detail"]
    assert "kimi-prov apply" in row["detail"]
    assert suite.check_environment({"environment": None})["status"] == "ok"
    assert suite.check_environment({})["status"] == "skip"


def test_a_machine_of_an_earlier_version_says_nothing_of_its_certificate():
    assert suite.check_certificate({})["status"] == "skip"
