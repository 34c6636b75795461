"""Restores the machine to its state before the first apply, as recorded then.

Only files with exactly one of our names are removed, and only where a record of an apply exists or
the file itself says that kimi-prov wrote it. Other files with similar names stay and are reported.
Every step first checks whether there is anything to do, so an interrupted apply is undone as well
as a complete one, and a second run changes nothing. The record is removed last.

Decides: what `destroy` removes.
Applied by: roles/destroy.
Held by: tests/unit/on_host/test_destroy.py.
"""

from __future__ import annotations

import grp
import os
import pwd
import shutil
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING, Any, Callable

from kimi_prov.contract import paths as layout
from kimi_prov.contract import unit_names
from kimi_prov.contract.errors import HostError
from kimi_prov.contract.paths import PROXY_USER, WEB_USER, Paths
from kimi_prov.on_host.endpoint import firewall
from kimi_prov.on_host.probe.system import list_mounts
from kimi_prov.on_host.system import kept_state, plans, units
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.files import read_text, write_atomic
from kimi_prov.on_host.system.machine import Machine
from kimi_prov.on_host.system.process import run

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.contract.documents.answers import DestroyAnswer

UNIT_DIRECTORY = layout.UNITS[1:]
# Every file that a role writes into the distribution's folders says so, except where apt's format
# forbids it.
MARK = "Written by kimi-prov"
# Folders in which a file of somebody else may have a name like ours; it stays and is reported.
SHARED = (
    f"{UNIT_DIRECTORY}/*kimi*",
    "etc/sysctl.d/*kimi*",
    "etc/tmpfiles.d/*kimi*",
    "etc/modules-load.d/*kimi*",
    "etc/security/limits.d/*kimi*",
    "etc/apt/*.d/*kimi*",
    "etc/needrestart/conf.d/*kimi*",
    "etc/apt/keyrings/*kimi*",
    "usr/local/share/ca-certificates/*kimi*",
)
THP = "sys/kernel/mm/transparent_hugepage/enabled"
GOVERNORS = "sys/devices/system/cpu/cpu[0-9]*/cpufreq/scaling_governor"


