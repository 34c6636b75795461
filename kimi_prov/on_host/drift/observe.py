"""Reads what the record of an apply does not hold: systemd's view of units, processes, logs."""

from __future__ import annotations

import contextlib
import gzip
import os
import re
import time
from pathlib import Path
from typing import (
    TYPE_CHECKING,
    Any,
)

from kimi_prov.contract import gateways, unit_comparison, unit_names
from kimi_prov.contract import paths as layout
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.drift import causes
from kimi_prov.on_host.endpoint import firewall, haproxy, tls
from kimi_prov.on_host.keys import key_map
from kimi_prov.on_host.proxy import converge
from kimi_prov.on_host.system import started
from kimi_prov.on_host.system import units as systemd
from kimi_prov.on_host.system.files import read_text
from kimi_prov.on_host.system.process import run

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kimi_prov.contract.documents.plan import Plan
    from kimi_prov.contract.paths import Paths

_PROPERTIES = (
    "LoadState", "ActiveState", "UnitFileState", "FragmentPath", "DropInPaths", "MainPID",
    "ControlGroup", "NeedDaemonReload", "StateChangeTimestampMonotonic",
    "ActiveEnterTimestampMonotonic", "Job",
)  # fmt: skip
# Folders of a unit's drop-ins, the administrator's first.
_UNIT_FOLDERS = (
    "/etc/systemd/system", "/etc/systemd/system.control", "/run/systemd/system",
    "/run/systemd/system.control", "/usr/local/lib/systemd/system",
)  # fmt: skip
_SYSCTL_FILES = ("etc/sysctl.d/*.conf", "run/sysctl.d/*.conf", "usr/local/lib/sysctl.d/*.conf",
                 "usr/lib/sysctl.d/*.conf", "etc/sysctl.conf")  # fmt: skip
_LOG_BYTES = 8 << 20
_MAX_LINES = 20000
_INODE = re.compile(r"socket:\[(\d+)\]")


