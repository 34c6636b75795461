"""A machine in use: what an older version serves goes on under this one.

    KIMI_PROV_TAKEOVER_FROM=v1.2.0 pytest tests/lab/test_takeover.py

The older version is any commit or tag of this clone. It runs from its own tree, under the Python
and the Ansible of this one.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest
import yaml
from machines import CHECKOUT, KIMI_PROV, Host, kimi_prov, make_lab, newest_run, run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = [pytest.mark.lab, pytest.mark.slow]

FROM = os.environ.get("KIMI_PROV_TAKEOVER_FROM", "d247556")
NETWORK = "10.93.70"
UNIT = "kimi-serve@0.service"
# Ends what calls it where a switch would be cut: units are written, the engine is not restarted.
CUT = r"""#!/bin/sh
if [ "$1" = restart ]; then kill -9 $PPID; exit; fi
exec /usr/bin/systemctl "$@"
"""


@pytest.fixture(scope="module")
def older(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tree of the older version."""
    git = ("git", "-C", str(CHECKOUT))
    if run(*git, "cat-file", "-e", f"{FROM}^{{commit}}").returncode:
        pytest.fail(
            f"{FROM} is not in this clone: run `git fetch --tags --unshallow`, or name another "
            "commit in KIMI_PROV_TAKEOVER_FROM"
        )
    tree = tmp_path_factory.mktemp("older")
    with subprocess.Popen([*git, "archive", FROM], stdout=subprocess.PIPE) as archive:
        subprocess.run(["tar", "-x", "-C", str(tree)], stdin=archive.stdout, check=True)
    assert archive.returncode == 0
    return tree


@pytest.fixture(scope="module")
def host(older: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A host that the older version serves a model on."""
    lab = make_lab(tmp_path_factory.mktemp("takeover") / "inv", NETWORK, ["node1"])
    lab.up()
    try:
        node = lab.hosts["node1"]
        env = {"PYTHONPATH": str(older)}
        done = run(KIMI_PROV, "apply", str(lab.inventory), cwd=older, env=env, timeout=1800)
        assert done.returncode == 0, done.stdout + done.stderr
        # It was the older version, from its plugins to what travels to the machine.
        where = "import kimi_prov; print(kimi_prov.__file__)"
        package = run(sys.executable, "-c", where, cwd=older, env=env).stdout.strip()
        assert package == str(older / "kimi_prov" / "__init__.py")
        program = older / "probe.pyz"
        run(KIMI_PROV, "probe", "--bundle", str(program), cwd=older, env=env)
        digest = hashlib.sha256(program.read_bytes()).hexdigest()
        assert node.ssh("sha256sum /srv/kimi/lib/kimi-target.pyz").split()[0] == digest
        yield node
    finally:
        lab.down()


@dataclass(frozen=True)
class Engine:
    """One process of the engine, which no other can be taken for."""

    pid: int
    started: int


def engine(host: Host) -> Engine:
    """The engine that runs."""
    shown = host.ssh(
        f"systemctl show --property=MainPID,ExecMainStartTimestampMonotonic '{UNIT}'"
    ).split()
    values = dict(line.split("=") for line in shown)
    return Engine(int(values["MainPID"]), int(values["ExecMainStartTimestampMonotonic"]))


def restarts(host: Host) -> list[str]:
    """What `plan` says about restarts."""
    done = kimi_prov("plan", host.inventory, "--format", "json")
    assert done.returncode == 0, done.stderr
    findings = json.loads(done.stdout)["hosts"][host.name]["findings"]
    return [row["title"] for row in findings if row["id"] == "serve.restart"]


def applied(host: Host, *args: str) -> tuple[str, int]:
    """Output of an apply that succeeds, and how many tasks it changed."""
    done = host.apply(*args)
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((newest_run(host.inventory) / "result.json").read_text())
    return done.stdout, int(result["hosts"][host.name]["changed"])


def reasons(titles: list[str]) -> list[str]:
    """The part of each title that says why."""
    return [title.partition("restarts: ")[2] for title in titles]


def test_an_engine_is_restarted_only_for_a_reason_that_is_named_before(host: Host) -> None:
    before = engine(host)
    named = restarts(host)
    checked, _ = applied(host, "--check")
    assert engine(host) == before
    for reason in reasons(named):
        assert f"{UNIT} restarts: {reason}" in checked
    if not named:
        assert "restarts:" not in checked
    if FROM == "d247556":
        assert "protection: machine key added" in "; ".join(reasons(named)).split("; ")
    applied(host)
    assert (engine(host) == before) == (not named), named


def test_a_second_apply_changes_nothing(host: Host) -> None:
    before, units = engine(host), host.ssh(f"systemctl cat '{UNIT}' | sha256sum")
    assert applied(host)[1] == 0
    assert restarts(host) == []
    checked, changed = applied(host, "--check")
    assert changed == 0, checked
    assert engine(host) == before
    assert host.ssh(f"systemctl cat '{UNIT}' | sha256sum") == units


def test_a_changed_flag_is_named_and_a_run_cut_before_the_restart_is_made_good(host: Host) -> None:
    before = engine(host)
    file = host.inventory / "group_vars" / "kimi.yml"
    variables = yaml.safe_load(file.read_text())
    file.write_text(yaml.safe_dump(variables | {"kimi_engine_args": {"max-num-seqs": 7}}))
    (named,) = reasons(restarts(host))
    assert named.startswith("command line: --max-num-seqs ")
    assert named.endswith(" -> 7")
    host.ssh(
        f"cat > /usr/local/bin/systemctl <<'END'\n{CUT}END\nchmod 755 /usr/local/bin/systemctl"
    )
    cut = host.apply()
    host.ssh("rm /usr/local/bin/systemctl")
    assert cut.returncode == 1, cut.stdout + cut.stderr
    # The machine has put its files back, and never stopped what serves.
    assert "--max-num-seqs 7 " not in host.ssh(f"systemctl cat '{UNIT}'")
    assert engine(host) == before
    assert reasons(restarts(host)) == [named]
    checked, _ = applied(host, "--check")
    assert f"{UNIT} restarts: {named}" in checked
    applied(host)
    after = engine(host)
    assert after.pid != before.pid
    assert "--max-num-seqs\0007\0" in host.ssh(f"cat /proc/{after.pid}/cmdline")
    assert applied(host)[1] == 0
    assert engine(host) == after
