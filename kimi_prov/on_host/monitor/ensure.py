"""`monitor note|ensure|remove [--check] < SETTINGS`: Prometheus and Alertmanager of a host.

The running services are queried, whatever a play has just changed: a run that was killed between a
file and its reload is completed by the next. `note` runs before the packages are installed: it
records the state from before.

Decides: a host that monitors: what it reads of which host, and its limits (the limits).
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import shutil
import sys
import time
import urllib.parse
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import clean_text, unit_names
from kimi_prov.contract.errors import HostError, describe_error
from kimi_prov.contract.paths import (
    MONITOR_BEFORE,
    MONITOR_ETC,
    MONITOR_HOME,
    MONITOR_TABLE,
    MONITOR_USER,
    Paths,
)
from kimi_prov.on_host.monitor import config
from kimi_prov.on_host.monitor.status import read_page
from kimi_prov.on_host.system import kept_state, units
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.files import (
    find_owner_ids,
    make_directory,
    read_json,
    read_text,
    remove,
    write_atomic,
)
from kimi_prov.on_host.system.process import run

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kimi_prov.contract.documents.answers import MonitorAnswer, MonitorStateAnswer

# Package, the distribution's unit of it, and ours.
PARTS = (
    ("prometheus", unit_names.SITE_PROMETHEUS, unit_names.PROMETHEUS),
    ("prometheus-alertmanager", unit_names.SITE_ALERTMANAGER, unit_names.ALERTMANAGER),
)
NFTABLES = "nftables"
_RELOADED = {
    unit_names.PROMETHEUS: "prometheus_config_last_reload_success_timestamp_seconds",
    unit_names.ALERTMANAGER: "alertmanager_config_last_reload_success_timestamp_seconds",
}
_SHOWN = ("ActiveState", "ActiveEnterTimestampMonotonic")
_READY_S = 120.0
_ROOTS = "ca-certificates"
_ROOTS_FILE = "/etc/ssl/certs/ca-certificates.crt"


def is_installed(package: str) -> bool:
    """Return whether dpkg has a package."""
    done = run("dpkg-query", "--show", "--showformat=${db:Status-Status}", package)
    return done.returncode == 0 and done.stdout == "installed"


def record_before(paths: Paths, *, check: bool = False) -> MonitorStateAnswer:
    """Record the state from before; return `missing` packages, and whether the user is missing."""
    record = paths.locate(MONITOR_BEFORE)
    wanted = [*(package for package, _, _ in PARTS), NFTABLES, _ROOTS]
    missing = [package for package in wanted if not is_installed(package)]
    user = not _is_user(MONITOR_USER)
    new = not record.exists()
    if new and not check:
        # The unit of a package that is not installed yet comes because of us.
        kept = {
            "user_existed": not user,
            "services_ours": [unit for package, unit, _ in PARTS if package in missing],
        }
        make_directory(paths.monitor_home, 0o755)
        write_atomic(record, json.dumps(kept, indent=1) + "\n", 0o600)
    return {"changed": new, "missing": missing, "user_missing": user}


def _is_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def ensure(paths: Paths, wanted: Mapping[str, Any], *, check: bool = False) -> MonitorAnswer:
    """Converge files, units and services to `wanted`.

    These are `settings`, `receivers`, `rules` and `consoles` (name to text), `units` (name to text)
    and `hosts`: name to what is scraped there, or null where this run did not reach it and the
    known settings stay. Returns what changed, and `unknown`: hosts that were never reached.
    """
    work = _Work(paths, check=check)
    work.folders()
    hosts, unknown = work.hosts(wanted["hosts"])
    for kind in ("rules", "consoles"):
        work.folder(paths.locate(f"{MONITOR_ETC}/{kind}"), wanted[kind])
    work.file(
        paths.monitor_etc / "prometheus.yml",
        config.build_prometheus_config(wanted["settings"], hosts),
        check=("promtool", "check", "config"),
    )
    work.file(
        paths.monitor_etc / "alertmanager.yml",
        config.build_alertmanager_config(wanted["receivers"]),
        mode=0o600,
        check=("amtool", "check-config"),
    )
    work.file(paths.monitor_etc / "settings.json", json.dumps(wanted["settings"]) + "\n")
    for name, text in wanted["units"].items():
        work.unit(name, text)
    work.distribution()
    work.firewall(wanted["settings"])
    work.run(wanted["settings"])
    return {"changed": bool(work.did), "did": work.did, "unknown": unknown}


class _Work:
    """One run; `did` lists what it changed, or would change."""

    def __init__(self, paths: Paths, *, check: bool) -> None:
        self.paths = paths
        self.check = check
        self.did: list[str] = []
        self.newest = 0.0

    def folders(self) -> None:
        """Make the folders; other users may not read a host's metrics and alerts."""
        etc, home = self.paths.monitor_etc, self.paths.monitor_home
        wanted = [(etc, 0o750, MONITOR_USER), (home, 0o755, "root")]
        wanted += [(etc / name, 0o750, MONITOR_USER) for name in ("hosts", "rules", "consoles")]
        for path, mode, group in wanted:
            if make_directory(path, mode, group, check=self.check):
                self.did.append(str(path))
        for name in ("prometheus", "alertmanager"):
            path = home / name
            if not path.is_dir():
                self.did.append(str(path))
                if not self.check:
                    path.mkdir(mode=0o700)
                    os.chown(str(path), *find_owner_ids(MONITOR_USER, MONITOR_USER))

    def file(
        self, path: Path, text: str, *, mode: int = 0o640, check: tuple[str, ...] = ()
    ) -> None:
        """Write this text to a file; a file of mode 0600 belongs to the user itself.

        `check`: a command that reads the new file before it replaces the old one. No secret is
        printed: the file's contents are removed from the command's message.
        """
        if read_text(path) != text or self._mode_differs(path, mode):
            self.did.append(str(path))
            if not self.check:
                beside = path.with_name(f"new-{path.name}") if check else path
                self._write(beside, text, mode)
                if check:
                    _require_valid(check, beside, path)
                    os.replace(str(beside), str(path))
        if path.exists():
            self.newest = max(self.newest, path.stat().st_mtime)

    def _mode_differs(self, path: Path, mode: int) -> bool:
        return not path.exists() or path.stat().st_mode & 0o7777 != mode

    def _write(self, path: Path, text: str, mode: int) -> None:
        group = MONITOR_USER
        write_atomic(path, text, mode, group)
        if mode == 0o600:
            os.chown(str(path), *find_owner_ids(MONITOR_USER, group))

    def folder(self, folder: Path, wanted: Mapping[str, str]) -> None:
        """Make a folder hold exactly these files."""
        there = [path for path in folder.iterdir() if path.is_file()] if folder.is_dir() else []
        for path in there:
            if path.name not in wanted:
                self._drop(path)
        for name, text in sorted(wanted.items()):
            self.file(folder / name, text)

    def _drop(self, path: Path) -> None:
        self.did.append(f"-{path}")
        # The loaded configuration still has it.
        self.newest = time.time()
        if not self.check:
            remove(str(path))

    def hosts(
        self, wanted: Mapping[str, Mapping[str, Any] | None]
    ) -> tuple[dict[str, dict[str, Any]], list[str]]:
        """Store what is scraped of each host; drop hosts that have left the inventory."""
        folder = self.paths.locate(config.HOSTS)
        found: dict[str, dict[str, Any]] = {}
        unknown = []
        roots = read_text(self.paths.locate(_ROOTS_FILE))
        for name, host in sorted(wanted.items()):
            file = urllib.parse.quote(name, safe="")
            if host is None:
                kept = read_json(folder / f"{file}.json")
                # It was written before some hosts had no such file.
                found |= {file: {"ca_file": True, **kept}} if kept else {}
                unknown += [] if kept else [name]
                continue
            shown = {key: host[key] for key in ("address", "port", "server_name", "engines")}
            trusts = config.find_trusted(host, roots)
            found[file] = {"name": name, **shown, "ca_file": trusts is not None}
            text = json.dumps(found[file], indent=1, sort_keys=True) + "\n"
            if trusts is not None:
                self.file(folder / f"{file}.crt", trusts)
            self.file(folder / f"{file}.key", host["key"] + "\n", mode=0o600)
            self.file(folder / f"{file}.json", text)
        there = sorted(folder.iterdir()) if folder.is_dir() else []
        for path in there:
            host = found.get(path.name.rpartition(".")[0])
            if host is None or (path.suffix == ".crt" and not host["ca_file"]):
                self._drop(path)
        return found, unknown

    def unit(self, name: str, text: str) -> None:
        """Install a unit."""
        path = self.paths.units / name
        if read_text(path) != text:
            self.did.append(str(path))
            if not self.check:
                write_atomic(path, text, 0o644)

    def firewall(self, settings: Mapping[str, Any]) -> None:
        """Write and load the packet filter, also after the rule set was emptied."""
        text, name = config.build_firewall(settings), unit_names.MONITOR_FIREWALL
        self.file(self.paths.monitor_firewall, text, check=("nft", "--check", "--file"))
        drop_in = self.paths.monitor_firewall_drop_in
        if read_text(drop_in) != config.FIREWALL_DROP_IN:
            self.did.append(str(drop_in))
            if not self.check:
                drop_in.parent.mkdir(mode=0o755, exist_ok=True)
                write_atomic(drop_in, config.FIREWALL_DROP_IN, 0o644)
                units.run_systemctl("daemon-reload")
        if units.converge(name, check=self.check):
            self.did.append(f"enable {name}")
        active = units.read_states(name).get(name, {}).get("state") == "active"
        if (
            active
            and config.find_firewall_comment(text)
            in run("nft", "list", "table", *MONITOR_TABLE).stdout
        ):
            return
        verb = "reload" if active else "start"
        self.did.append(f"{verb} {name}")
        if not self.check:
            units.control(verb, name)

    def distribution(self) -> None:
        """Disable the units that came with the packages; the site's own units stay."""
        ours = kept_state.read(self.paths, MONITOR_BEFORE).get("services_ours") or []
        for name in ours:
            unit = units.read_states(name).get(name, {})
            if unit.get("enabled") or unit.get("state") == "active":
                self.did.append(name)
                if not self.check:
                    units.run_systemctl("disable", "--now", name)

    def run(self, settings: Mapping[str, Any]) -> None:
        """Make both services run the present configuration."""
        ports = {
            unit_names.PROMETHEUS: settings["port"],
            unit_names.ALERTMANAGER: settings["alertmanager_port"],
        }
        for _, _, name in reversed(PARTS):
            if units.converge(name, check=self.check):
                self.did.append(f"enable {name}")
            url = f"http://{config.bracket_address(settings['listen'])}:{ports[name]}"
            verb = self._verb(name, url)
            if not verb:
                continue
            self.did.append(f"{verb} {name}")
            if not self.check:
                units.control(verb, name)
                self._wait(name, url)

    def _verb(self, name: str, url: str) -> str:
        row = units.read_properties([name], _SHOWN).get(name, {})
        if row.get("ActiveState") != "active":
            return "start"
        up_us = int(row.get("ActiveEnterTimestampMonotonic") or 0)
        since = time.time() - time.clock_gettime(time.CLOCK_MONOTONIC) + up_us / 1e6
        unit = self.paths.units / name
        if not unit.exists() or unit.stat().st_mtime > since:
            return "restart"
        return "reload" if self.newest > _read_reload_time(name, url) else ""

    def _wait(self, name: str, url: str) -> None:
        until = time.monotonic() + _READY_S
        while not (read_page(f"{url}/-/ready") and self.newest <= _read_reload_time(name, url)):
            if time.monotonic() > until:
                what = f"{name} did not take its configuration over"
                raise units.make_error(what, name, units.read_journal(name))
            time.sleep(0.2)


