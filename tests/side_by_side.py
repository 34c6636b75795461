"""Runs commands beside each other: what waits more than it computes leaves the time to the others.

    python tests/side_by_side.py COMMAND...

A command is words as in a shell, and is run without one. The output of the first comes at once,
that of each other one after the end of all. The exit code is the first that is not zero. Ctrl-C or
SIGTERM ends each command as Ctrl-C does and waits until it has cleared up: tests remove hosts.
"""

from __future__ import annotations

import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import FrameType

INTERRUPTED = 130


def run_side_by_side(commands: Sequence[str]) -> int:
    """Run the commands to their ends; return the first exit code that is not zero."""
    running: list[subprocess.Popen[bytes]] = []
    interrupted = False

    def interrupt(_number: int, _frame: FrameType | None) -> None:
        nonlocal interrupted
        interrupted = True
        for process in running:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)

    # Before anything starts: a command would inherit that a shell's background ignores Ctrl-C.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, interrupt)
    with ExitStack() as stack:
        later = [stack.enter_context(tempfile.TemporaryFile()) for _ in commands[1:]]
        for command, output in zip(commands, [None, *later], strict=True):
            if not interrupted:
                # In a group of its own, or a terminal's Ctrl-C would come twice.
                argv, nothing = shlex.split(command), subprocess.DEVNULL
                running.append(
                    subprocess.Popen(
                        argv, stdin=nothing, stdout=output, stderr=output, process_group=0
                    )
                )
        codes = [process.wait() for process in running]
        for output in later:
            output.seek(0)
            shutil.copyfileobj(output, sys.stdout.buffer)
        sys.stdout.flush()
    return INTERRUPTED if interrupted else next(filter(None, codes), 0)


if __name__ == "__main__":
    sys.exit(run_side_by_side(sys.argv[1:]))
