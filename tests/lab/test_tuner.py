"""The tuner's role from end to end: real hosts, units and Ray; the tuner itself is a stand-in.

vLLM's own needs GPUs and an hour. What stands in for it does what that one does with its
surroundings: it starts Ray in the unit, asks a worker, and writes a table.
"""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest
import yaml
from golden import planned
from machines import ANSIBLE_PLAYBOOK, CHECKOUT, run

if TYPE_CHECKING:
    import subprocess
    from pathlib import Path

    from machines import Host

pytestmark = [pytest.mark.lab, pytest.mark.slow]

TUNER = """
import json, os, pathlib, pwd, subprocess, sys
print("a stand-in for vLLM's benchmark_moe.py: it measures nothing")
import ray

ray.init(num_cpus=1, include_dashboard=False)

@ray.remote
def who():
    unit = open("/proc/self/cgroup").read().strip().rpartition("/")[2]
    return [pwd.getpwuid(os.getuid()).pw_name, unit, ray.__version__]

user, unit, version = ray.get(who.remote())
state = subprocess.run(["systemctl", "is-active", "kimi-serve@0"], capture_output=True, text=True)
folder = pathlib.Path(sys.argv[sys.argv.index("--save-dir") + 1])
seen = {"user": user, "unit": unit, "ray": version, "engine": state.stdout.strip()}
(folder / "E=384,N=2048,stand_in.json").write_text(json.dumps(seen))
"""


def moe_tuning() -> dict[str, Any]:
    """What the planner gives for a GPU server, for the tuner of this test."""
    found: dict[str, Any] = planned("dgx-h200")["moe_tuning"]
    return found | {"read": True, "sha256": hashlib.sha256(TUNER.encode()).hexdigest()}


def tune(host: Host, folder: Path, script: Path, *more: str) -> subprocess.CompletedProcess[str]:
    """Run the role on a served host, whose own plan has no kernels to tune."""
    plan = json.loads(host.ssh("cat /etc/kimi/plan.json")) | {"moe_tuning": moe_tuning()}
    play = [{"hosts": host.name, "gather_facts": False, "become": True, "roles": ["tune_moe"]}]
    (folder / "play.yml").write_text(yaml.safe_dump(play))
    given = {"kimi_plan": plan, "tune_moe_script": str(script)}
    (folder / "vars.json").write_text(json.dumps(given))
    command = [ANSIBLE_PLAYBOOK, "-i", str(host.inventory), str(folder / "play.yml")]
    command += ["-e", f"@{folder / 'vars.json'}", *more]
    roles = {"ANSIBLE_ROLES_PATH": str(CHECKOUT / "roles"), "NO_COLOR": "1"}
    return run(*command, cwd=CHECKOUT, env=roles)


def unit(host: Host, name: str) -> dict[str, str]:
    rows = host.ssh(f"systemctl show -p MainPID -p ActiveState '{name}'").splitlines()
    return dict(row.split("=", 1) for row in rows)


def test_a_tuner_of_another_version_is_refused_while_the_engine_runs(
    served_host: Host, tmp_path: Path
) -> None:
    before = unit(served_host, "kimi-serve@0")
    other = tmp_path / "benchmark_moe.py"
    other.write_text(TUNER + "# of another version\n")
    done = tune(served_host, tmp_path, other)
    said = " ".join((done.stdout + done.stderr).split())
    assert done.returncode == 2, said
    assert "is not benchmark_moe.py of vLLM" in said
    assert unit(served_host, "kimi-serve@0") == before


def test_the_tuner_runs_in_its_unit_with_ray_and_the_engine_serves_after_it(
    served_host: Host, tmp_path: Path
) -> None:
    folder = moe_tuning()["dir"]
    before = unit(served_host, "kimi-serve@0")
    script = tmp_path / "benchmark_moe.py"
    script.write_text(TUNER)
    done = tune(served_host, tmp_path, script)
    assert done.returncode == 0, done.stdout + done.stderr
    seen = json.loads(served_host.ssh(f"cat {folder}/*.json"))
    assert (seen["user"], seen["unit"]) == ("kimi", "kimi-tune.service")
    locked = (CHECKOUT / "kimi_prov" / "catalog" / "locks" / "ray.txt").read_text()
    assert f"ray=={seen['ray']}" in locked
    # It is the machine's GPUs that are measured: nobody else has them meanwhile.
    assert seen["engine"] != "active"
    # The engine is started without a wait: an apply waits for its first answer.
    done = served_host.apply("--tags", "ready")
    assert done.returncode == 0, done.stdout + done.stderr
    after = unit(served_host, "kimi-serve@0")
    assert after["ActiveState"] == "active"
    assert after["MainPID"] != before["MainPID"]
    again = tune(served_host, tmp_path, script)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "changed=0" in again.stdout, "tables that are there are kept"
    assert unit(served_host, "kimi-serve@0") == after
