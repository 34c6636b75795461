"""Command lines of a bench through the real parsers of vLLM's own client, version by version."""

from __future__ import annotations

import json
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from kimi_prov.on_host.bench import client
from kimi_prov.on_host.bench.load import Load

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = pytest.mark.slow

LOADS = {
    "words": Load(requests=4, rate_per_s=2.5),
    "chat": Load(chat=True, rounds=2),
    "images": Load(images=2, image_width=640, image_height=480),
    "sharegpt": Load(form="sharegpt", prompts=3, output_tokens=64),
    "visionarena": Load(form="visionarena", prompts=3, pictures=3),
}
_PARSED = """
import json, sys
from vllm.benchmarks.serve import add_cli_args
from vllm.utils.argparse_utils import FlexibleArgumentParser
parser = FlexibleArgumentParser()
add_cli_args(parser)
for argv in json.load(sys.stdin):
    found = parser.parse_args(argv)
    print(json.dumps({"rate": found.request_rate, "images": str(found.random_mm_bucket_config)}))
"""


def plan() -> dict[str, Any]:
    return {
        "engine": {"name": "vllm"},
        "instances": [{"argv": ["--trust-remote-code"]}],
        "model": {"served_names": ["kimi"], "serve_dir": "/models/kimi", "context": 4096},
        "proxy": {"port": 8000},
        "throughput": {"concurrency": 4},
    }


@pytest.mark.parametrize("version", ["0.19.1", "0.25.1", "0.32.0", "0.33.0"])
def test_the_client_of_the_version_takes_every_load(
    version: str, parser_of: Callable[[str], Path]
) -> None:
    lines = [
        run["argv"][2:]
        for load in LOADS.values()
        for run in client.list_runs(plan(), load, (None if load.form else 256, 64), 7)
    ]
    done = subprocess.run(
        [str(parser_of(version) / "bin" / "python"), "-c", _PARSED],
        input=json.dumps(lines),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    assert len(found) == len(lines)
    assert {row["rate"] for row in found} == {2.5, float("inf")}
    assert any("(480, 640, 1)" in row["images"] for row in found)
