"""An engine that ends in order is served again; one that is stopped stays so."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from machines import make_lab
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from machines import Host

pytestmark = [pytest.mark.lab, pytest.mark.slow]

UNIT = "kimi-serve@0.service"
# An engine's start on a computer with much else to do.
START_S = 900.0


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    lab = make_lab(tmp_path_factory.mktemp("ends") / "inv", "10.93.87", nodes=["node1"])
    with lab.running():
        done = lab.hosts["node1"].apply()
        assert done.returncode == 0, done.stdout + done.stderr
        yield lab.hosts["node1"]


def shown(host: Host) -> dict[str, str]:
    names = ("MainPID", "ActiveState", "NRestarts", "Result")
    asked = " ".join(f"-p {name}" for name in names)
    lines = host.ssh(f"systemctl show {UNIT} {asked}").splitlines()
    return dict(line.split("=", 1) for line in lines)


def test_it_is_served_again_after_an_end_with_0(host: Host) -> None:
    before = shown(host)
    # vLLM's answer to SIGTERM is an end in order, as after the death of one of its workers.
    host.ssh(f"kill -TERM {before['MainPID']}")

    def again() -> bool:
        now = shown(host)
        return now["ActiveState"] == "active" and now["MainPID"] not in {"0", before["MainPID"]}

    assert until(again, START_S), shown(host)
    ended = host.ssh(f"journalctl -u {UNIT} -o cat --no-pager")
    assert f"{UNIT}: Deactivated successfully." in ended
    assert int(shown(host)["NRestarts"]) == int(before["NRestarts"]) + 1


def test_apply_restarts_it_however_often_it_was_started_before(host: Host, tmp_path: Path) -> None:
    # The third start of the three that systemd allows; the first was apply's, the second its own.
    host.ssh(f"systemctl restart {UNIT}", timeout=START_S)
    assert shown(host)["ActiveState"] == "active"
    wish = tmp_path / "wish.yml"
    wish.write_text("kimi_concurrency: 3\n")
    done = host.apply("-e", f"@{wish}")
    assert done.returncode == 0, done.stdout + done.stderr
    assert shown(host)["ActiveState"] == "active"
    assert "--max-num-seqs 3" in host.ssh(f"systemctl cat {UNIT}")


def test_a_stop_stays_a_stop(host: Host) -> None:
    host.ssh(f"systemctl stop {UNIT}", timeout=START_S)
    assert shown(host)["ActiveState"] == "inactive"
    host.ssh("sleep 20")
    assert shown(host)["ActiveState"] == "inactive"
