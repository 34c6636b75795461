"""The bench on a served host: real client, real engine, and nothing left behind."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import closed_form
import pytest
from machines import kimi_prov

if TYPE_CHECKING:
    from pathlib import Path

    from machines import Host

pytestmark = pytest.mark.lab


def test_bench_measures_the_served_model_and_leaves_nothing(served_host: Host) -> None:
    key = served_host.ssh("cat /etc/kimi/keys/verify.key").strip()
    done = kimi_prov("bench", served_host.inventory, "--limit", served_host.name, "--format=json")
    assert done.returncode == 0, done.stderr
    assert key not in done.stdout + done.stderr
    document = json.loads(done.stdout)
    closed_form.validate(document, "bench")
    host = document["hosts"][served_host.name]
    assert [level["concurrency"] for level in host["serve"]["levels"]] == [1, 4, 16]
    assert all(level["decode_tok_s"] > 0 for level in host["serve"]["levels"])
    assert host["memory"]["bytes_per_s"] > 0
    assert host["layer"] == {"available": False, "reason": "the engine vllm has no kt-kernel"}
    assert host["normal"] is None
    assert len(host["stand_ins"]) == 2
    assert host["serve"]["warm_up"]["requests"] == 1
    nothing_is_left(served_host)


def nothing_is_left(host: Host) -> None:
    left = host.ssh(
        "systemctl is-active kimi-bench.service; ls /run/kimi/bench.json /tmp/kimi-bench-* 2>&1; "
        "ls /run/kimi-apply.lock /run/kimi/bench-load.json 2>&1",
        check=False,
    )
    assert left.split()[0] == "inactive"
    assert left.count("No such file") == 4


@pytest.mark.slow
def test_bench_asks_a_sweep_of_chats_in_rounds_and_writes_a_page(
    served_host: Host, tmp_path: Path
) -> None:
    page = tmp_path / "bench.html"
    words = ("--limit", served_host.name, "--profile", "lab", "--concurrency", "1,4")
    done = kimi_prov("bench", served_host.inventory, *words, "--output", page)
    assert done.returncode == 0, done.stderr
    text = page.read_text()
    assert text.count('class="plot"') == 2
    assert "the last time" in text or "This is the first" in text
    done = kimi_prov("bench", served_host.inventory, *words, "--format=json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    closed_form.validate(document, "bench")
    serve = document["hosts"][served_host.name]["serve"]
    assert [(row["concurrency"], row["requests"]) for row in serve["levels"]] == [(1, 16), (4, 16)]
    assert serve["warm_up"]["requests"] == 2
    for level in serve["levels"]:
        assert level["spread"]["aggregate_tok_s"]["low"] > 0
        assert level["itl_s"]["p99"] > 0
        # The real engine's own counts, through the machine key on loopback.
        assert level["engine"]["preemptions"] == 0
        assert level["engine"]["prefix_cache"]["queried_tokens"] is not None
        assert "no GPU" in level["power"]["reason"]
    nothing_is_left(served_host)


@pytest.mark.slow
def test_bench_asks_prompts_of_a_file_and_none_of_it_stays(
    served_host: Host, tmp_path: Path
) -> None:
    canary = "a question that nobody else shall read"
    answer = {"from": "gpt", "value": "an answer of some words"}
    rows = [
        {"conversations": [{"from": "human", "value": f"{canary} {number}"}, answer]}
        for number in range(6)
    ]
    prompts = tmp_path / "prompts.json"
    prompts.write_text(json.dumps(rows))
    done = kimi_prov(
        *("bench", served_host.inventory, "--limit", served_host.name, "--prompts", prompts),
        *("--concurrency", "2", "--requests", "4", "--answer-tokens", "8", "--format=json"),
    )
    assert done.returncode == 0, done.stderr
    assert canary not in done.stdout + done.stderr
    serve = json.loads(done.stdout)["hosts"][served_host.name]["serve"]
    (level,) = serve["levels"]
    assert (level["requests"], level["output_tokens"], level["left_out"]) == (4, 32, 0)
    assert serve["load"]["prompts_of_file"] == 6
    nothing_is_left(served_host)
    kept = served_host.ssh(
        f"grep -rl '{canary}' /run/kimi /etc/kimi /var/lib/kimi /tmp /root/.ansible 2>/dev/null; "
        f"journalctl -u kimi-bench.service -u kimi-sandbox.service | grep -c '{canary}'",
        check=False,
    )
    assert kept.strip() == "0"


def test_a_load_that_does_not_fit_is_refused_before_anything_is_measured(
    served_host: Host,
) -> None:
    words = ("bench", served_host.inventory, "--limit", served_host.name)
    done = kimi_prov(*words, "--prompt-tokens", "9000000")
    assert done.returncode == 1
    assert "do not fit the context" in done.stderr
    done = kimi_prov(*words, "--images", "1")
    assert done.returncode == 1
    assert "takes no images" in done.stderr
    nothing_is_left(served_host)


def test_bench_says_that_the_model_does_not_answer(virgin_host: Host) -> None:
    done = kimi_prov("bench", virgin_host.inventory, "--limit", virgin_host.name)
    assert done.returncode == 1
    assert "kimi-prov apply" in done.stderr
    assert "Traceback" not in done.stderr
