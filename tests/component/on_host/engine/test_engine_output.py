"""The end of what an engine wrote, and the cause that it shows."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

KNOWN = (
    "ValueError: No available memory for the cache blocks. Try increasing `share` when starting."
)
COPY = f"""
import subprocess, sys
from kimi_prov.on_host.engine import output
line = [sys.executable, "-c", "import sys; print('loading'); sys.exit({KNOWN!r})"]
child = subprocess.Popen(line, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
copied = output.OutputCopy(child)
child.wait()
print("\\n".join(output.format_cause(copied.read_end())))
"""
OWN = """
import sys
from kimi_prov.on_host.engine import output
print("\\n".join(["ended", *output.format_cause(output.read_own_output("again"))]), flush=True)
"""


def test_what_an_engine_writes_is_passed_on_and_its_end_is_explained() -> None:
    done = subprocess.run(
        [sys.executable, "-c", COPY], capture_output=True, text=True, check=True, timeout=60
    )
    lines = done.stdout.splitlines()
    assert lines[:2] == ["loading", KNOWN]
    assert lines[2].startswith("cause: ")
    assert lines[3] == f"  seen: {KNOWN}"
    assert lines[5].startswith("  fix:  ")


def run_with_log(log: Path) -> list[str]:
    with log.open("a") as stream:
        subprocess.run([sys.executable, "-c", OWN], stdout=stream, check=True, timeout=60)
    return log.read_text().splitlines()


def test_a_job_explains_the_lines_of_its_last_start_in_its_own_file(tmp_path: Path) -> None:
    log = tmp_path / "serve.1.out"
    log.write_text(f"loading\n{KNOWN}\n")
    assert f"  seen: {KNOWN}" in run_with_log(log)
    # The start after it ends by something that nobody knows.
    with log.open("a") as stream:
        stream.write("again, 1 of 3\nloading\nValueError: the moon is too far away\n")
    assert run_with_log(log)[-1] == "ended"


def test_without_a_file_of_its_own_nothing_is_explained() -> None:
    done = subprocess.run(
        [sys.executable, "-c", OWN], capture_output=True, text=True, check=True, timeout=60
    )
    assert done.stdout == "ended\n"
