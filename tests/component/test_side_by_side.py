"""Commands that run beside each other, as `make test` runs its suites."""

from __future__ import annotations

import shlex
import signal
import subprocess
import sys
from pathlib import Path

import pytest
from waiting import until

SCRIPT = Path(__file__).resolve().parents[1] / "side_by_side.py"


def argv(*commands: str) -> list[str]:
    return [sys.executable, str(SCRIPT), *(shlex.join(["sh", "-c", each]) for each in commands)]


def test_all_run_at_once_and_their_outputs_come_one_after_the_other(tmp_path: Path) -> None:
    # Each waits for the other one.
    meet = "touch {0}/{1}; echo {1} begins; until test -e {0}/{2}; do sleep 0.01; done; echo {1}"
    commands = [meet.format(tmp_path, *names) for names in (("one", "two"), ("two", "one"))]
    done = subprocess.run(argv(*commands), capture_output=True, text=True, check=True)
    assert done.stdout == "one begins\none\ntwo begins\ntwo\n"


@pytest.mark.parametrize(
    ("commands", "code"), [(("true", "exit 3"), 3), (("exit 4", "true", "exit 3"), 4)]
)
def test_one_that_fails_is_told_by_the_exit_code_and_ends_no_other(
    commands: tuple[str, ...], code: int, tmp_path: Path
) -> None:
    done = subprocess.run(argv(*commands, f"touch {tmp_path}/ended"), check=False)
    assert done.returncode == code
    assert (tmp_path / "ended").exists()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_lets_each_one_clear_up_once(number: signal.Signals, tmp_path: Path) -> None:
    clears = (
        "trap 'echo cleared >>{0}/{1}.cleared; exit 1' INT; touch {0}/{1}; "
        "while :; do sleep 0.05; done"
    )
    commands = [clears.format(tmp_path, name) for name in ("one", "two")]
    # Ctrl-C is ignored, as in the background of a script.
    argv_in_background = ["sh", "-c", "trap '' INT; exec \"$@\"", "sh", *argv(*commands)]
    with subprocess.Popen(argv_in_background) as process:
        assert until(lambda: all((tmp_path / name).exists() for name in ("one", "two")))
        process.send_signal(number)
        assert process.wait() == 130
    for name in ("one", "two"):
        assert (tmp_path / f"{name}.cleared").read_text() == "cleared\n"
