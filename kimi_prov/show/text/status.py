"""The status document as text."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from kimi_prov.contract.durations import describe_duration, format_duration
from kimi_prov.contract.sizes import format_bytes, is_nearly_full
from kimi_prov.show.text import activity
from kimi_prov.show.text.formats import describe_engine, describe_uptime
from kimi_prov.show.text.lines import format_entry, format_hosts, format_stand_ins
from kimi_prov.show.text.update import format_pending

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kimi_prov.contract.documents.findings import Finding
    from kimi_prov.contract.documents.status.gateway import GatewayStatus
    from kimi_prov.contract.documents.status.host import (
        AppliedStatus,
        CertificateStatus,
        DriftStatus,
    )
    from kimi_prov.contract.documents.status.lifecycle import (
        IdleStatus,
        KeptSessions,
        PaidStatus,
        RestedStatus,
        RestStatus,
        StartEstimate,
    )
    from kimi_prov.contract.documents.status.machine import (
        GroupStatus,
        PortStatus,
        PreparedStatus,
        VersionsStatus,
    )
    from kimi_prov.contract.documents.status.monitor import MetricsStatus, MonitorStatus


def format_text(document: Mapping[str, Any]) -> str:
    """Write the status document: for each host what runs, its sources, and how full disks are."""
    return format_hosts(document, lambda host: [*_format_host(host), *format_stand_ins(host)])


def _format_host(host: Mapping[str, Any]) -> list[str]:
    if "monitor" in host:
        return _format_monitor(host["monitor"])
    if "gateway" in host:
        return [
            *_format_applied(host.get("applied")),
            *_format_gateway(host["gateway"]),
            *_format_web_ui(host),
            *_format_updates(host),
            *_format_drift(host.get("drift")),
        ]
    if not host.get("provisioned"):
        return []
    return [
        *_format_findings(host.get("findings")),
        *_format_served(host),
        *activity.format_lines(host),
        *_format_web_ui(host),
        *_format_units(host),
        *_format_space(host),
    ]


def _format_findings(rows: Sequence[Finding] | None) -> list[str]:
    """Write what begins to fail; an earlier version reports none."""
    lines: list[str] = []
    for row in rows or ():
        lines += format_entry("HARDWARE", f"{row['title']} [{row['id']}]")
        lines += format_entry("  seen", str(row["observed"]))
        lines += format_entry("  fix", row["fix"] or "")
    return lines


def _format_served(host: Mapping[str, Any]) -> list[str]:
    model, versions, port = host["model"], host["versions"], host["port"]
    engine = {
        "name": versions["engine"],
        "version": versions["engine_version"],
        "variant": versions["engine_variant"],
    }
    verified = "weights verified" if model["weights_verified"] else "weights not verified"
    return [
        *format_entry(
            "model",
            f"{model['name']} ({model['revision']}), {format_bytes(model['bytes'])}, {verified}",
        ),
        *format_entry("served as", ", ".join(model["served_names"])),
        *format_entry("from", model["directory"]),
        *format_entry("context", f"{model['context']} tokens"),
        *format_entry("engine", describe_engine(engine)),
        *format_entry("python", versions.get("engine_python")),
        *(
            format_entry("driver", versions["driver_failed"])
            if versions.get("driver_failed")
            else []
        ),
        *_format_applied(host.get("applied")),
        *_format_lifecycle(host.get("rest")),
        *_format_group(host.get("group")),
        *(_format_port(versions, port) if port else []),
    ]


def _format_applied(found: AppliedStatus | None) -> list[str]:
    """Write the applied entry of the history; an earlier version has none."""
    if not found:
        return []
    by = found["by"] or {}
    who = f" by {by.get('user')}@{by.get('control_host')}" if by else ""
    lines = format_entry(
        "applied", f"{found['at']}{who}, entry {found['entry']} of `kimi-prov history`"
    )
    state = found["switch"]
    if state:
        how = "UNDER WAY" if state.get("under_way") else "CUT: run `kimi-prov apply` again"
        lines += format_entry("  switch", f"to entry {state.get('entry')}, {how}")
    return lines


def _format_lifecycle(found: RestStatus | None) -> list[str]:
    """Write the times of the last start and the next one; an earlier version has none."""
    if not found:
        return []
    lines: list[str] = []
    if found["since"]:
        cut = found["requests_cut"]
        lines += format_entry("stopped", f"since {found['since']}; {cut or 'no'} requests were cut")
    if found["failed"]:
        lines += format_entry("woken", f"in vain: {found['failed']}")
    lines += (
        _format_idle(found["idle"])
        + _format_cost(found.get("paid"))
        + _format_savings(found["rested"])
    )
    if found["start"]:
        lines += format_entry("a start", _describe_start(found["start"]))
    last = found["last_start"]
    if last and not found["start"]:
        place = f", weights in the {last['held']}" if last["held"] != "unknown" else ""
        lines += format_entry(
            "last start", f"{format_duration(last['seconds'])}{place}, at {last['at']}"
        )
    woken = [f"{format_duration(row['seconds'])} ({row['held']})" for row in found["first_answers"]]
    if woken:
        lines += format_entry("wakes in", f"{', '.join(woken)} from the first request to an answer")
    return lines


def _format_idle(found: IdleStatus | None) -> list[str]:
    """Write when the machine will stop because it is idle."""
    if not found:
        return []
    left = found["asleep_in_seconds"]
    words = {"stop": "asleep", "sleep": "asleep", "poweroff": "off", "hook": "hook"}
    if left is not None:
        told = f"{words[found['action']]} in {describe_duration(left)}, if nobody asks until then"
    else:
        told = (
            f"after {describe_duration(found['after_seconds'])} without a request; "
            f"{found['why_not']}"
        )
    failed = f"; the last time it failed: {found['failed']}" if found["failed"] else ""
    return format_entry("rests", told + failed)


def _format_cost(found: PaidStatus | None) -> list[str]:
    """Write the cost of this session, its budget, and the cost of earlier sessions."""
    if not found:
        return []
    row, budget = found["session"], found["budget_usd"]
    against = ""
    if budget:
        share = 100 * row["usd"] / budget
        against = f", {share:.0f} % of a budget of ${budget:.2f}"
        against += "; USED UP" if share >= 100 else "; NEARLY USED UP" if share >= 80 else ""
    lines = format_entry(
        "cost",
        f"${row['usd']:.2f} since {row['since']} ({row['hours']:g} h at ${found['usd_hour']:.2f}): "
        f"starts ${row['starting_usd']:.2f}, answers ${row['serving_usd']:.2f}, idling "
        f"${row['idle_usd']:.2f}{against}",
    )
    before = found["before"]
    if before:
        total, last = sum(session["usd"] for session in before), before[-1]
        lines += format_entry(
            "before",
            f"{len(before)} session{'s' if len(before) != 1 else ''}, ${total:.2f}; the last "
            f"${last['usd']:.2f} in {last['hours']:g} h until {last['until']}",
        )
    return lines + _format_session_history(found.get("kept"))


def _format_session_history(found: KeptSessions | None) -> list[str]:
    """Write where the history of sessions is, and whether it outlives the machine."""
    if not found:
        return []
    if found["in"] is None:
        return format_entry("history", "ends with this machine: its weights come from no bucket")
    if found["failed"]:
        last = f"; last kept {found['at']}" if found["at"] else ""
        fix = f"; {found['fix']}" if found["fix"] else ""
        return format_entry("history", f"NOT KEPT in {found['in']}: {found['failed']}{fix}{last}")
    told = f"kept {found['at']}" if found["at"] else "not kept yet"
    return format_entry("history", f"{told} in {found['in']}: kimi-prov sessions {found['in']}")


def _format_savings(found: RestedStatus) -> list[str]:
    """Write how long the machine was stopped in all, and the most that it saved."""
    if not found["times"]:
        return []
    times = f"{found['times']} time{'s' if found['times'] != 1 else ''}"
    kwh, usd = found["kwh_at_most"], found["usd_at_most"]
    known = kwh is not None and usd is not None
    saved = f": at most {kwh:g} kWh and ${usd:.2f} saved" if known else ""
    return format_entry("rested", f"{times}, {found['hours']:g} h{saved}")


def _describe_start(found: StartEstimate) -> str:
    if found["seconds"] is None:
        return str(found["basis"])
    return f"takes about {format_duration(found['seconds'])}: {found['basis']}"


def _format_group(group: GroupStatus | None) -> list[str]:
    """Write the hosts that serve the model together; an earlier version has none."""
    if not group:
        return []
    hosts = ", ".join(f"{row['host']} ({row['address']})" for row in group["members"])
    place = "the head" if group["rank"] == 0 else f"rank {group['rank']}"
    failed = group["failed_rounds"]
    count = f"; {failed} starts in a row failed though all were there" if failed else ""
    return [
        *format_entry("group", f"{group['name']}: {hosts}; this host is {place}"),
        *format_entry("  is", f"{group['phase']}: {group['said']}{count}"),
    ]


def _format_port(versions: VersionsStatus, port: PortStatus) -> list[str]:
    guard = "guarded" if port["guarded"] else "NOT GUARDED by nftables"
    networks = ", ".join(port["allowed_networks"]) or "the machine itself alone"
    waiting = "; the operator's is waiting: `kimi-prov key`" if port["key_not_shown_yet"] else ""
    return [
        *format_entry("proxy", f"HAProxy {versions['proxy']}"),
        *format_entry("port", f"{port['number']}, {guard}, for {networks}"),
        *_format_certificate(port.get("certificate")),
        *format_entry("keys", ", ".join(port["keys"]) + waiting),
        *[
            line
            for engine in port["engines"]
            for line in format_entry(
                engine["name"], f"{engine['status']}, {engine['requests']} requests"
            )
        ],
    ]


def _format_web_ui(host: Mapping[str, Any]) -> list[str]:
    web = host.get("web")
    # An earlier version says less of it.
    if not web or not {"planned_version", "version", "port", "data_bytes"} <= web.keys():
        return []
    runs = "answers" if web.get("answers") else "DOES NOT ANSWER"
    planned = web["planned_version"]
    version = web["version"] or "not installed"
    other = "" if version == planned else f", {planned} is planned"
    closed = "sign-up open" if web.get("signup") else "sign-up closed"
    waiting = "; its administrator's password is waiting: `kimi-prov key`"
    return [
        *format_entry(
            "web UI", f"{web.get('name')} {version}{other}, {runs} on {web['port']}, {closed}"
        ),
        *format_entry(
            "  keeps",
            f"{format_bytes(web['data_bytes'])} in {web.get('data')}"
            + (waiting if web.get("admin_not_shown_yet") else ""),
        ),
    ]


def _format_certificate(found: CertificateStatus | None) -> list[str]:
    """Write the certificate's state; a machine of an earlier version has none."""
    if not found:
        return []
    names = " for " + ", ".join(found["names"]) if found["names"] else ""
    lines = format_entry("certificate", f"{found['mode']}{names}: {found['detail']}")
    if found["state"] != "ok":
        lines += [
            *format_entry("", f"{found['state'].upper()}"),
            *format_entry("fix", found["fix"] or ""),
        ]
    return lines