class Undo:
    """Does the steps, or only lists them in check mode; records what was done for the report."""

    def __init__(
        self, paths: Paths, *, check: bool, purge_weights: bool, purge_web: bool = False
    ) -> None:
        self.paths = paths
        self.check = check
        self.purge_weights = purge_weights
        self.purge_web = purge_web
        self.before = kept_state.read(paths, layout.BEFORE)
        self.removed: list[str] = []
        self.restored: list[str] = []
        self.kept: list[str] = []
        self.errors: list[str] = []

    def act(self, into: list[str], what: str, work: Callable[[], Any]) -> None:
        """Record `what` and do it; a failure is recorded and does not stop the other steps."""
        into.append(what)
        if self.check:
            return
        try:
            work()
        except (OSError, HostError) as error:
            self.errors.append(f"{what}: {error}")

    def _glob(self, pattern: str) -> list[Path]:
        return sorted(self.paths.root.glob(pattern))

    def _is_ours(self, path: Path) -> bool:
        """Return whether a record or the file itself says that we made it."""
        if self.before:
            return True
        if path.name.startswith("kimi-nvidia."):
            # The files of a repository and its key do not say who wrote them. They are removed with
            # the pin, and never without it.
            path = self.paths.locate(layout.NVIDIA_PIN)
        try:
            return MARK.encode() in path.read_bytes()
        except OSError:
            return False

    def unit_files(self) -> list[Path]:
        """List our unit files, and our drop-ins of the engine's instances."""
        found = [
            path
            for path in self._glob(f"{UNIT_DIRECTORY}/*")
            if unit_names.is_ours(path.name) and not path.is_dir() and self._is_ours(path)
        ]
        drop_ins = [
            path
            for unit in (unit_names.ALL_SERVE, unit_names.RANK)
            for path in self._glob(f"{UNIT_DIRECTORY}/{unit}.d/{layout.SERVE_DROP_IN}")
        ]
        return sorted(found + [path for path in drop_ins if self._is_ours(path)])

    def units(self) -> None:
        """Stop, disable and remove all our units, the firewall's last."""
        files = self.unit_files()
        foreign = {path.name for path in self._glob(f"{UNIT_DIRECTORY}/*") if path not in files}
        listed = run(
            *("systemctl", "list-units", "--all", "--plain", "--no-legend"),
            *(unit_names.ALL_SERVE, *unit_names.OURS),
        )
        rows = [line.split() for line in listed.stdout.splitlines() if line.split()]
        loaded = [row[0] for row in rows if row[1] != "not-found" or row[2] == "active"]
        linked = [link.name for link in self._glob(UNIT_DIRECTORY + "/*.wants/*kimi*")]
        names = {
            name
            for name in (*loaded, *linked, *[path.name for path in files])
            if unit_names.is_ours(name) and name not in foreign
        } - {unit_names.SERVE_TEMPLATE}
        last = (unit_names.FIREWALL, unit_names.MONITOR_FIREWALL)
        for name in sorted(names, key=lambda unit: (unit in last, unit)):
            self.act(self.removed, "unit " + name, partial(_end_unit, name))
        for path in files:
            self._remove(path)
        if (names or files) and not self.check:
            run("systemctl", "daemon-reload")
            for name in sorted(names):
                run("systemctl", "reset-failed", name)
            run("systemctl", "stop", unit_names.SERVE_SLICE)

    def _remove(self, path: Path) -> None:
        self.act(self.removed, f"file {self._name(path)}", partial(_delete, path))

    def _name(self, path: Path) -> str:
        return "/" + str(path.relative_to(self.paths.root))

    def firewall(self) -> None:
        """Remove our table, and our rules in ufw or firewalld."""
        for rule in firewall.remove_all(self.paths, check=self.check):
            where = rule.get("from") or "{}: {}".format(rule.get("zone"), rule.get("rule"))
            self.removed.append("{} rule for {}".format(rule["manager"], where))
        for table in (layout.FIREWALL_TABLE, layout.MONITOR_TABLE):
            if run("nft", "list", "table", *table).returncode == 0:
                delete = partial(run, "nft", "delete", "table", *table)
                self.act(self.removed, "nftables table " + " ".join(table), delete)

    def files(self) -> None:
        """Remove our files in the distribution's folders; restore files that were replaced."""
        found = [self.paths.locate(name) for name in layout.AMONG_OTHERS]
        there = [path for path in found if path.exists() or path.is_symlink()]
        for path in [path for path in there if self._is_ours(path)]:
            self._remove(path)
        for name, kept in sorted((self.before.get("files") or {}).items()):
            self._restore_file(self.paths.locate(name), name, kept)

    def _restore_file(self, path: Path, name: str, kept: object) -> None:
        content = kept.get("content") if isinstance(kept, dict) else kept
        mode = int(str(kept.get("mode", "0644")), 8) if isinstance(kept, dict) else 0o644
        if content is None:
            if path.exists() or path.is_symlink():
                self.act(self.removed, "file " + name, lambda: _delete(path))
        elif read_text(path) != content:
            self.act(self.restored, "file " + name, partial(write_atomic, path, str(content), mode))

    def tunables(self) -> None:
        """Restore the kernel settings that the plan changed."""
        ours = plans.read_machine_plan(self.paths.plan).get("tuning") or {}
        recorded = self.before.get("tunables") or {}
        for name in sorted(ours.get("sysctl") or {}):
            value = _format_value((recorded.get("sysctl") or {}).get(name))
            path = self.paths.root / "proc/sys" / name.replace(".", "/")
            self._set(f"sysctl {name} = {value}", path, value)
        if ours.get("thp"):
            thp = _format_value(recorded.get("thp"))
            self._set(f"transparent huge pages: {thp}", self.paths.root / THP, thp)
        if ours.get("governor"):
            governor = _format_value(recorded.get("governor"))
            for path in self._glob(GOVERNORS):
                self._set(f"governor {governor} of {path.parts[-3]}", path, governor)

    def _set(self, what: str, path: Path, value: object) -> None:
        if value is None or not path.exists():
            return
        now = " ".join(read_text(path).split())
        current = now.partition("[")[2].partition("]")[0] or now
        if current != " ".join(str(value).split()):
            self.act(self.restored, what, partial(path.write_text, str(value)))

    def services(self) -> None:
        """Restore the distribution's services that were switched off or on for us."""
        for name, was in sorted((self.before.get("services") or {}).items()):
            if not was:
                continue
            for key, on, off, ask in (
                ("enabled", "enable", "disable", "is-enabled"),
                ("active", "start", "stop", "is-active"),
            ):
                if was.get(key) is None or _has_unit(name) is False:
                    continue
                is_on = run("systemctl", ask, name).stdout.strip() in ("enabled", "active")
                if is_on != bool(was[key]):
                    verb = on if was[key] else off
                    self.act(
                        self.restored,
                        f"{name}: {verb}",
                        partial(units.run_systemctl, verb, name),
                    )

    def directories(self) -> None:
        """Remove /etc/kimi, and /srv/kimi; weights and the web UI's data only if purged."""
        kept = [
            name
            for name, purge in (
                (layout.MODELS, self.purge_weights),
                (layout.WEB, self.purge_web),
            )
            if not purge and _is_filled(self.paths.locate(name))
        ]
        self.kept += kept
        for name in kept if not self.check else []:
            _give_to_root(self.paths.locate(name))
        ours = {*layout.IN_ROOT, layout.MODELS, layout.WEB} - {*kept}
        for path in map(self.paths.locate, sorted(ours)):
            if path.exists() or path.is_symlink():
                mounted = self._is_mounted(path) and path != self.paths.locate(layout.RAM)
                work = partial(_clear_folder if mounted else _delete, path)
                self.act(self.removed, self._name(path), work)
        if self.paths.srv.is_dir():
            self._root(keep=bool(kept))
        runs = [
            self.paths.locate(name) for name in (layout.RUN, layout.GROUP_RUN, *layout.REST_RUN)
        ]
        for path in (*self._of_etc(web_stays=layout.WEB in kept), *runs):
            if path.exists():
                self.act(self.removed, self._name(path), partial(_delete, path))

    def _of_etc(self, *, web_stays: bool) -> list[Path]:
        """Return what of /etc/kimi is removed: all but an unseen password that still counts."""
        unseen = self.paths.web_admin_new
        if not (web_stays and unseen.exists()):
            return [self.paths.etc]
        told = "a password that was not shown yet: `kimi-prov key` shows it after the next apply"
        self.kept.append(f"{layout.WEB_ADMIN_NEW}, {told}")
        beside = [*self.paths.etc.iterdir(), *self.paths.keys.iterdir()]
        return sorted(path for path in beside if path not in (unseen, unseen.parent))

    def _root(self, *, keep: bool) -> None:
        """Remove /srv/kimi itself, unless something is left in it; mounts stay mounted."""
        inside = {self._name(path): path for path in self.paths.srv.iterdir()}
        others = set(inside) - {layout.MODELS, layout.WEB, *layout.IN_ROOT}
        mounted = [
            name
            for name, path in {layout.ROOT: self.paths.srv, **inside}.items()
            if self._is_mounted(path) and name not in (layout.RAM, *others)
        ]
        self.kept += sorted(others)
        self.kept += [f"{name}, a file system of its own" for name in sorted(mounted)]
        if not keep and not others and not mounted:
            self.act(self.removed, layout.ROOT, self.paths.srv.rmdir)
        elif not self.check and os.geteuid() == 0:
            os.chown(str(self.paths.srv), 0, 0)

    def _is_mounted(self, path: Path) -> bool:
        """Return whether the kernel lists a mount here: a bind mount is found in no other way."""
        machine = Machine(str(self.paths.root))
        real = os.path.realpath(path.parent) + "/" + path.name
        return real[len(machine.root) :] in list_mounts(machine)

    def others(self) -> None:
        """Report what has a name like ours, is not ours and stays."""
        gone = {name.partition(" ")[2] for name in self.removed}
        for path in sorted({path for pattern in SHARED for path in self._glob(pattern)}):
            inside = sorted(path.iterdir()) if path.is_dir() and path.suffix == ".d" else [path]
            self.kept += [name for name in map(self._name, inside) if name not in gone]

    def driver(self) -> None:
        """Remove our package holds and restore what was quarantined; the driver itself stays."""
        kept = kept_state.read(self.paths, layout.DRIVER_STATE)
        if kept.get("version"):
            self.kept.append(f"NVIDIA's driver {kept['version']}")
        held = set(kept.get("held") or []) & set(run("apt-mark", "showhold").stdout.split())
        if held:
            what = "packages may change again: " + ", ".join(sorted(held))
            self.act(self.restored, what, lambda: run("apt-mark", "unhold", *sorted(held)))
        quarantine = self.paths.locate(layout.QUARANTINE)
        files = sorted(
            path for path in quarantine.rglob("*") if path.is_symlink() or path.is_file()
        )
        for path in files:
            place = self.paths.root / path.relative_to(quarantine)
            self.act(self.restored, f"file {place}", partial(_restore_quarantined, path, place))
        if files and not self.check:
            run("ldconfig")

    def users(self) -> None:
        """Remove our users and groups, unless they existed before."""
        groups = self.before.get("groups_existed")
        for name in (layout.ACME_USER, PROXY_USER, WEB_USER, layout.USER):
            if _is_user(name) and self.before and not self._was_there(name):
                work = partial(_remove_user, name, keep_group=name in (groups or ()))
                self.act(self.removed, "user " + name, work)
                continue
            if _is_user(name):
                self.kept.append(f"user {name}")
            # A record of an earlier version names no groups: they were made with their users then.
            if groups is not None and name not in groups and _is_group(name):
                self.act(self.removed, "group " + name, partial(_remove_group, name))

    def _was_there(self, name: str) -> bool:
        return layout.did_user_exist(self.before, name, pwd.getpwnam(name).pw_dir)

    def monitor(self) -> None:
        """Remove Prometheus' and Alertmanager's settings, series and users, if this host has them.

        They have their own record of users, because a host may run only the monitoring. It is
        removed last.
        """
        record = kept_state.read(self.paths, layout.MONITOR_BEFORE)
        if not record:
            return
        if _is_user(layout.MONITOR_USER):
            if record.get("user_existed"):
                self.kept.append(f"user {layout.MONITOR_USER}")
            else:
                work = partial(_remove_user, layout.MONITOR_USER, keep_group=False)
                self.act(self.removed, f"user {layout.MONITOR_USER}", work)
        for path in (self.paths.monitor_etc, self.paths.monitor_home):
            if path.exists() and not (self.errors and path == self.paths.monitor_home):
                self.act(self.removed, self._name(path), partial(_delete, path))

    def record(self) -> None:
        """Remove the record of the former state; last, so that a run can be repeated."""
        if self.paths.home.exists() and not self.errors:
            self.act(self.removed, layout.HOME, lambda: _delete(self.paths.home))


