"""Run apt: list versions, simulate a transaction, install it.

Where the site has a mirror of the distribution, the machine's own sources may be unreachable: then
apt reads only that mirror and the driver's repository.
"""

from __future__ import annotations

import os
import re
import time
from typing import TYPE_CHECKING, NamedTuple

from kimi_prov.contract import paths, unit_names
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.system import process
from kimi_prov.on_host.system.files import read_text

if TYPE_CHECKING:
    from collections.abc import Sequence

SOURCE = "/etc/apt/sources.list.d/kimi-nvidia.sources"
_POLICY = "/usr/sbin/policy-rc.d"
# The comment distinguishes our file from an administrator's, where a power cut left it behind.
_NO_SERVICES = "#!/bin/sh\n# kimi-driver.service\nexit 101\n"
_INST = re.compile(r"^(Inst|Remv) (\S+)(?: \[(\S+)\])?(?: \((\S+) )?")
_TIMEOUT_S = 1800.0


class Step(NamedTuple):
    """One package of a transaction; `version` is None where it is removed."""

    name: str
    version: str | None


def parse_upstream(version: str) -> str:
    """Return `580.159.04` of `580.159.04-1` or `1:580.159.04-0ubuntu1`."""
    return re.sub(r"^\d+:|-[^-]*$", "", version)


def list_installed() -> dict[str, str]:
    """Return every installed package with its version."""
    done = process.run("dpkg-query", "-W", "-f", "${db:Status-Status} ${Package} ${Version}\n")
    rows = [line.split() for line in done.stdout.splitlines()]
    return {row[1]: row[2] for row in rows if len(row) == 3 and row[0] == "installed"}


def refresh() -> None:
    """Refresh the driver's package lists, and the distribution's as far as they answer."""
    only = ["-o", f"Dir::Etc::SourceList={SOURCE}", "-o", "Dir::Etc::SourceParts=-"]
    strict = ["-o", "APT::Get::List-Cleanup=0", "-o", "APT::Update::Error-Mode=any"]
    run_apt("apt-get", "update", *only, *strict)
    process.run(*_build_command("apt-get", "update"), timeout=_TIMEOUT_S)


def find_lists_folder() -> str:
    """Return the folder of the package lists that our calls read."""
    own = f"{paths.HOME}/apt-lists"
    return own if os.path.exists(paths.APT_CONFIG) else "/var/lib/apt/lists"


def list_versions(name: str, url: str = "") -> list[str]:
    """Return the versions of a package in the repository at `url`, or in any; the newest first."""
    done = process.run(*_build_command("apt-cache", "madison", name))
    rows = [[part.strip() for part in line.split("|")] for line in done.stdout.splitlines()]
    return [row[1] for row in rows if len(row) == 3 and row[2].startswith(url.rstrip("/"))]


def simulate(*words: str) -> list[Step]:
    """Return what `apt-get install` of these would do. Raises HostError where apt refuses."""
    return _parse_steps(run_apt("apt-get", "install", "--simulate", *ALLOWED, *words))


def _parse_steps(text: str) -> list[Step]:
    found = [_INST.match(line) for line in text.splitlines()]
    return [Step(m[2].partition(":")[0], m[4] if m[1] == "Inst" else None) for m in found if m]


# Exact versions are requested, so a downgrade or a change of a held package is intended.
ALLOWED = (
    "--yes",
    "--quiet",
    "--no-install-recommends",
    "--allow-downgrades",
    "--allow-change-held-packages",
    *("-o", "Dpkg::Options::=--force-confold"),
    *("-o", "DPkg::Lock::Timeout=300"),
)


def run_apt(*words: str, folder: str | None = None) -> str:
    """Run an apt command and return its output. Raises HostError."""
    here = os.getcwd()
    if folder:
        os.chdir(folder)
    try:
        done = process.run("env", *_ENVIRONMENT, *_build_command(*words), timeout=_TIMEOUT_S)
    finally:
        os.chdir(here)
    if done.returncode:
        raise HostError(find_reason(done.stderr or done.stdout))
    return done.stdout


_ENVIRONMENT = ("DEBIAN_FRONTEND=noninteractive", "NEEDRESTART_SUSPEND=1")


def _build_command(*words: str) -> list[str]:
    if not os.path.exists(paths.APT_CONFIG):
        return list(words)
    if not os.path.exists(SOURCE):
        return ["env", f"APT_CONFIG={paths.APT_CONFIG}", *words]
    # apt's own settings name no folder of sources: only ours is added.
    parts = f"{paths.DRIVER}/sources.d"
    os.makedirs(parts, exist_ok=True)
    link = f"{parts}/{os.path.basename(SOURCE)}"
    if not os.path.lexists(link):
        os.symlink(SOURCE, link)
    settings = ["-o", f"Dir::Etc::SourceParts={parts}"]
    return ["env", f"APT_CONFIG={paths.APT_CONFIG}", words[0], *settings, *words[1:]]


def find_reason(text: str) -> str:
    """Return dpkg's and apt's errors in one line; without warnings where there are errors.

    dpkg names the package in one line, and its fault in the next.
    """
    lines = [" ".join(line.split()) for line in text.splitlines() if line.strip()]
    pairs = zip(lines, [*lines[1:], ""])
    errors = [f"{line} {after}" for line, after in pairs if line.startswith("dpkg: error ")]
    errors += [line[3:] for line in lines if line.startswith("E: ")]
    return "; ".join(dict.fromkeys(errors or lines[-3:]))[:600] or "it gave no reason"


def run_transaction(*words: str) -> None:
    """Install in a transient unit: a cut connection leaves no half-installed packages.

    No service is started or stopped meanwhile: the old module still runs. Raises HostError.
    """
    text = _NO_SERVICES.replace("\n", "\\n")
    quiet = [] if read_text(_POLICY) not in ("", _NO_SERVICES) else [
        f"--property=ExecStartPre=/bin/sh -c 'printf \"{text}\" > {_POLICY}'",
        f"--property=ExecStartPre=/bin/chmod 0755 {_POLICY}",
        f"--property=ExecStopPost=/bin/rm -f {_POLICY}",
    ]  # fmt: skip
    install_in_unit(unit_names.DRIVER, *ALLOWED, *words, properties=quiet)


def install_in_unit(name: str, *words: str, properties: Sequence[str] = ()) -> None:
    """Run `apt-get install` in a transient unit of that name. Raises HostError with its reason."""
    settings = [f"--setenv={pair}" for pair in _ENVIRONMENT]
    started = time.time()
    unit = f"--unit={name}"
    done = process.run(
        *("systemd-run", "--quiet", "--wait", "--collect", unit, *properties, *settings),
        *_build_command("apt-get", "install", *words),
        timeout=_TIMEOUT_S,
    )
    if done.returncode:
        since = f"--since=@{int(started)}"
        journal = process.run("journalctl", "--no-pager", "--output=cat", unit, since)
        raise HostError(find_reason(journal.stdout if not done.stderr else done.stderr))