def _format_units(host: Mapping[str, Any]) -> list[str]:
    lines: list[str] = []
    for name, unit in sorted(host["units"].items()):
        up = describe_uptime(unit["uptime_seconds"])
        again = f", restarted {unit['restarts']} times" if unit["restarts"] else ""
        lines += format_entry(name.removesuffix(".service"), f"{unit['state']}{up}{again}")
    return lines


def _format_prepared(kept: PreparedStatus | None) -> list[str]:
    if not kept or not kept["planned"]:
        return []
    aside = f", {kept['put_aside']} DAMAGED put aside" if kept["put_aside"] else ""
    older = f", {kept['older']} of an older key (clean)" if kept.get("older") else ""
    files = f"{kept['files']} files, {format_bytes(kept['bytes'])}{older}{aside}"
    return format_entry(
        "prepared weights", files if kept["files"] or older or aside else "none yet"
    )


def _format_space(host: Mapping[str, Any]) -> list[str]:
    memory, ram = host["memory"], host["ram_disk"]
    mounted = ram["mounted"]
    disk = (
        f"{format_bytes(mounted['used_bytes'])} of {format_bytes(mounted['size_bytes'])} used"
        if mounted
        else "none"
    )
    available, total = memory["host_available_bytes"], memory["host_total_bytes"]
    free = f"{format_bytes(available)} of {format_bytes(total)} available"
    lines = [
        *format_entry("RAM disk", f"{disk}: {ram['reason']}"),
        *_format_prepared(host.get("prepared_weights")),
        *format_entry("memory", free),
    ]
    for row in host.get("disks") or ():
        full = ", FULL" if is_nearly_full(row["free_bytes"], row["size_bytes"]) else ""
        told = f"{format_bytes(row['free_bytes'])} of {format_bytes(row['size_bytes'])} free{full}"
        lines += format_entry("disk", f"{row['path']}: {told}")
    for engine in memory["engines"]:
        lines += format_entry(
            f"  engine {engine['index']}", f"{format_bytes(engine['resident_bytes'])} resident"
        )
    for placed in host["placement"]:
        nodes = ", ".join(
            f"node {node} {format_bytes(count)}"
            for node, count in sorted(placed["bytes_by_node"].items())
        )
        cpus = " and ".join(placed["cpus"]) or "none"
        policy = f", policy {placed['policies'][0]}" if placed["policies"] else ""
        huge = placed["huge_bytes"]
        lines += format_entry(
            f"  placed {placed['index']}",
            f"CPUs {cpus}; {nodes or 'no NUMA figures'}{policy}; {placed['threads']} threads"
            + (f"; {format_bytes(huge)} in huge pages" if huge is not None else ""),
        )
    return [
        *lines,
        *format_entry("machine up", format_duration(host["uptime_seconds"])),
        *_format_updates(host),
        *_format_drift(host.get("drift")),
        *_format_metrics(host.get("metrics")),
    ]


