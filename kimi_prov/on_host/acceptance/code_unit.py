"""Runs a program that a model wrote in a transient unit without access; its output is untrusted.

The unit has a user that exists only as long as it runs, no network, a read-only system without our
files, and limits on memory, tasks, processor, output and time (`protection.build_code_options`).

Decides: what code that a model wrote may do (the unit).
"""

from __future__ import annotations

import os
import select
import subprocess
import tempfile
import time
from typing import Any

from kimi_prov.contract import clean_text, protection, unit_names
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.system import sandbox

LIMIT_S = 20.0
OUTPUT_BYTES = 64 << 10
# Isolated, without the site's modules, and the program from standard input.
_PYTHON = ("/usr/bin/python3", "-I", "-S", "-B", "-")
_SYSTEMD = "/run/systemd/system"
# Seconds for starting and ending the unit, beside the program's own time.
_GRACE_S = 15.0


def run(source: str, limit_s: float = LIMIT_S) -> dict[str, Any]:
    """Return a program's output, cut and clean, as `out`; `ended` says why it did not end well.

    `reason` is returned instead where no such unit can be started.
    """
    if not os.path.isdir(_SYSTEMD):
        return {"reason": "systemd does not run here"}
    sandbox.end(unit_names.CODE)
    with tempfile.TemporaryFile() as given:
        given.write(source.encode("utf-8", "replace"))
        given.flush()
        try:
            # A pipe, which can only be read: a program that may write to a file could fill its file
            # system, and no limit of the unit prevents that.
            with (
                open(f"/proc/self/fd/{given.fileno()}", "rb") as readable,
                sandbox.run_transient(
                    unit_names.CODE,
                    protection.build_code_options(limit_s),
                    _PYTHON,
                    stdin=readable,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                ) as running,
            ):
                output, ended = _watch(running, limit_s)
        except HostError as error:
            return {"reason": error.line}
    return {"out": clean_text.clean_block(output.decode(errors="replace")), "ended": ended}


def _watch(running: subprocess.Popen[Any], limit_s: float) -> tuple[bytes, str]:
    """Read until the program ends, writes too much or takes too long; then the unit is ended."""
    descriptor = running.stdout.fileno() if running.stdout else -1
    started = time.monotonic()
    until = started + limit_s + _GRACE_S
    late = f"ended because it ran longer than {limit_s:.0f} s"
    parts: list[bytes] = []
    size = 0
    while True:
        left = until - time.monotonic()
        if left <= 0 or not select.select([descriptor], [], [], left)[0]:
            return b"".join(parts), late
        data = os.read(descriptor, 1 << 16)
        if not data:
            break
        parts.append(data[: OUTPUT_BYTES - size])
        size += len(data)
        if size > OUTPUT_BYTES:
            return b"".join(parts), f"ended because it wrote more than {OUTPUT_BYTES} bytes"
    try:
        status = running.wait(max(1.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        return b"".join(parts), late
    # systemd ends it at its limit, and reports only that it failed.
    if status and time.monotonic() - started >= limit_s:
        return b"".join(parts), late
    return b"".join(parts), f"exit status {status}" if status else ""
