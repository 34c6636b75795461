"""`drift [--weights] [--keep]`: what differs from what was applied, since when and by what.

Changes nothing. `--weights` reads every byte of the weights again; the timer uses `--keep`: the
result is stored for `status`.
"""

from __future__ import annotations

import calendar
import os
import time
from functools import partial
from typing import TYPE_CHECKING, Any, Callable

from kimi_prov.contract import paths as layout
from kimi_prov.contract import unit_names
from kimi_prov.contract.errors import HostError, describe_error
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.drift import causes, changed_lines, compare, observe, weights
from kimi_prov.on_host.drift.difference import ABSENT, APPLY, Difference, Trace
from kimi_prov.on_host.endpoint import certificate
from kimi_prov.on_host.history import applied as record
from kimi_prov.on_host.kt import convert
from kimi_prov.on_host.lifecycle import status
from kimi_prov.on_host.system import apply_lock, environments, plans
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.files import make_directory, write_json
from kimi_prov.on_host.system.machine import Machine

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kimi_prov.contract.documents.answers import DriftAnswer, ToldDifference, ToldUnseen
    from kimi_prov.contract.documents.plan import Plan
    from kimi_prov.on_host.drift.causes import Cause, Logs

_FAULTS = (OSError, HostError, ValueError, LookupError, TypeError, AttributeError)
_FORM = "%Y-%m-%dT%H:%M:%SZ"
# The names of the parts in the message about a part that failed.
_PARTS = {
    "files": "files",
    "links": "links",
    "mounts": "mounts",
    "users": "users",
    "members": "groups",
    "packages": "packages",
    "driver": "the driver",
    "kernel": "settings of the kernel",
    "firewall": "the firewall",
    "key_digests": "API keys",
    "certificate_sha256": "the certificate",
}
# The state of a unit after a stop on purpose.
_BY_A_STOP = ("drift.unit_stopped", "drift.unit_disabled")


class Seen:
    """Collects differences, and the parts that could not be read."""

    def __init__(self) -> None:
        self.differences: list[Difference] = []
        self.unseen: list[ToldUnseen] = []
        self.weights_from: dict[str, str] = {}

    def run_part(self, what: str, work: Callable[[], Any]) -> Any:  # noqa: ANN401  (what the part gives)
        """Run one part; return None where it failed, which is reported."""
        try:
            return work()
        except _FAULTS as error:
            self.add_unseen(what, describe_error(error))
            return None

    def add_unseen(self, what: str, why: str) -> None:
        """Record that a part could not be read."""
        self.unseen.append({"what": what, "why": why, "fix": None})


def collect(paths: Paths, *, read_weights: bool = False) -> DriftAnswer:
    """Return the drift of this machine; `complete` when no part failed."""
    was = record.read(paths)
    if os.geteuid() != 0:
        return _build_unknown("only root may read all of it", "log in as root, or with sudo")
    if not was:
        there = paths.plan.exists()
        why = "an earlier version applied it and kept no record" if there else "nothing was applied"
        return _build_unknown(why, APPLY, provisioned=there)
    seen = Seen()
    if apply_lock.find_holder():
        seen.add_unseen("what is being applied", "an apply is under way")
    plan = plans.read_plan(paths.plan)
    failed: dict[str, str] = {}
    now = record.observe(paths, was, failed)
    for name, why in failed.items():
        if name in _PARTS:
            seen.add_unseen(_PARTS[name], why)
    now = {**now, **{name: was.get(name) for name in failed}}
    if now.get("packages") is None and was.get("packages"):
        seen.add_unseen("packages", "dpkg's list of packages cannot be read")
        now["packages"] = was["packages"]
    _compare_firewall(seen, was, now)
    seen.differences += changed_lines.add_lines(paths, was, compare.list_differences(was, now))
    _compare_served_certificate(seen, paths, was)
    found = _compare_units(seen, was, status.list_resting_units(paths, plan))
    if found is not None:
        _compare_processes(seen, paths, was, plan, found)
    _compare_environments(seen, was.get("engine"), plan.get("web"))
    _compare_weights(seen, paths, was, read=read_weights)
    rows = _add_causes(paths, seen, was, found or {})
    return {
        "ok": not rows and not seen.unseen,
        "complete": not seen.unseen,
        "provisioned": True,
        "detail": _describe_result(len(rows), seen.unseen),
        "looked_at": time.strftime(_FORM, time.gmtime()),
        "applied": {
            "entry": was.get("entry"),
            "at": was.get("at"),
            "by": was.get("by"),
            "inventory": was.get("inventory"),
            "kimi_prov": was.get("kimi_prov"),
        },
        "weights_read": read_weights,
        "weights_read_from": seen.weights_from,
        "drift": rows,
        "unseen": seen.unseen,
        "plan": plan,
    }