def _is_filled(directory: Path) -> bool:
    return directory.is_dir() and any(directory.iterdir())


def _format_value(setting: object) -> str | None:
    value = setting.get("value") if isinstance(setting, dict) else setting
    return None if value is None else str(value)


def _has_unit(name: str) -> bool:
    return units.read_states(name).get(name, {}).get("load_state") == "loaded"


def _end_unit(name: str) -> None:
    """Kill the processes now: a model that is still loading ignores SIGTERM for a long time."""
    if unit_names.is_serve(name):
        run("systemctl", "kill", "--signal=SIGKILL", name)
    done = run("systemctl", "disable", "--now", name, timeout=180)
    if done.returncode != 0:
        stopped = run("systemctl", "stop", name, timeout=180)
        if stopped.returncode != 0 and _has_unit(name):
            raise HostError(stopped.stderr.strip() or done.stderr.strip())


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(str(path))
    elif path.exists() or path.is_symlink():
        path.unlink()
    if path.parent.name.endswith(".service.d"):
        with suppress(OSError):  # Others may have drop-ins there.
            path.parent.rmdir()


def _clear_folder(directory: Path) -> None:
    """Remove the contents of a separate file system; it stays mounted, as it was before."""
    for path in directory.iterdir():
        if path.name != "lost+found":
            _delete(path)


