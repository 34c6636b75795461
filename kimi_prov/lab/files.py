"""Files that the inventory wants on a lab host from the start (`lab_files`)."""

from __future__ import annotations

import hashlib
import shlex
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from kimi_prov.errors import ExitCode, UserError
from kimi_prov.lab.shell import tool_environment
from kimi_prov.lab.state import cache_home

if TYPE_CHECKING:
    from kimi_prov.lab.inventory import Lab, LabFile, LabHost
    from kimi_prov.lab.shell import Say
    from kimi_prov.lab.state import HostState

_MODEL = "model:"
_TINY = "kimi-k2-lab"


def resolve(lab: Lab, host: LabHost, file: LabFile) -> Path:
    """Path on the control machine of what `file` names; the tiny model is made when first asked for.

    Paths are relative to the inventory. UserError (exit 2) where there is nothing.
    """
    if file.src.startswith(_MODEL):
        if file.src != _MODEL + _TINY:
            raise UserError(
                f"{lab.inventory}: host {host.name}: lab_files: there is no {file.src!r}",
                fix=f"the lab makes one model: {_MODEL}{_TINY}",
            )
        from kimi_prov.lab.model import make  # noqa: PLC0415 - heavy, and seldom needed

        return make(cache_home() / "models" / _TINY)
    source = lab.inventory / file.src
    if not source.exists():
        raise UserError(
            f"{lab.inventory}: host {host.name}: lab_files: {source} does not exist",
            fix="correct src: a path relative to the inventory, or model:kimi-k2-lab",
        )
    return source


def fingerprint(source: Path) -> str:
    """Digest of the names, sizes and times below `source`: changes when a copy is due."""
    entries = sorted(source.rglob("*")) if source.is_dir() else [source]
    lines = [
        f"{entry.relative_to(source)} {entry.stat().st_size} {entry.stat().st_mtime_ns}"
        for entry in entries
        if entry.is_file()
    ]
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


def copy_all(lab: Lab, host: LabHost, state: HostState, ssh: list[str], report: Say) -> None:
    """Copy the host's files over `ssh`, those that have not changed since the last copy left out."""
    for file in host.files:
        source = resolve(lab, host, file)
        digest = fingerprint(source)
        mark = state.folder / f"copied-{hashlib.sha256(file.dest.encode()).hexdigest()[:12]}"
        if mark.exists() and mark.read_text() == digest:
            continue
        report(f"{host.name}: copying {file.src} to {file.dest}")
        _copy(source, file.dest, ssh, host.name)
        mark.write_text(digest)


def _copy(source: Path, dest: str, ssh: list[str], host_name: str) -> None:
    """Send a folder or a file through one tar, readable for everyone and owned by root."""
    flags = ["--owner=0", "--group=0", "--mode=u+rwX,go+rX", "-cf", "-"]
    target = shlex.quote(dest)
    if source.is_dir():
        pack = ["tar", *flags, "-C", str(source), "."]
        unpack = f"mkdir -p {target} && tar -xf - -C {target}"
    else:
        pack = ["tar", *flags, "-C", str(source.parent), source.name]
        folder, packed = shlex.quote(str(Path(dest).parent)), shlex.quote(source.name)
        unpack = (
            f"mkdir -p {folder} && t=$(mktemp -d) && tar -xf - -C $t && "
            f"mv -f $t/{packed} {target} && rmdir $t"
        )
    environment = tool_environment()
    with subprocess.Popen(pack, stdout=subprocess.PIPE, env=environment) as packing:
        done = subprocess.run(
            [*ssh, unpack], check=False, stdin=packing.stdout, capture_output=True, env=environment
        )
    if done.returncode != 0 or packing.returncode != 0:
        raise UserError(
            f"lab host {host_name}: copying {source} to {dest} failed: "
            f"{done.stderr.decode(errors='replace').strip()}",
            fix=f"see whether the host has room: kimi-prov lab ssh INVENTORY {host_name} df -h",
            exit_code=ExitCode.FAILED,
        )
