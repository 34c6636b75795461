"""The bench on a served host: real client, real engine, and nothing left behind."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import jsonschema
import pytest
from machines import kimi_prov

from kimi_prov import schemas

if TYPE_CHECKING:
    from machines import Host

pytestmark = pytest.mark.lab


def test_bench_measures_the_served_model_and_leaves_nothing(served_host: Host) -> None:
    key = served_host.ssh("cat /etc/kimi/keys/verify.key").strip()
    done = kimi_prov("bench", served_host.inventory, "--limit", served_host.name, "--format=json")
    assert done.returncode == 0, done.stderr
    assert key not in done.stdout + done.stderr
    document = json.loads(done.stdout)
    schema = schemas.load("bench")
    jsonschema.validate(document, schema)
    host = document["hosts"][served_host.name]
    assert [level["concurrency"] for level in host["serve"]["levels"]] == [1, 4, 16]
    assert all(level["decode_tok_s"] > 0 for level in host["serve"]["levels"])
    assert host["memory"]["bytes_per_s"] > 0
    assert host["layer"] == {"available": False, "reason": "the engine vllm has no kt-kernel"}
    assert host["normal"] is None
    assert len(host["stand_ins"]) == 2
    left = served_host.ssh(
        "systemctl is-active kimi-bench.service; ls /run/kimi/bench.json /tmp/kimi-bench-* 2>&1; "
        "ls /run/kimi-apply.lock 2>&1",
        check=False,
    )
    assert left.split()[0] == "inactive"
    assert left.count("No such file") == 3


def test_bench_says_that_the_model_does_not_answer(virgin_host: Host) -> None:
    done = kimi_prov("bench", virgin_host.inventory, "--limit", virgin_host.name)
    assert done.returncode == 1
    assert "kimi-prov apply" in done.stderr
    assert "Traceback" not in done.stderr