def _restore_quarantined(path: Path, place: Path) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    shutil.move(str(path), str(place))


def _give_to_root(directory: Path) -> None:
    if os.geteuid() != 0:
        return
    os.chown(str(directory), 0, 0)
    for base, directories, files in os.walk(str(directory)):
        for name in [*directories, *files]:
            os.lchown(os.path.join(base, name), 0, 0)


def _is_user(name: str) -> bool:
    try:
        pwd.getpwnam(name)
    except KeyError:
        return False
    return True


def _is_group(name: str) -> bool:
    try:
        grp.getgrnam(name)
    except KeyError:
        return False
    return True


def _remove_user(name: str, *, keep_group: bool) -> None:
    run("pkill", "-KILL", "-u", name)
    if keep_group:
        # userdel removes the group of the same name too, where it is the user's primary group.
        run("usermod", "--gid", "nogroup", name)
    done = run("userdel", name)
    if done.returncode not in (0, 6):  # 6: there is no such user.
        raise HostError(done.stderr.strip())
    if not keep_group:
        _remove_group(name)


def _remove_group(name: str) -> None:
    done = run("groupdel", name)
    if done.returncode not in (0, 6):  # 6: there is no such group.
        raise HostError(done.stderr.strip())


def undo(
    paths: Paths, *, check: bool, purge_weights: bool, purge_web: bool = False
) -> DestroyAnswer:
    """Restore the machine; return what was removed, restored and kept, and the errors."""
    work = Undo(paths, check=check, purge_weights=purge_weights, purge_web=purge_web)
    for step in (
        work.units, work.firewall, work.files, work.tunables, work.directories, work.users,
        work.services, work.driver, work.others, work.monitor, work.record,
    ):  # fmt: skip
        step()
    errors = "; ".join(work.errors)
    return {
        "ok": not errors,
        "changed": bool(work.removed or work.restored),
        "removed": work.removed,
        "restored": work.restored,
        "kept": work.kept,
        "detail": f"not everything could be restored: {errors}" if errors else "",
        "fix": "remove the cause and run `kimi-prov destroy` again",
    }


def main(argv: list[str]) -> int:
    """`destroy [--check] [--purge-weights] [--purge-web]`: print what was restored."""
    report = undo(
        Paths(),
        check="--check" in argv,
        purge_weights="--purge-weights" in argv,
        purge_web="--purge-web" in argv,
    )
    return answer(report)
