"""Compares what was applied with the present state: rows of `applied.observe`.

Without effects. What kimi-prov itself changes between two applies (keys by `kimi-prov key`, a
renewed certificate) is changed in the record too, and so is no difference here.

Decides: what counts as drift, and its causes.
Applied by: playbooks/drift.yml, roles/drift.
Held by: tests/unit/on_host/drift/test_compare.py, tests/unit/on_host/drift/test_causes.py,
  tests/lab/test_drift.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from kimi_prov.contract import paths as layout
from kimi_prov.contract import unit_names
from kimi_prov.contract.unit_comparison import hide_secrets
from kimi_prov.on_host.drift.difference import ABSENT, APPLY, Account, Difference, Trace

Row = Mapping[str, Any]
# Removed once they were shown, or once the account was made.
_PASSING = (layout.OPERATOR_NEW, layout.WEB_ADMIN_NEW, layout.WEB_ADMIN)
# A unit in one of these states is changing, which says nothing yet.
_RUNS = ("active", "reloading", "activating", "deactivating", "refreshing", "maintenance")
_MASKED = ("masked", "masked-runtime")
_ON = ("enabled", "enabled-runtime")


def list_differences(applied: Row, now: Row) -> list[Difference]:
    """Return all differences of the two documents; units and processes are compared elsewhere."""
    return [
        *compare_files(applied.get("files") or (), now.get("files") or ()),
        *compare_links(applied.get("links") or (), now.get("links") or ()),
        *compare_mounts(applied.get("mounts") or (), now.get("mounts") or ()),
        *compare_accounts(applied.get("users") or {}, now.get("users") or {}),
        *compare_members(applied.get("members") or {}, now.get("members") or {}),
        *compare_packages(applied.get("packages") or {}, now.get("packages") or {}),
        *compare_driver(applied.get("driver"), now.get("driver")),
        *compare_kernel(applied.get("kernel") or {}, now.get("kernel") or {}),
        *compare_firewall(applied.get("firewall") or {}, now.get("firewall") or {}),
        *compare_keys(applied, now),
        *compare_certificate(applied, now),
    ]


def compare_files(applied: Sequence[Row], now: Sequence[Row]) -> Iterator[Difference]:
    """Compare content, owner and mode of our files; of changing files only owner and mode."""
    there = {row["path"]: row for row in now}
    for row in applied:
        path = row["path"]
        if path not in there:
            if path not in _PASSING and path != layout.ACME_PEM:
                trace = Trace(path=path, gone=True)
                yield Difference(
                    "drift.file_missing", path, _describe_access(row), ABSENT, trace=trace
                )
            continue
        if told := _compare_file(row, there[path]):
            yield Difference("drift.file", path, told[0], told[1], trace=Trace(path=path))
    known = {row["path"] for row in applied}
    for row in now:
        # For units and files in the distribution's folders, only our own names are listed.
        if row["path"] not in known and not row["living"]:
            path = row["path"]
            yield Difference(
                "drift.file_added",
                path,
                ABSENT,
                _describe_access(row),
                f"rm {path}",
                Trace(path=path),
            )


def _compare_file(was: Row, found: Row) -> tuple[str, str] | None:
    parts = []
    if was["sha256"] is not None and was["sha256"] != found["sha256"]:
        parts.append((_format_sha(was["sha256"]), _format_sha(found["sha256"])))
    owners = [f"{row['owner']}:{row['group']}" for row in (was, found)]
    if owners[0] != owners[1]:
        parts.append((f"owner {owners[0]}", f"owner {owners[1]}"))
    if was["mode"] != found["mode"]:
        parts.append((f"mode {was['mode']}", f"mode {found['mode']}"))
    if not parts:
        return None
    return ", ".join(part[0] for part in parts), ", ".join(part[1] for part in parts)


def _describe_access(row: Row) -> str:
    owner = f"owner {row['owner']}:{row['group']}, mode {row['mode']}"
    return f"{_format_sha(row['sha256'])}, {owner}" if row["sha256"] else owner


def _format_sha(sha256: str | None) -> str:
    return f"sha256 {sha256[:12]}" if sha256 else "no file whose content is known"


def compare_links(applied: Sequence[Row], now: Sequence[Row]) -> Iterator[Difference]:
    """Compare the targets of our links."""
    there = {row["path"]: row["target"] for row in now}
    for row in applied:
        path, target = row["path"], there.get(row["path"])
        if target != row["target"]:
            trace = Trace(path=path, gone=target is None, words=(path,))
            yield Difference("drift.link", path, row["target"], target or ABSENT, trace=trace)


def compare_mounts(applied: Sequence[Row], now: Sequence[Row]) -> Iterator[Difference]:
    """Compare the mounts at and below our folder."""
    there = {row["path"]: row for row in now}
    for row in applied:
        path, found = row["path"], there.get(row["path"])
        if found is None:
            unit = _name_mount_unit(path)
            fix = APPLY if path == layout.RAM else f"mount {path}"
            trace = Trace(unit=unit, words=("umount", path))
            yield Difference("drift.mount", path, _describe_mount(row), ABSENT, fix, trace)
        elif _describe_mount(row) != _describe_mount(found):
            trace = Trace(words=("mount", path))
            fix = f"mount -o remount {path}" if path == layout.ROOT else _describe_remount(path)
            yield Difference(
                "drift.mount", path, _describe_mount(row), _describe_mount(found), fix, trace
            )
    for path in sorted(set(there) - {row["path"] for row in applied}):
        trace = Trace(unit=_name_mount_unit(path), words=("mount", path))
        fix = f"umount {path}"
        yield Difference("drift.mount", path, ABSENT, _describe_mount(there[path]), fix, trace)


def _describe_remount(path: str) -> str:
    return f"umount {path} && mount {path}"


def _describe_mount(row: Row) -> str:
    """Describe a mount; a disk by the folder of its device, whose name differs at each boot."""
    options = ",".join(row.get("options") or ())
    device = "/dev" if row["device"].startswith("/dev/") else row["device"]
    return f"{device} ({row['type']}{', ' + options if options else ''})"


def _name_mount_unit(path: str) -> str:
    """Return the unit of a mount point of ours: its path has no character that systemd escapes."""
    return f"{path.strip('/').replace('-', chr(92) + 'x2d').replace('/', '-')}.mount"


def compare_units(applied: Mapping[str, Row], now: Mapping[str, Row]) -> Iterator[Difference]:
    """Compare our units: whether masked, enabled, running, from which file, with which drop-ins.

    Rows of `now` have `since`, when the unit came into its state, and `extra`, drop-ins on the disk
    that systemd has not read yet.
    """
    for name, row in applied.items():
        found = now.get(name) or {}
        yield from _compare_unit(name, row, found)
        ours = {*row.get("drop_ins", ())}
        for path in sorted({*found.get("drop_ins", ()), *found.get("extra", ())} - ours):
            yield Difference(
                "drift.unit_override",
                path,
                ABSENT,
                f"a drop-in of {name}",
                f"rm {path} && systemctl daemon-reload && systemctl restart --no-block {name}",
                Trace(path=path, words=("systemctl", "edit", name)),
            )


def _compare_unit(name: str, row: Row, found: Row) -> Iterator[Difference]:
    was, state = row["enabled"], found.get("enabled", "")
    stopped = Trace(unit=name, words=("systemctl", name.rpartition(".")[0]), at=found.get("since"))
    if state in _MASKED or found.get("load") == "masked":
        link = found.get("mask")
        fix = f"systemctl unmask {'--runtime ' if state == 'masked-runtime' else ''}{name}"
        yield Difference(
            "drift.unit_masked", name, was or "loaded", "masked", f"{fix} && {APPLY}",
            Trace(path=link, words=("mask", name.rpartition(".")[0])),
        )  # fmt: skip
        return
    if was in _ON and state not in _ON:
        target = "timers" if name.endswith(".timer") else "multi-user"
        link = f"{layout.UNITS}/{target}.target.wants/{name}"
        told = Trace(path=link, gone=True, words=("disable", name.rpartition(".")[0]))
        yield Difference("drift.unit_disabled", name, was, state or "no unit", trace=told)
    if row.get("file") and found.get("file") and row["file"] != found["file"]:
        trace = Trace(path=found["file"])
        yield Difference("drift.unit_replaced", name, row["file"], found["file"], trace=trace)
    # A mount has its own row.
    # A unit with a job waits for others: for the weights, after a boot.
    runs = found.get("state") in _RUNS or found.get("job") or name.endswith(".mount")
    if row["state"] == "active" and not runs:
        yield Difference(
            "drift.unit_stopped", name, "active", found.get("state") or "no unit", trace=stopped
        )


def compare_accounts(
    applied: Mapping[str, Row | None], now: Mapping[str, Row | None]
) -> Iterator[Difference]:
    """Compare our users: number, group, home and shell."""
    for name, row in applied.items():
        found = now.get(name)
        if row is None or row == found:
            continue
        told = _list_changed_fields(row, row if found is None else found)
        yield Difference(
            "drift.account",
            name,
            _describe_account(row, told),
            ABSENT if found is None else _describe_account(found, told),
            APPLY if found is None else _build_usermod(name, row, told),
            Trace(account=_build_account(name, found, told)),
        )


def _build_account(name: str, found: Row | None, fields: Sequence[str]) -> Account:
    if found is None:
        return Account(name, gone=True)
    return Account(name, fields=tuple((key, str(found[key])) for key in fields))


def compare_members(
    applied: Mapping[str, Sequence[str] | None], now: Mapping[str, Sequence[str] | None]
) -> Iterator[Difference]:
    """Compare the members of our groups: a member reads files that are closed to others."""
    for name, was in applied.items():
        found = now.get(name)
        if was is None or was == found:
            continue
        fix, trace = APPLY, Trace(account=Account(name, gone=True))
        observed = ABSENT
        if found is not None:
            new, gone = sorted({*found} - {*was}), sorted({*was} - {*found})
            steps = [f"gpasswd --delete {user} {name}" for user in new]
            steps += [f"gpasswd --add {user} {name}" for user in gone]
            fix = " && ".join(steps)
            trace = Trace(account=Account(name, joined=tuple(new), left=tuple(gone)))
            observed = _format_members(found)
        yield Difference(
            "drift.account", f"group {name}", _format_members(was), observed, fix, trace
        )


def _format_members(names: Sequence[str]) -> str:
    return f"members: {', '.join(names)}" if names else "no further members"


_OPTIONS = {"uid": "--uid", "gid": "--gid", "home": "--home", "shell": "--shell"}


def _list_changed_fields(row: Row, found: Row) -> list[str]:
    differing = [key for key in _OPTIONS if row.get(key) != found.get(key)]
    return differing or list(_OPTIONS)


def _describe_account(row: Row, fields: Sequence[str]) -> str:
    return ", ".join(f"{key} {row[key]}" for key in fields)


def _build_usermod(name: str, row: Row, fields: Sequence[str]) -> str:
    return " ".join(["usermod", *(f"{_OPTIONS[key]} {row[key]}" for key in fields), name])


def compare_packages(applied: Row, now: Row) -> Iterator[Difference]:
    """Compare versions of the packages that the plan needs, and which are held."""
    there: dict[str, str] = dict(now.get("versions") or {})
    for name, version in (applied.get("versions") or {}).items():
        found = there.get(name)
        if found != version:
            known = "drift.package" if found else "drift.package_missing"
            # The fix is never the former version, which may have the security hole: apply records
            # this one.
            yield Difference(known, name, version, found or ABSENT, APPLY, Trace(package=name))
    held = {*(now.get("held") or ())}
    for name in applied.get("held") or ():
        if name in there and name not in held:
            trace = Trace(words=("apt-mark", "unhold", name))
            fix = f"apt-mark hold {name}"
            yield Difference("drift.package_hold", name, "held", "not held", fix, trace)


def compare_driver(applied: str | None, now: str | None) -> Iterator[Difference]:
    """Compare the version of the NVIDIA module that is loaded."""
    if applied != now and applied is not None:
        trace = Trace(package="nvidia-kernel-open-dkms")
        yield Difference("drift.driver", "nvidia", applied, now or "none loaded", trace=trace)


def compare_kernel(applied: Row, now: Row) -> Iterator[Difference]:
    """Compare the kernel's settings that the plan names."""
    there = now.get("sysctl") or {}
    for name, value in (applied.get("sysctl") or {}).items():
        if value is not None and there.get(name) != value:
            trace = Trace(words=(name,))
            yield Difference("drift.kernel", name, value, there.get(name) or ABSENT, trace=trace)
    for name, subject in (("thp", "transparent huge pages"), ("governor", "CPU governor")):
        was, found = applied.get(name), now.get(name)
        if was is not None and was != found:
            yield Difference("drift.kernel", subject, was, found or ABSENT)


