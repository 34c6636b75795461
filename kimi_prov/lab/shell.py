"""Run the system's own tools; each failure names its command."""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import textwrap
from collections.abc import Callable
from typing import TYPE_CHECKING

from kimi_prov.contract import clean_text
from kimi_prov.errors import ExitCode, UserError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

Say = Callable[[str], None]


def print_progress(line: str) -> None:
    """Write one line of progress to standard error."""
    sys.stderr.write(f"lab: {clean_text.clean_row(line)}\n")
    sys.stderr.flush()


def make_tool_environment() -> dict[str, str]:
    """Environment for system tools: the sbin folders are on PATH for ordinary users too."""
    path = os.environ.get("PATH", os.defpath)
    missing = [d for d in ("/usr/local/sbin", "/usr/sbin", "/sbin") if d not in path.split(":")]
    return {**os.environ, "PATH": ":".join([path, *missing]), "LC_ALL": "C.UTF-8"}


def find_tool(tool: str) -> str | None:
    """Path of `tool` on the widened PATH, or None."""
    return shutil.which(tool, path=make_tool_environment()["PATH"])


def run_tool(
    command: Sequence[str | Path],
    *,
    what: str,
    check: bool = True,
    timeout: float = 60,
    text: str = "",
    environment: dict[str, str] | None = None,
) -> subprocess.CompletedProcess[str]:
    """Run `command` and return its output; `text` goes to its standard input.

    Raises UserError (exit 1) that says `what` failed, with the command and the end of its output.
    """
    argv = [str(part) for part in command]
    shown = textwrap.shorten(shlex.join(argv), 160)
    try:
        done = _run_group(argv, text, timeout, {**make_tool_environment(), **(environment or {})})
    except FileNotFoundError as error:
        raise UserError(
            f"{what}: the command {argv[0]} is not installed on this machine",
            fix="apt-get install systemd-container mmdebstrap iproute2 nftables openssh-client "
            "qemu-system-x86 qemu-utils",
        ) from error
    except subprocess.TimeoutExpired as error:
        raise UserError(
            f"{what}: did not end within {timeout:g} s: {shown}", exit_code=ExitCode.FAILED
        ) from error
    if check and done.returncode != 0:
        tail = "\n".join((done.stderr or done.stdout).strip().splitlines()[-8:])
        raise UserError(
            f"{what}: {shown} ended with {done.returncode}: {tail}",
            exit_code=ExitCode.FAILED,
        )
    return done


def _run_group(
    argv: list[str], text: str, timeout: float, environment: dict[str, str]
) -> subprocess.CompletedProcess[str]:
    """Run to the end; an interruption or the time limit ends all processes of the command."""
    with subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
        env=environment,
        start_new_session=True,
    ) as process:
        try:
            stdout, stderr = process.communicate(text, timeout=timeout)
        except BaseException:
            _end_group(process)
            raise
    return subprocess.CompletedProcess(argv, process.returncode, stdout, stderr)


def _end_group(process: subprocess.Popen[str]) -> None:
    """Send SIGTERM to the group, and SIGKILL after five seconds."""
    for ending in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, ending)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5)