def _require_valid(command: tuple[str, ...], new: Path, path: Path) -> None:
    """Check a configuration with its program. Where it is refused, remove it, raise HostError."""
    done = run(*command, str(new))
    if done.returncode != 0:
        secret = path.name == "alertmanager.yml"
        said = (done.stderr or done.stdout).strip().splitlines()
        remove(str(new))
        told = "" if secret or not said else f": {clean_text.clean_line(said[-1])[:300]}"
        raise HostError(
            f"{command[0]} refuses the new {path}{told}",
            "check the role's options monitor_alert_* in the inventory" if secret else None,
        )


def _read_reload_time(name: str, url: str) -> float:
    """Return when it last loaded its configuration, in seconds since 1970; 0 if unknown."""
    for line in read_page(f"{url}/metrics").splitlines():
        if line.startswith(_RELOADED[name] + " "):
            return float(line.rpartition(" ")[2])
    return 0.0


def remove_all(paths: Paths, *, check: bool = False) -> MonitorStateAnswer:
    """Remove what `ensure` made, including the series; the packages stay, disabled.

    Prometheus' unit is removed last: it shows the next apply what a killed run has left.
    """
    record = kept_state.read(paths, MONITOR_BEFORE)
    ours = [*(name for _, _, name in reversed(PARTS)), unit_names.MONITOR_FIREWALL]
    there = [name for name in ours if (paths.units / name).exists()]
    if not record and not there:
        return {"changed": False}
    if check:
        return {"changed": True}
    if there:
        units.run_systemctl("disable", "--now", *there)
    # If the unit does not run, nftables.service has loaded the table; mostly it does not exist any
    # more.
    run("nft", "delete", "table", *MONITOR_TABLE)
    drop_in = paths.monitor_firewall_drop_in
    for path in (drop_in, *(paths.units / name for name in ours if name != unit_names.PROMETHEUS)):
        remove(str(path))
    with contextlib.suppress(OSError):  # Others have files there.
        drop_in.parent.rmdir()
    # Without the record it is unknown who made the user.
    if record and not record.get("user_existed") and _is_user(MONITOR_USER):
        done = run("userdel", MONITOR_USER)
        if done.returncode != 0:
            raise HostError(
                f"the user {MONITOR_USER} cannot be removed: {done.stderr.strip()}",
                f"end what runs as it (ps -u {MONITOR_USER}), and run `kimi-prov apply` again",
            )
    for folder in (paths.monitor_etc, paths.monitor_home):
        if folder.exists():
            shutil.rmtree(str(folder))
    remove(str(paths.units / unit_names.PROMETHEUS))
    units.run_systemctl("daemon-reload")
    if there:
        run("systemctl", "reset-failed", *there)
    return {"changed": True}


def main(argv: list[str]) -> int:
    """`monitor note|ensure|remove [--check]`; `ensure` reads its settings from standard input."""
    check = "--check" in argv
    try:
        if argv[:1] == ["note"]:
            return answer({"ok": True, **record_before(Paths(), check=check)})
        if argv[:1] == ["ensure"]:
            return answer({"ok": True, **ensure(Paths(), json.load(sys.stdin), check=check)})
        if argv[:1] == ["remove"]:
            return answer({"ok": True, **remove_all(Paths(), check=check)})
    except OSError as error:
        raise HostError(f"{MONITOR_ETC}, {MONITOR_HOME}: {describe_error(error)}") from None
    raise HostError("usage: monitor note|ensure|remove [--check] < SETTINGS")