def _format_updates(host: Mapping[str, Any]) -> list[str]:
    """Write the updates that wait; an earlier version has none."""
    found = host.get("updates")
    if host.get("updates_error"):
        told = f"not known: {host['updates_error']} (see there: apt-get --simulate dist-upgrade)"
        return format_entry("updates", told)
    if not found:
        return []
    age = found["lists_age_seconds"]
    seen = (
        f"by lists {format_duration(age)} old" if age is not None else "there are no package lists"
    )
    kinds = Counter(row["kind"] for row in found["waiting"])
    counted = [f"{count} {kind}" for kind, count in sorted(kinds.items())]
    others = [f"{found['others']} others"] if found["others"] else []
    lines = format_entry("updates", f"{', '.join(counted + others) or 'none'} waiting, {seen}")
    # There may be dozens of security packages: the document has their names.
    for row in (row for row in found["waiting"] if row["kind"] != "security"):
        held = ", held" if row["held"] else ""
        lines += format_entry(
            f"  {row['kind']}", f"{row['name']} {row['installed']} to {row['candidate']}{held}"
        )
    return lines + format_pending(found)


def _format_metrics(found: MetricsStatus | None) -> list[str]:
    """Write where metrics are read, and whether the machine monitors itself."""
    if not found:
        return []
    state = "open" if found["listening"] else "not open"
    who = ", ".join(found["allowed_networks"]) or "this machine alone"
    written = f"written {found['written_at']}" if found["written_at"] else "nothing written yet"
    lines = format_entry("metrics", f"port {found['port']} {state}, for {who}; {written}")
    return lines + _format_monitor(found["monitor"])