def compare_firewall(applied: Row, now: Row) -> Iterator[Difference]:
    """Compare the table that guards our ports, rule by rule where the rules are known."""
    if applied.get("table_sha256") == now.get("table_sha256"):
        return
    table = " ".join(layout.FIREWALL_TABLE)
    if now.get("table_sha256") is None:
        yield Difference(
            "drift.firewall",
            f"table {table}",
            "loaded",
            ABSENT,
            f"systemctl reload-or-restart {unit_names.FIREWALL}",
            Trace(words=("nft",)),
        )
        return
    was, found = applied.get("table") or [], now.get("table") or []
    gone = [line.strip() for line in was if line not in found]
    new = [line.strip() for line in found if line not in was]
    yield Difference(
        "drift.firewall",
        f"table {table}",
        _format_lines(gone) or "as applied",
        _format_lines(new) or "other rules, or another order",
        APPLY,
        Trace(words=("nft",)),
    )


def _format_lines(lines: Sequence[str]) -> str:
    more = f" and {len(lines) - 3} more" if len(lines) > 3 else ""
    return "; ".join(lines[:3]) + more


def compare_keys(applied: Row, now: Row) -> Iterator[Difference]:
    """Compare the API keys by name and digest; no key is shown."""
    was: dict[str, str | None] = dict.fromkeys(applied.get("keys") or ())
    was.update(applied.get("key_digests") or {})
    found: dict[str, str] = now.get("key_digests") or {}
    trace = Trace(path=layout.KEY_MAP)
    for name in sorted({*was, *found}):
        if name not in found:
            yield Difference("drift.key_missing", name, "an API key", ABSENT, trace=trace)
        elif name not in was:
            fix = f"kimi-prov key INVENTORY --remove {name}"
            yield Difference("drift.key_added", name, ABSENT, "an API key", fix, trace)
        elif was[name] is not None and was[name] != found[name]:
            fix = "kimi-prov key INVENTORY --rotate" if name == "operator" else APPLY
            yield Difference("drift.key_changed", name, "its key", "another key", fix, trace)