def read_units(names: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Return the state of units by name, in the form that `compare.compare_units` takes.

    Raises HostError where systemd does not answer; a missing unit is no such case.
    """
    names = sorted(names)
    if not names:
        return {}
    done = run(*systemd.build_show_command(names, _PROPERTIES))
    if done.returncode != 0:
        raise HostError(f"systemctl show: {done.stderr.strip()[:200] or done.returncode}")
    rows = systemd.parse_properties(done.stdout)
    return {name: _build_unit(name, rows.get(name, {})) for name in names}


def _build_unit(name: str, row: Mapping[str, str]) -> dict[str, Any]:
    masks = [f"{folder}/{name}" for folder in _UNIT_FOLDERS if _is_mask(f"{folder}/{name}")]
    return {
        "load": row.get("LoadState", ""),
        "enabled": row.get("UnitFileState", ""),
        "state": row.get("ActiveState", "") if row.get("LoadState") != "not-found" else "",
        "file": row.get("FragmentPath", ""),
        "drop_ins": row.get("DropInPaths", "").split(),
        "extra": list_drop_ins(name),
        "mask": masks[0] if masks else None,
        "pid": int(row.get("MainPID") or 0),
        # The number of its job; 0 without one.
        "job": int(row.get("Job") or 0),
        "cgroup": row.get("ControlGroup", ""),
        "since": _parse_moment(row.get("StateChangeTimestampMonotonic")),
        "started": _parse_moment(row.get("ActiveEnterTimestampMonotonic")),
    }


def _is_mask(path: str) -> bool:
    with contextlib.suppress(OSError):
        return os.readlink(path) == "/dev/null"
    return False


def _parse_moment(monotonic_us: str | None) -> int | None:
    """Return a time since the boot in seconds since 1970; None for no time."""
    text = monotonic_us or ""
    if not text.isdigit() or int(text) in (0, 2**64 - 1):
        return None
    past = time.clock_gettime(time.CLOCK_MONOTONIC) - int(text) / 1e6
    return int(time.time() - past)


def list_drop_ins(name: str, root: str = "/") -> list[str]:
    """List the drop-ins on the disk for a unit, its template and the names before a dash.

    systemd may not have read them yet.
    """
    stem, _, kind = name.rpartition(".")
    folders = [f"{name}.d"]
    if "@" in stem:
        folders.append(f"{stem.partition('@')[0]}@.{kind}.d")
    parts = stem.partition("@")[0].split("-")
    folders += [f"{'-'.join(parts[:count])}-.{kind}.d" for count in range(len(parts) - 1, 0, -1)]
    base = Path(root)
    return [
        "/" + str(path.relative_to(base))
        for place in _UNIT_FOLDERS
        for folder in folders
        for path in sorted((base / place[1:] / folder).glob("*.conf"))
    ]


def build_start_command(found: Mapping[str, Any]) -> list[str]:
    """Return the command line with which systemd would start a unit from the present files."""
    words: list[str] = []
    for name in dict.fromkeys([found["file"], *found["drop_ins"], *found["extra"]]):
        for key, value in unit_comparison.parse_assignments(read_text(name)) if name else ():
            if key == "ExecStart":
                split = unit_comparison.split_value(value)
                words = [word.replace("$$", "$") for word in split]
    return words


def list_processes(
    paths: Paths, applied: Mapping[str, Any], found: Mapping[str, Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return each running engine: its command line, that of its unit, and both config digests."""
    places = started.UnitPaths(str(paths.root))
    rows = []
    for instance in applied.get("instances") or ():
        unit = instance["unit"]
        state = found.get(unit) or {}
        pid = state.get("pid")
        if pid:
            line = (places.proc / str(pid) / "cmdline").read_bytes().split(b"\0")[:-1]
            rows.append(
                {
                    "unit": unit,
                    "runs": [word.decode(errors="replace") for word in line],
                    "would": build_start_command(state),
                    "stamp": started.read_running_digest(str(pid), places),
                    "applied_stamp": instance["stamp"],
                    "started": state.get("started"),
                }
            )
    return rows


def list_listeners(plan: Plan, found: Mapping[str, Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Return processes on a port of an engine or the proxy that are not in its unit."""
    ports = {
        row["port"]: unit_names.get_engine_unit(row)
        for row in plan.get("instances") or ()
        if row["port"]
    }
    if (plan.get("proxy") or {}).get("backends") or gateways.is_gateway(plan):
        ports[plan["proxy"]["port"]] = unit_names.PROXY
    metrics = plan.get("metrics")
    if metrics:
        ports[metrics["port"]] = unit_names.PROXY
    inodes = {inode: port for port, inode in _list_listening(ports)}
    return [
        {"port": port, "unit": ports[port], "pid": pid, "name": name}
        for pid, name, inode in _list_holders(inodes)
        for port in [inodes[inode]]
        if not _is_in_cgroup(pid, (found.get(ports[port]) or {}).get("cgroup", ""))
    ]


def _list_listening(ports: Mapping[int, str]) -> Iterator[tuple[int, str]]:
    for name in ("/proc/net/tcp", "/proc/net/tcp6"):
        for line in read_text(name).splitlines()[1:]:
            words = line.split()
            port = int(words[1].rpartition(":")[2], 16)
            if words[3] == "0A" and port in ports:
                yield port, words[9]


def _list_holders(inodes: Mapping[str, int]) -> Iterator[tuple[int, str, str]]:
    """Return each process that holds one of the sockets, with its name."""
    for folder in Path("/proc").glob("[0-9]*/fd"):
        with contextlib.suppress(OSError):  # It has ended.
            held = {os.readlink(str(place)) for place in folder.iterdir()}
            for match in filter(None, map(_INODE.fullmatch, held)):
                if match[1] in inodes:
                    pid = folder.parent.name
                    yield int(pid), read_text(folder.parent / "comm").strip(), match[1]


def _is_in_cgroup(pid: int, cgroup: str) -> bool:
    """Return whether a process is in a unit's group; systemd itself may hold a socket for it."""
    text = read_text(f"/proc/{pid}/cgroup").strip()
    return pid == 1 or (bool(cgroup) and any(cgroup in line for line in text.splitlines()))


def read_proxy_state(paths: Paths) -> dict[str, Any]:
    """Return what the running proxy has loaded besides its files' state; raises HostError."""
    try:
        loaded = haproxy.read_description(paths.socket)
        api = converge.serves_api(paths)
        names = haproxy.read_map(paths.socket, str(paths.key_map)) if api else {}
    except OSError as error:
        raise HostError(f"{unit_names.PROXY} does not answer on its socket: {error}") from None
    # A rank's keys from before it joined a group are read by no proxy.
    there = key_map.parse_map(read_text(paths.key_map)) if api else {}
    return {
        "loaded": loaded,
        "wanted": converge.compute_digest(paths),
        "only_loaded": sorted(name for value, name in names.items() if there.get(name) != value),
        "only_in_file": sorted(name for name, value in there.items() if names.get(value) != name),
    }


def read_proxy_fingerprint(paths: Paths) -> str:
    """Return the fingerprint of the certificate in the file that the proxy loads."""
    return tls.compute_fingerprint(read_text(paths.tls_pem))


def list_missing_rules(rules: Sequence[Mapping[str, str]]) -> list[dict[str, str]]:
    """Return our rules that ufw or firewalld do not have."""
    return firewall.list_missing([dict(rule) for rule in rules])


def can_list_tables() -> bool:
    """Return whether nft answers at all."""
    return run("nft", "list", "tables").returncode == 0


def list_sysctl_files(name: str, root: str = "/") -> list[str]:
    """List the files, other than ours, that set a kernel setting at boot."""
    pattern = re.compile(
        rf"^\s*-?\s*{re.escape(name).replace(chr(92) + '.', '[./]')}\s*=", re.MULTILINE
    )
    base = Path(root)
    found = [path for glob in _SYSCTL_FILES for path in sorted(base.glob(glob))]
    told = ["/" + str(path.relative_to(base)) for path in found if pattern.search(read_text(path))]
    return [path for path in told if path != layout.SYSCTL]


def read_logs(paths: Paths, since: int) -> causes.Logs:
    """Read the logs of dpkg and apt, and manual actions in the journal, `since` an apply."""
    packages = "\n".join(_read_rotated(paths.locate("/var/log/dpkg.log"), since))
    history = "\n\n".join(_read_rotated(paths.locate("/var/log/apt/history.log"), since))
    told = run(
        *("journalctl", "--quiet", "--no-pager", "--output=json", f"--lines={_MAX_LINES}"),
        "--output-fields=MESSAGE,SYSLOG_IDENTIFIER",
        f"--since=@{max(0, since)}",
        *(f"--identifier={name}" for name in causes.IDENTIFIERS),
    )
    found = causes.parse_journal(told.stdout)
    return causes.Logs(
        causes.parse_dpkg_log(packages),
        causes.parse_apt_log(history),
        found.commands,
        found.sessions,
        found.accounts,
    )


def _read_rotated(path: Path, since: int) -> list[str]:
    """Read a log and its parts that were rotated since, oldest first."""
    texts: list[str] = []
    for file in (
        path,
        *(path.with_name(f"{path.name}.{n}{gz}") for n in range(1, 13) for gz in ("", ".gz")),
    ):
        try:
            if file.stat().st_mtime < since:
                continue
            with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
                texts.insert(0, stream.read(_LOG_BYTES).decode(errors="replace"))
        except (OSError, EOFError):
            continue
    return texts


def find_change_time(path: str) -> int | None:
    """Return when a file or link, its owner or its mode last changed; None without a file.

    A file's own times may be set by anybody; the kernel alone sets this one.
    """
    try:
        return int(os.lstat(path).st_ctime)
    except OSError:
        return None