def _format_monitor(found: MonitorStatus | None) -> list[str]:
    """Write the targets of a monitoring host, and its use of the disk."""
    if not found:
        return []
    lines = format_entry(
        "monitor",
        f"Prometheus {found['prometheus']} on {found['listen']} port {found['port']}, "
        f"Alertmanager {found['alertmanager']}",
    )
    if not found["answers"]:
        return lines
    down = f", {found['targets_down']} DOWN" if found["targets_down"] else ""
    lines += format_entry("  targets", f"{found['targets']}{down}")
    for row in found["down"]:
        instance = f" {row['engine']}" if row["engine"] else ""
        lines += format_entry("  down", f"{row['host']}: {row['job']}{instance}")
    lines += format_entry("  alerts", f"{found['alerts_firing'] or 'none'} firing")
    for alert in found["alerts"]:
        lines += format_entry(
            f"  {alert['severity']}", f"{alert['summary']} ({alert['name']}, {alert['since']})"
        )
    limit = found["series_limit_bytes"]
    most = f" of at most {format_bytes(limit)}" if limit else ""
    return lines + format_entry("  series", f"{format_bytes(found['series_bytes'])}{most}")


def _format_gateway(found: GatewayStatus) -> list[str]:
    """Write the hosts to which a gateway sends, and the address at which it answers."""
    who = ", ".join(found["allowed_networks"]) or "this machine alone"
    state = "open" if found["listening"] else "not open"
    lines = format_entry("port", f"{found['port']} {state}, for {who}")
    lines += format_entry("certificate", found["certificate"]["detail"])
    if found["address"]:
        has = "here" if found["has_address"] else f"at {' or '.join(found['peers']) or 'no one'}"
        lines += format_entry("address", f"{found['address']}, now {has}")
    for row in found["hosts"]:
        under_way = f"{row['requests']} of {row['requests_at_once']} requests"
        shown = row["state"] if row["state"] == "up" else row["state"].upper()
        lines += format_entry(f"  {row['host']}", f"{shown}, {under_way}")
    for text in found.get("warnings") or ():
        lines += format_entry("  warning", text)
    return lines + format_entry("up for", describe_duration(found["uptime_seconds"]))


def _format_drift(found: DriftStatus | None) -> list[str]:
    """Write the timer's last result; nothing without a timer or in an earlier version."""
    if not found:
        return []
    when = f", looked at {found['looked_at']}" if found["looked_at"] else ""
    stopped = "" if found["timer"] == "active" else f"; the timer is {found['timer']}"
    lines = format_entry("drift", f"{found['detail']}{when}{stopped}")
    if found["differences"] or found["complete"] is False:
        lines += format_entry("", "kimi-prov drift shows what, since when and through what")
    return lines
