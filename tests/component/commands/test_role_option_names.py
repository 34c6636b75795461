"""An inventory that misspells an option of a role, planned on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

HOSTS = """\
kimi:
  hosts: {here: {ansible_connection: local}}
  vars:
    kimi_model: kimi-k2.5
    proxy_env: {http_proxy: "http://proxy.example:3128"}
    nvidia_driver_reboot_okay: true
"""


def test_it_is_told_before_the_machine_is_asked(tmp_path: Path) -> None:
    hosts = tmp_path / "hosts.yml"
    hosts.write_text(HOSTS)
    done = subprocess.run(
        [sys.executable, "-m", "kimi_prov", "plan", str(hosts)],
        check=False,
        capture_output=True,
        text=True,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        timeout=120,
    )
    assert done.returncode == 2, done.stderr
    said = f"{hosts}:6: unknown variable nvidia_driver_reboot_okay; did you mean "
    assert f"{said}nvidia_driver_reboot_ok?" in done.stderr
    assert "proxy_env" not in done.stderr
    assert done.stdout == ""
