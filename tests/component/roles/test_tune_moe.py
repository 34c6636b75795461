"""The role that tunes kernels, as Ansible runs it: it refuses before it touches anything."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml
from golden import planned

ROOT = Path(__file__).resolve().parents[3]
PLAYBOOK = str(Path(sys.executable).parent / "ansible-playbook")


def run(tmp_path: Path, plan: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    play = [
        {
            "hosts": "localhost",
            "connection": "local",
            "gather_facts": False,
            "roles": ["tune_moe"],
        }
    ]
    (tmp_path / "play.yml").write_text(yaml.safe_dump(play))
    (tmp_path / "vars.json").write_text(json.dumps({"kimi_plan": plan}))
    return subprocess.run(
        [PLAYBOOK, str(tmp_path / "play.yml"), "-e", f"@{tmp_path / 'vars.json'}"],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_ROLES_PATH": str(ROOT / "roles"), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.parametrize(
    ("name", "sentence"),
    [("dgx-h200", "Marlin kernels carry int4 experts"), (None, "has no kernels that are tuned")],
)
def test_it_says_why_tuning_would_change_nothing(
    tmp_path: Path, name: str | None, sentence: str
) -> None:
    plan = planned(name or "dgx-h200")
    if name is None:
        plan["moe_tuning"] = None
    done = run(tmp_path, plan)
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 2, said
    assert sentence in said
    assert "changed=0" in said
