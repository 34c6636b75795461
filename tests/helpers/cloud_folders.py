"""Folders of `render cloud-init` and `render skypilot`, rendered for the tests of their scripts."""

from __future__ import annotations

import base64
import gzip
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import yaml

from kimi_prov import cli
from kimi_prov.packaging import own_wheel
from kimi_prov.show.exit_handling import run_guarded

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).parents[2]
SHEET = ROOT / "inventories" / "specs" / "reference-004.yml"
KINDS = ("cloud-init", "skypilot")
VARIABLES = {
    "gcp": """
kimi_context: 8192
kimi_kv_dtype: bf16
kimi_weights_source: gs://weights-of-site/kimi-k2.5
kimi_idle_stop: 20m
kimi_cloud_regions: [us-central1-a, europe-west4-b]
kimi_cloud_machines: [a3-highgpu-8g, a3-ultragpu-8g]
""",
    "aws": """
kimi_weights_source: s3://weights-of-site/kimi-k2.5
kimi_bucket_region: us-east-2
kimi_context: 8192
kimi_cloud: aws
kimi_cloud_regions: [us-east-2]
kimi_cloud_terms: on-demand
kimi_cloud_image: ami-0123456789abcdef0
kimi_pip_index_url: https://pypi.example.com/simple
kimi_https_proxy: http://proxy.example.com:3128
kimi_no_proxy: [.example.com]
kimi_engine_args: {max-num-batched-tokens: 1024}
kimi_served_names: [kimi, kimi-k2.5]
kimi_allowed_networks: [10.0.0.0/8]
""",
}


@pytest.fixture(scope="module")
def same_wheel() -> Iterator[None]:
    """A wheel that stays the same; the real one is in test_rendered_install.py."""
    made = own_wheel.Wheel("kimi_prov-0.1.0-py3-none-any.whl", b"a wheel\n")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(own_wheel, "make_wheel", lambda: made)
        yield


def run(*words: str) -> int:
    return int(run_guarded(lambda: cli.cli.main(list(words), standalone_mode=False)))


def render(kind: str, output: Path, text: str, *more: str) -> int:
    file = output.parent / f"{output.name}.vars.yml"
    file.write_text(text)
    return run("render", kind, str(SHEET), "--vars", str(file), "--output", str(output), *more)


def read(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def laid(folder: Path) -> list[dict[str, Any]]:
    """The files that the machine gets, unpacked."""
    if not (folder / "user-data").exists():
        top = folder / "machine"
        return [{"path": f"/{name}", "content": text} for name, text in read(top).items()]
    rows: list[dict[str, Any]] = yaml.safe_load((folder / "user-data").read_text())["write_files"]
    return [{**row, "content": _unpacked(row)} for row in rows]


def _unpacked(row: Mapping[str, Any]) -> str:
    content = str(row["content"])
    if row.get("encoding") == "gz+b64":
        return gzip.decompress(base64.b64decode(content)).decode()
    return content


def stand_in(folder: Path, name: str, body: str) -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_text(f"#!/bin/bash\n{body}\n")
    (folder / name).chmod(0o755)


def started(
    folder: Path, programs: Path, log: Path, **more: str
) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": f"{programs}:/usr/bin:/bin", "LOG": str(log), "KIMI_PAUSE_S": "0"}
    environment |= more
    words = [str(folder / "launch.sh"), "here"]
    return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
