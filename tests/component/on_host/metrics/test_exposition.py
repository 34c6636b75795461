"""The text of metrics, read by Prometheus' own tool."""

from __future__ import annotations

import subprocess

from kimi_prov.on_host.metrics import collect
from kimi_prov.on_host.system.exposition import Sample, render


def lint(text: str) -> str:
    """What promtool has to say; empty where it is content."""
    done = subprocess.run(
        ["promtool", "check", "metrics"],
        input=text,
        text=True,
        capture_output=True,
        timeout=60,
        check=False,
    )
    return done.stdout + done.stderr


def test_promtool_takes_every_name() -> None:
    samples = [Sample(name, 1, {"gpu": "0"} if "gpu_" in name else {}) for name in collect.HELPS]
    text = render(samples, collect.HELPS)
    assert lint(text) == ""
    assert text.count("# TYPE") == len(collect.HELPS)


def test_promtool_would_have_told() -> None:
    assert "counter metrics should have" in lint("# HELP a b\n# TYPE a counter\na 1\n")


def test_labels_of_others_break_no_line() -> None:
    model = 'a"b\\c\nkimi_weights_verified 1\n\x1b[31m'
    text = render([Sample("kimi_plan_info", 1, {"model": model})], collect.HELPS)
    rows = [line for line in text.splitlines() if not line.startswith("#")]
    assert len(rows) == 1
    assert lint(text) == ""
    assert "\x1b" not in text


def test_what_is_not_known_is_left_out_with_its_head() -> None:
    samples = [Sample("kimi_weights_bytes", None), Sample("kimi_weights_verified", value=False)]
    assert render(samples, collect.HELPS).splitlines()[1:] == [
        "# TYPE kimi_weights_verified gauge",
        "kimi_weights_verified 0",
    ]