def _build_unknown(why: str, fix: str, *, provisioned: bool = False) -> DriftAnswer:
    return {
        "ok": False,
        "complete": False,
        "provisioned": provisioned,
        "detail": f"not known: {why}",
        "looked_at": time.strftime(_FORM, time.gmtime()),
        "applied": None,
        "weights_read": False,
        "weights_read_from": {},
        "drift": [],
        "unseen": [{"what": "what was applied", "why": why, "fix": fix}],
        "plan": None,
    }


def _describe_result(count: int, unseen: list[ToldUnseen]) -> str:
    told = f"{count} difference{'s' if count != 1 else ''}" if count else "no drift"
    if not unseen:
        return told
    names = ", ".join(row["what"] for row in unseen)
    return f"{told if count else 'no drift seen'}; could not read {names}"


def _compare_firewall(seen: Seen, was: Mapping[str, Any], now: dict[str, Any]) -> None:
    before, after = was.get("firewall") or {}, now.get("firewall") or {}
    if before.get("table_sha256") and not after.get("table_sha256"):
        nft = observe.can_list_tables()
        if not nft:
            seen.add_unseen("the firewall", "nft lists no tables here")
            now["firewall"] = before
    rules = before.get("rules") or []
    missing = seen.run_part("rules of ufw or firewalld", lambda: observe.list_missing_rules(rules))
    for rule in missing or ():
        subject = f"{rule['manager']}: {rule.get('from') or rule.get('rule')}"
        trace = Trace(words=(rule["manager"].replace("firewalld", "firewall-cmd"),))
        seen.differences.append(
            Difference(
                "drift.firewall_rule", subject, "the port is open to it", ABSENT, trace=trace
            )
        )


def _compare_served_certificate(seen: Seen, paths: Paths, was: Mapping[str, Any]) -> None:
    """Compare the file that the proxy loads: clients see its certificate, too."""
    wanted = was.get("certificate_sha256")
    found = seen.run_part("the certificate", lambda: observe.read_proxy_fingerprint(paths))
    if wanted and found is not None and found != wanted:
        seen.differences.append(
            Difference(
                "drift.certificate",
                layout.TLS_PEM,
                f"sha256 {wanted[:16]}",
                f"sha256 {found[:16]}" if found else ABSENT,
                trace=Trace(path=layout.TLS_PEM, gone=not found),
            )
        )


def _compare_units(
    seen: Seen, was: Mapping[str, Any], rests: Sequence[str]
) -> dict[str, dict[str, Any]] | None:
    """Compare the units; `rests`: those that were stopped on purpose."""
    rows: Mapping[str, Any] = was.get("units") or {}
    names = [*rows, *(row["unit"] for row in was.get("instances") or ())]
    found: dict[str, dict[str, Any]] | None = seen.run_part(
        "units", lambda: observe.read_units({*names})
    )
    if found is not None:
        # The link that masks a unit is among our units' files.
        masks = {row["mask"] for row in found.values()}
        seen.differences = [row for row in seen.differences if row.subject not in masks]
        stopped = {("drift.mount", layout.RAM)} if unit_names.RAM_MOUNT in rests else set()
        stopped |= {(id_, name) for name in rests for id_ in _BY_A_STOP}
        seen.differences += compare.compare_units(rows, found)
        seen.differences = [row for row in seen.differences if (row.id, row.subject) not in stopped]
    return found


def _compare_processes(
    seen: Seen,
    paths: Paths,
    was: Mapping[str, Any],
    plan: Plan,
    found: Mapping[str, Mapping[str, Any]],
) -> None:
    running = seen.run_part(
        "the engine's processes", lambda: observe.list_processes(paths, was, found)
    )
    seen.differences += compare.compare_processes(running or ())
    others = seen.run_part("who listens on the ports", lambda: observe.list_listeners(plan, found))
    seen.differences += compare.compare_listeners(others or ())
    if (found.get(unit_names.PROXY) or {}).get("state") == "active":
        state = seen.run_part("the running proxy", lambda: observe.read_proxy_state(paths))
        seen.differences += (
            compare.compare_proxy(state, was.get("key_digests") or {}) if state else ()
        )


