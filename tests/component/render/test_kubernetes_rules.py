"""Rules for Prometheus as `render kubernetes` writes them, in the hands of promtool.

The golden folder stands for what is rendered: tests/unit/render/test_kubernetes_render.py compares.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import yaml
from kubernetes_kinds import one

GOLDEN = Path(__file__).parents[2] / "data" / "golden" / "kubernetes"


def test_promtool_takes_the_rules_and_they_fire(tmp_path: Path) -> None:
    folder = GOLDEN / "reference-002"
    rules = tmp_path / "rules.yml"
    rules.write_text(yaml.safe_dump(one(folder, "PrometheusRule")["spec"]))
    done = subprocess.run(
        ["promtool", "check", "rules", "--lint-fatal", str(rules)],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "6 rules found" in done.stdout
    pod = 'job="kimi",pod="kimi-0",model_name="m",engine="0",namespace="models"'
    hidden, long = pod.replace("models", "other"), pod.replace("kimi-0", "kimi-3")
    series = {
        f"vllm:num_requests_running{{{pod}}}": "3+0x120",
        f"vllm:num_requests_waiting{{{pod}}}": "40+0x120",
        f"vllm:generation_tokens_total{{{pod}}}": "5+0x120",
        f"vllm:prompt_tokens_total{{{pod}}}": "5+0x120",
        f"vllm:iteration_tokens_total_count{{{pod}}}": "5+0x120",
        f"vllm:kv_cache_usage_perc{{{pod}}}": "0.99+0x120",
        f"vllm:num_preemptions_total{{{pod}}}": "0+5x120",
        f'vllm:time_to_first_token_seconds_bucket{{{pod},le="10"}}': "0+0x120",
        f'vllm:time_to_first_token_seconds_bucket{{{pod},le="60"}}': "0+9x120",
        f'vllm:time_to_first_token_seconds_bucket{{{pod},le="+Inf"}}': "0+9x120",
        'up{job="kimi",pod="kimi-0",namespace="models"}': "1+0x5 0+0x120",
        # Another's engine is not looked at, nor does one of that name elsewhere hide this one.
        'up{job="other",pod="other-0",namespace="models"}': "1+0x5 0+0x120",
        'up{job="kimi",pod="kimi-0",namespace="other"}': "1+0x5 0+0x120",
        f"vllm:num_requests_running{{{hidden}}}": "3+0x120",
        f"vllm:generation_tokens_total{{{hidden}}}": "5+90x120",
        f"vllm:prompt_tokens_total{{{hidden}}}": "5+90x120",
        f"vllm:iteration_tokens_total_count{{{hidden}}}": "5+90x120",
        # A long prompt: no token for an hour, but steps.
        f"vllm:num_requests_running{{{long}}}": "1+0x120",
        f"vllm:generation_tokens_total{{{long}}}": "5+0x120",
        f"vllm:prompt_tokens_total{{{long}}}": "5+0x120",
        f"vllm:iteration_tokens_total_count{{{long}}}": "5+2x120",
        # It was stopped, is started and loads within its time; it waits for its first weights.
        'up{job="kimi",pod="kimi-1",namespace="models"}': "1+0x5 _x20 0+0x54 1+0x40",
        'up{job="kimi",pod="kimi-2",namespace="models"}': "0+0x120",
    }
    names = ("Down", "Hangs", "Queue", "CacheFull", "Preempts", "SlowFirstToken")
    text = rules.read_text()
    tests = {
        "rule_files": [str(rules)],
        "evaluation_interval": "1m",
        "tests": [
            {
                "interval": "1m",
                "input_series": [{"series": k, "values": v} for k, v in series.items()],
                "promql_expr_test": [
                    {
                        "expr": f'count by (namespace, pod) (ALERTS{{alertname="Kimi{name}",'
                        'alertstate="firing"})',
                        "eval_time": at,
                        "exp_samples": [{"labels": '{namespace="models",pod="kimi-0"}', "value": 1}]
                        if fires
                        else [],
                    }
                    for name in names
                    # A pod that is down may be one that loads: 3300 s are given.
                    for at, fires in (("30m", name != "Down"), ("78m", True), ("110m", True))
                ],
            }
        ],
    }
    assert all(f"Kimi{name}" in text for name in names)
    (tmp_path / "tests.yml").write_text(yaml.safe_dump(tests))
    done = subprocess.run(
        ["promtool", "test", "rules", str(tmp_path / "tests.yml")],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
