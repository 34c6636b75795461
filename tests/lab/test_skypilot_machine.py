"""A bare host on which SkyPilot's setup breaks: it ends itself, with nothing of ours installed.

The task and its files are rendered; what SkyPilot does with them is done here by hand, as its own
code does in tests/component/render/test_skypilot_itself.py: the files are laid, `setup` is run. The
cloud is AWS, where a machine ends by its own power.
"""

from __future__ import annotations

import shlex
import subprocess
from typing import TYPE_CHECKING

import pytest
import yaml
from machines import CHECKOUT, kimi_prov, make_lab
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from machines import Host

pytestmark = [pytest.mark.lab, pytest.mark.slow]
NETWORK = "10.93.138"
# Of apt on a machine with other work: only a hang takes as long.
HANGS_S = 1200.0
SHEET = CHECKOUT / "inventories" / "specs" / "reference-004.yml"
VARIABLES = """
kimi_weights_source: s3://weights-of-site/kimi-k2.5
kimi_context: 8192
kimi_cloud: aws
kimi_idle_stop: 20m
"""
# SkyPilot's user is no root; here it is.
SUDO = "printf '#!/bin/sh\\nexec \"$@\"\\n' >/usr/local/bin/sudo && chmod 755 /usr/local/bin/sudo"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The rendered folder, whose machine cannot install kimi-prov."""
    output = tmp_path_factory.mktemp("sky") / "folder"
    (output.parent / "vars.yml").write_text(VARIABLES)
    words = ("render", "skypilot", SHEET, "--vars", output.parent / "vars.yml", "--output", output)
    done = kimi_prov(*words, timeout=HANGS_S)
    assert done.returncode == 0, done.stderr
    (output / "machine/usr/local/sbin/kimi-install").write_text("#!/bin/bash\nexit 3\n")
    packed = ["tar", "-czf", output.parent / "machine.tar.gz", "-C", output / "machine", "."]
    subprocess.run(packed, check=True)
    return output


@pytest.fixture(scope="module")
def host(folder: Path) -> Iterator[Host]:
    file = {"src": str(folder.parent / "machine.tar.gz"), "dest": "/opt/machine.tar.gz"}
    lab = make_lab(folder.parent / "inv", NETWORK, ["sky1"], files=[file])
    lab.up()
    try:
        yield lab.hosts["sky1"]
    finally:
        lab.down()


def show(host: Host, unit: str, name: str) -> str:
    return host.ssh(f"systemctl show -P {name} {unit}", check=False).strip()


def test_a_setup_that_breaks_leads_to_a_machine_that_is_off(host: Host, folder: Path) -> None:
    task = yaml.safe_load((folder / "kimi.sky.yaml").read_text())
    ((mounted, source),) = task["file_mounts"].items()
    assert source == "./machine"
    host.ssh(f"{SUDO} && mkdir -p {mounted} && tar -xzf /opt/machine.tar.gz -C {mounted}")
    said = host.ssh(f"bash -c {shlex.quote(task['setup'])}; echo rc=$?", timeout=HANGS_S)
    assert said.rstrip().endswith("rc=1"), said
    assert show(host, "kimi-up.service", "ActiveState") == "failed"
    # Two ways out are armed: the long one of a machine that does not serve, and the short one.
    for timer in ("kimi-give-up.timer", "kimi-failed.timer"):
        assert until(lambda: show(host, timer, "ActiveState") == "active", 60, 1), timer  # noqa: B023
        assert show(host, timer, "Unit") == "kimi-give-up.service"
    # Its minutes have passed. Nothing of ours is installed but what was laid.
    assert host.ssh("ls /srv/kimi 2>/dev/null", check=False) == ""
    host.ssh("systemctl start --no-block kimi-give-up.service")
    assert until(lambda: not host.ssh("echo up", check=False).strip(), 300, 2)
