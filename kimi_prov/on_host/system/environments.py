"""Whether a virtual environment is whole: its mark alone does not say so.

Checked are the interpreter (it runs, with its own standard library, in the version that the
environment was made for), each package's folder, and the size of each of its programs, compiled
libraries and `__init__.py`, by its RECORD. Other files are not: reading all of them takes minutes.

Decides: when an installed environment is made again.
Applied by: roles/engine, roles/web_ui, roles/weights, roles/watchdog.
Held by: tests/component/on_host/system/test_environments.py,
  tests/unit/on_host/probe/test_probe_files.py, tests/lab/test_engine.py.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING

from kimi_prov.on_host.system import process

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kimi_prov.on_host.system.machine import Machine

_TIMEOUT_S = 10.0
# `-S`: no code of the environment runs, only the interpreter's own.
_ASK = ("-I", "-S", "-c", "import sys, json; print('%d.%d' % sys.version_info[:2])")
_VERSION = re.compile(r"^version(?:_info)? = (\d+\.\d+)", re.MULTILINE)


def find_fault(machine: Machine, folder: str) -> str | None:
    """Return why an environment does not work; None where it is whole."""
    text = machine.read(f"{folder}/pyvenv.cfg")
    if text is None:
        return "it has no pyvenv.cfg"
    python = f"{folder}/bin/python"
    version = ask_version(machine, python)
    if version is None:
        return f"{python} does not run"
    made = _VERSION.search(text)
    if made and version and version != made[1]:
        return f"{python} is Python {version}, and it was made for {made[1]}"
    packages = machine.glob(f"{folder}/lib/python*/site-packages")
    if not packages:
        return "it has no packages"
    fault = next((row for top in packages for row in list_faults(machine.path(top))), None)
    return fault and f"{fault} of its packages"


def ask_version(machine: Machine, python: str) -> str | None:
    """Return an interpreter's version as `3.11`; None where it does not run.

    Empty where that is unknown: below another root than `/` it is not run, and on a busy machine it
    may not answer in time, which must not remove an environment.
    """
    path = machine.path(python)
    if not os.access(path, os.X_OK):
        return None
    if not machine.live:
        return ""
    done = process.run(path, *_ASK, timeout=_TIMEOUT_S, env={"PATH": "/usr/bin:/bin"})
    if done.returncode == process.TIMED_OUT or done.returncode < 0:
        return ""
    return done.stdout.strip() if done.returncode == 0 else None


def list_faults(packages: str) -> Iterator[str]:
    """Yield what is missing or has another size in a folder of packages, by their RECORD files.

    Several packages may list one file, with the size of each: the last that was installed counts.
    """
    tops: set[str] = set()
    sizes: dict[str, set[str]] = {}
    for record in sorted(Path(packages).glob("*.dist-info/RECORD")):
        try:
            lines = record.read_text(encoding="utf-8", errors="replace").splitlines()
        except PermissionError:
            continue
        except OSError as error:
            yield f"{record} cannot be read: {error.strerror}"
            continue
        if not lines:
            yield f"{record} is empty"
        for line in lines:
            tops.add(line.lstrip('"').partition("/")[0].partition(",")[0])
            if line.startswith("../") or "/__init__.py" in line or ".so" in line:
                name, _, size = [*line.rsplit(",", 2), "", ""][:3]
                sizes.setdefault(name.strip('"'), set()).add(size)
    for name in sorted(tops):
        if not os.path.lexists(os.path.join(packages, name)):
            yield f"{packages}/{name} is missing"
    for name, listed in sizes.items():
        yield from _compare(os.path.normpath(os.path.join(packages, name)), listed)


def _compare(path: str, listed: set[str]) -> Iterator[str]:
    try:
        size = os.stat(path).st_size
    except OSError:
        yield f"{path} is missing"
        return
    if all(listed) and str(size) not in listed:
        yield f"{path} has {size} bytes instead of {' or '.join(sorted(listed))}"