def compare_certificate(applied: Row, now: Row) -> Iterator[Difference]:
    """Compare the certificate that clients see."""
    was, found = applied.get("certificate_sha256"), now.get("certificate_sha256")
    if was and was != found:
        observed = f"sha256 {found[:16]}" if found else ABSENT
        trace = Trace(path=layout.TLS_CERTIFICATE, gone=not found)
        yield Difference(
            "drift.certificate", layout.TLS_CERTIFICATE, f"sha256 {was[:16]}", observed, trace=trace
        )


def compare_processes(rows: Sequence[Row]) -> Iterator[Difference]:
    """Compare each engine's command line with its unit's, and the unit that it was started with.

    The words before python in a unit are not in the process: numactl has replaced itself by python.
    """
    for row in rows:
        runs, would = list(row["runs"]), list(row["would"])
        fix = f"systemctl restart --no-block {row['unit']}"
        trace = Trace(at=row["started"], words=("systemctl", row["unit"].rpartition(".")[0]))
        if would and (not runs or would[-len(runs) :] != runs):
            told = _compare_command_lines(would, runs)
            yield Difference("drift.process", row["unit"], told[0], told[1], fix, trace)
        elif row["stamp"] is not None and row["stamp"] != row["applied_stamp"]:
            yield Difference(
                "drift.process",
                row["unit"],
                f"started with the unit {row['applied_stamp']}",
                f"started with the unit {row['stamp'] or 'of somebody else'}",
                fix,
                trace,
            )


