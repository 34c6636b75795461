"""The role that tunes kernels, as Ansible runs it: it refuses before it touches anything."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import yaml
from golden import planned

ROOT = Path(__file__).resolve().parents[3]
PLAYBOOK = str(Path(sys.executable).parent / "ansible-playbook")


def test_it_says_why_tuning_would_change_nothing(tmp_path: Path) -> None:
    """Each host of one play for a reason of its own."""
    plan = planned("dgx-h200")
    sentences = {
        "carried": (plan, "Marlin kernels carry int4 experts"),
        "none": ({**plan, "moe_tuning": None}, "has no kernels that are tuned"),
    }
    hosts = {name: {"kimi_plan": found} for name, (found, _) in sentences.items()}
    local = {"ansible_connection": "local"}
    (tmp_path / "hosts.json").write_text(json.dumps({"all": {"hosts": hosts, "vars": local}}))
    play = [{"hosts": "all", "gather_facts": False, "roles": ["tune_moe"]}]
    (tmp_path / "play.yml").write_text(yaml.safe_dump(play))
    done = subprocess.run(
        [PLAYBOOK, "-i", str(tmp_path / "hosts.json"), str(tmp_path / "play.yml")],
        cwd=ROOT,
        env={**os.environ, "ANSIBLE_ROLES_PATH": str(ROOT / "roles"), "NO_COLOR": "1"},
        capture_output=True,
        text=True,
        check=False,
    )
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 2, said
    for name, (_, sentence) in sentences.items():
        (answer,) = re.findall(rf"fatal: \[{name}\]: FAILED! => (.*?)(?=fatal: |PLAY RECAP)", said)
        assert sentence in answer
    assert said.count("changed=0") == len(sentences)