def _compare_environments(seen: Seen, *users: Any) -> None:  # noqa: ANN401 (a part of a record)
    for row in users:
        folder = row and row.get("env_dir")
        fault = folder and seen.run_part(
            f"the environment {folder}", partial(environments.find_fault, Machine(), folder)
        )
        if folder and fault:
            trace = Trace(path=folder)
            seen.differences.append(
                Difference("drift.environment", folder, "as installed", fault, trace=trace)
            )


def _compare_weights(seen: Seen, paths: Paths, was: Mapping[str, Any], *, read: bool) -> None:
    before: Mapping[str, Any] = was.get("weights") or {}

    def compared() -> list[Difference]:
        found = list(weights.list_differences(before, read=read, told=seen.weights_from))
        if before.get("prepared_dir"):
            found.extend(weights.list_prepared_differences(paths.locate(before["prepared_dir"])))
        if paths.locate(layout.CONVERT).exists():
            config = convert.Config.load(str(paths.locate(layout.CONVERT)))
            if not convert.read_verified(config):
                found.append(
                    Difference("drift.weights", config.directory, "converted experts", "not whole")
                )
        return found

    if before:
        seen.differences += seen.run_part("weights", compared) or []


def _add_causes(
    paths: Paths, seen: Seen, was: Mapping[str, Any], found: Mapping[str, Mapping[str, Any]]
) -> list[ToldDifference]:
    """Add causes to the differences."""
    if not seen.differences:
        return []
    try:
        since = calendar.timegm(time.strptime(str(was.get("at")), _FORM))
    except ValueError:
        since = 0
    logs = observe.read_logs(paths, since)
    return [_build_row(row, find_cause(row, logs, found, since)) for row in seen.differences]


def find_cause(
    row: Difference, logs: Logs, found: Mapping[str, Mapping[str, Any]], since: int
) -> Cause:
    """Find since when a difference exists and by what; empty where no source says it."""
    trace = row.trace
    if trace.package:
        return causes.find_package_cause(trace.package, logs)
    if trace.account:
        return causes.find_account_cause(trace.account, logs)
    names = trace.words or (() if trace.path is None else (trace.path,))
    if trace.path:
        place = trace.path.rpartition("/")[0] if trace.gone else trace.path
        at = observe.find_change_time(place)
        if at is not None and at >= since:
            basis = "its folder's last change" if trace.gone else "the file's change time"
            return causes.find_cause_at(at, basis, names, logs)
    at = trace.at or (found.get(trace.unit or "") or {}).get("since")
    if at is not None and at >= since:
        return causes.find_cause_at(at, "systemd", names, logs)
    if row.id == "drift.kernel" and (files := observe.list_sysctl_files(row.subject)):
        last = files[-1]
        return causes.Cause(
            observe.find_change_time(last), "the file's change time", f"{last} sets it"
        )
    return causes.find_command_cause(names, logs, since)


def _build_row(row: Difference, why: Cause) -> ToldDifference:
    return {
        "id": row.id,
        "subject": row.subject,
        "expected": row.expected,
        "observed": row.observed,
        "since": certificate.format_time(why.since) if why.since is not None else None,
        "since_from": why.basis,
        "by": why.by,
        "fix": row.fix,
    }


def save(paths: Paths, document: Mapping[str, Any]) -> None:
    """Store a result for `status`: counts by finding, never the values."""
    counts: dict[str, int] = {}
    for row in document["drift"]:
        counts[row["id"]] = counts.get(row["id"], 0) + 1
    make_directory(paths.state, 0o700)
    kept = {
        "schema": "kimi-prov/drift-state/v1",
        "looked_at": document["looked_at"],
        "complete": document["complete"],
        "detail": document["detail"],
        "differences": len(document["drift"]),
        "findings": counts,
    }
    write_json(str(paths.drift_state), kept, mode=0o600)


def main(argv: list[str]) -> int:
    """Answer with the result of `collect`."""
    paths = Paths()
    read = "--weights" in argv
    if "--keep" in argv and apply_lock.find_holder():
        print("an apply is under way: nothing is compared")
        return 0
    if read:
        weights.end_with_the_reader()
    document = collect(paths, read_weights=read)
    if "--keep" in argv:
        save(paths, document)
        print(document["detail"])
        return 0
    return answer(document)