def _compare_command_lines(would: Sequence[str], runs: Sequence[str]) -> tuple[str, str]:
    """Return the words that only one of two command lines has."""
    would, runs = hide_secrets(would), hide_secrets(runs)
    gone = [word for word in would if word not in runs]
    new = [word for word in runs if word not in would]
    # A process does not show what stands before the engine's python.
    gone = gone[gone.index(runs[0]) + 1 :] if runs and runs[0] in gone else gone
    return _format_words(gone), _format_words(new)


def _format_words(words: Sequence[str]) -> str:
    return " ".join(words)[:300] or "the same words in another order"


def compare_listeners(rows: Sequence[Row]) -> Iterator[Difference]:
    """Return a difference for each process on our ports that is in none of our units."""
    for row in rows:
        yield Difference(
            "drift.port",
            f"port {row['port']}",
            f"{row['unit']} listens",
            f"process {row['pid']} ({row['name']}) listens",
            f"kill {row['pid']} && systemctl restart --no-block {row['unit']}",
        )


def compare_proxy(state: Row, known: Mapping[str, str]) -> Iterator[Difference]:
    """Compare what the proxy has loaded with its files; `known`: the record's keys."""
    fix = f"systemctl reload {unit_names.PROXY}"
    if state["loaded"] != state["wanted"]:
        yield Difference(
            "drift.process",
            unit_names.PROXY,
            f"runs what its files say ({state['wanted']})",
            f"runs {state['loaded'] or 'a configuration of somebody else'}",
            APPLY,
        )
    for name in state["only_loaded"]:
        yield Difference(
            "drift.key_added", name, ABSENT, "an API key that only the running proxy has", fix
        )
    # A key that somebody wrote into the file is reported already.
    for name in (name for name in state["only_in_file"] if name in known):
        yield Difference("drift.key_missing", name, "an API key", "not in the running proxy", fix)
