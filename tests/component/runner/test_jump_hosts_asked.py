"""What OpenSSH itself says on the way through a jump host, as the command tells it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from command_line import run

if TYPE_CHECKING:
    from pathlib import Path

HOSTS = """\
kimi:
  hosts:
    gpu:
      ansible_host: 10.0.0.5
      ansible_user: root
      ansible_ssh_common_args: {}
"""
# Nothing listens on this port, and no name ends so.
CLOSED, NAMELESS = "ops@127.0.0.1:1", "ops@bastion.invalid"


@pytest.mark.parametrize(
    ("arguments", "why", "fix"),
    [
        (
            f"-o ProxyJump={CLOSED}",
            "10.0.0.5 is behind the jump host 127.0.0.1, which refused the connection",
            "ssh -p 1 ops@127.0.0.1",
        ),
        (
            f"-J {NAMELESS}",
            "10.0.0.5 is behind the jump host bastion.invalid, which has a name that cannot be",
            "ssh ops@bastion.invalid",
        ),
        (
            f"-o ProxyCommand='ssh -W %h:%p -q {NAMELESS}'",
            "10.0.0.5 is behind the jump host bastion.invalid, which has a name that cannot be",
            "ssh -q ops@bastion.invalid",
        ),
        (
            "-o ProxyCommand='no-such-program %h %p'",
            "its program no-such-program is not on this computer",
            "ProxyJump=USER@JUMPHOST",
        ),
    ],
    ids=["refused", "unresolved", "quiet command", "missing program"],
)
def test_the_hop_that_failed_is_named_with_a_command_that_tries_it(
    tmp_path: Path, arguments: str, why: str, fix: str
) -> None:
    file = tmp_path / "hosts.yml"
    file.write_text(HOSTS.format(f'"{arguments}"'))
    done = run("status", file)
    assert done.returncode == 4
    said = " ".join(done.stderr.split())
    assert why in said
    assert fix in said
