"""Opens the port in ufw or firewalld where one is active, and finds drops elsewhere.

A rule is recorded in `/var/lib/kimi/state/firewall.json` before it is added, so that it can be
removed after an interrupted run. A rule that existed before is not ours.

Decides: the firewall (its rules).
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import unit_names
from kimi_prov.contract.errors import HostError
from kimi_prov.contract.paths import FIREWALL, FIREWALL_STATE, FIREWALL_TABLE, Paths
from kimi_prov.on_host.system import applied_record, kept_state, units
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.files import make_directory, read_text, write_atomic
from kimi_prov.on_host.system.process import NOT_FOUND, run

if TYPE_CHECKING:
    import subprocess

    from kimi_prov.contract.documents.answers import FirewallAnswer
    from kimi_prov.contract.documents.findings import ToldFinding

COMMENT = "kimi-prov"
_CHALLENGE = re.compile(r"(\n\tset challenge \{[^}]*?)\n\t\telements = \{[^}]*\}")
_CHOSEN = "/proc/sys/net/ipv4/ip_local_port_range"
# VRRP, by which gateways agree which of them has the shared address.
VRRP = "vrrp"
Rule = dict[str, str]


def build_rich_rule(network: str, port: int | str | None = None) -> str:
    """Return the rich rule with which firewalld opens a port, or a range, to this network.

    None: VRRP between gateways, which has no port.
    """
    family = f"ipv{ipaddress.ip_network(network, strict=False).version}"
    source = f'source address="{network}"'
    what = f'port port="{port}" protocol="tcp"' if port else f'protocol value="{VRRP}"'
    return f'rule family="{family}" {source} {what} accept'


def build_rules(settings: dict[str, Any], zones: list[str]) -> list[Rule]:
    """Return the rules that ufw or firewalld needs for the plan's `firewall`."""
    allowed = [*settings["ipv4"], *settings["ipv6"]]
    own = settings.get("metrics") or {}
    networks = [
        (net, port) for port in settings["ports"] if port != own.get("port") for net in allowed
    ]
    networks += [(net, own["port"]) for net in (*own.get("ipv4", ()), *own.get("ipv6", ()))]
    if settings.get("challenge_port"):
        # Our own table keeps it closed except while an order is answered, and comes before theirs.
        everywhere = ["0.0.0.0/0", *(["::/0"] if settings.get("knows_ipv6", True) else [])]
        networks += [(net, settings["challenge_port"]) for net in everywhere]
    peers = [*settings.get("peers_ipv4", ()), *settings.get("peers_ipv6", ())]
    networks += [(peer, ports) for ports in settings.get("peer_ports", ()) for peer in peers]
    near = settings.get("neighbours") or {}
    networks += [(net, near["port"]) for net in (*near.get("ipv4", ()), *near.get("ipv6", ()))]
    # Gateways that do not receive each other's VRRP would both take the shared address.
    others = settings.get("gateways") or {}
    networks += [
        (net, port)
        for port in (others.get("port"), others.get("page_port"))
        if port
        for net in (*others["ipv4"], *others["ipv6"])
    ]
    gateways = [*others.get("ipv4", ()), *others.get("ipv6", ())]
    if settings["manager"] == "ufw":
        return [
            *(
                {"manager": "ufw", "from": net, "port": str(port).replace("-", ":")}
                for net, port in networks
            ),
            *({"manager": "ufw", "from": net, "protocol": VRRP} for net in gateways),
        ]
    if settings["manager"] == "firewalld":
        rules = [build_rich_rule(net, port) for net, port in networks]
        rules += [build_rich_rule(net) for net in gateways]
        return [
            {"manager": "firewalld", "zone": zone, "rule": rule} for zone in zones for rule in rules
        ]
    return []


def add_ephemeral_ports(settings: dict[str, Any]) -> dict[str, Any]:
    """Add the kernel's range of ports to those of the peers, where there are peers.

    Gloo and NCCL listen on ports that the kernel chooses, whatever ports were named, and tell their
    peers; our table lets that pass, but a manager that drops by default does not.
    """
    low, _, high = read_text(_CHOSEN).strip().partition("\t")
    if not settings.get("peer_ports") or not high:
        return settings
    return {**settings, "peer_ports": [*settings["peer_ports"], f"{low}-{high}"]}


def build_ufw_pattern(network: str, port: str | None = None) -> re.Pattern[str]:
    """Return the line of `ufw status` for this network and port, as ufw normalises both.

    Without a port: VRRP, whose name ufw writes behind the network.
    """
    net = ipaddress.ip_network(network, strict=False)
    source, label = str(net), f"{port}/tcp" if port else "Anywhere"
    if net.prefixlen == 0:
        anywhere = " (v6)" if net.version == 6 else ""
        source, label = f"Anywhere{anywhere}", f"{label}{anywhere}"
    elif net.prefixlen == net.max_prefixlen:
        source = str(net.network_address)
    if port is None:
        source, label = f"{source}/{VRRP}", label + (" (v6)" if net.version == 6 else "")
    return re.compile(
        rf"^{re.escape(label)}\s+ALLOW(?: IN)?\s+{re.escape(source)}\s*(?:# (?P<comment>.*))?$"
    )


class Ufw:
    """The rules that ufw holds; our own rules have a comment."""

    def __init__(self) -> None:
        self.lines = [line.strip() for line in run("ufw", "status").stdout.splitlines()]

    def find_holder(self, rule: Rule) -> str:
        """Return `ours`, `theirs` or nothing."""
        pattern = build_ufw_pattern(rule["from"], rule.get("port"))
        for found in filter(None, map(pattern.match, self.lines)):
            return "ours" if found.group("comment") == COMMENT else "theirs"
        return ""

    @staticmethod
    def _spec(rule: Rule) -> list[str]:
        port = ["port", rule["port"]] if "port" in rule else []
        protocol = rule.get("protocol", "tcp")
        return ["allow", "proto", protocol, "from", rule["from"], "to", "any", *port]

    def add(self, rule: Rule) -> None:
        """Open the port to the network."""
        _require_success(
            run("ufw", *self._spec(rule), "comment", COMMENT), "ufw refused to open the port"
        )

    def remove(self, rule: Rule) -> None:
        """Remove our rule; a rule that is gone already is no error."""
        if self.find_holder(rule) == "ours":
            _require_success(
                run("ufw", "delete", *self._spec(rule)), "ufw refused to delete a rule"
            )


class Firewalld:
    """Rich rules in firewalld's zones, both the running and the permanent ones."""

    def find_holder(self, rule: Rule) -> str:
        """Return `there` where the permanent and the running rules both have it, else nothing."""
        both = [
            run(
                "firewall-cmd",
                *extra,
                "--zone=" + rule["zone"],
                "--query-rich-rule=" + rule["rule"],
            )
            for extra in (["--permanent"], [])
        ]
        if all(done.returncode == 0 for done in both):
            return "there"
        return ""

    def add(self, rule: Rule) -> None:
        """Open the port to the network, now and after a reload."""
        self._both(rule, "--add-rich-rule=", ("ALREADY_ENABLED",))

    def remove(self, rule: Rule) -> None:
        """Remove our rule; a rule that is gone already is no error."""
        self._both(rule, "--remove-rich-rule=", ("NOT_ENABLED", "INVALID_ZONE"))

    @staticmethod
    def _both(rule: Rule, option: str, harmless: tuple[str, ...]) -> None:
        for extra in (["--permanent"], []):
            done = run("firewall-cmd", *extra, "--zone=" + rule["zone"], option + rule["rule"])
            if done.returncode != 0 and not any(word in done.stderr for word in harmless):
                raise HostError("firewalld refused a rule: " + done.stderr.strip())


def _require_success(done: subprocess.CompletedProcess[str], what: str) -> None:
    if done.returncode != 0:
        raise HostError(f"{what}: {(done.stderr or done.stdout).strip()}")


def _has_ufw_ipv6() -> bool:
    try:
        with open("/etc/default/ufw", encoding="utf-8", errors="replace") as stream:
            return any(line.strip().lower() == "ipv6=yes" for line in stream)
    except FileNotFoundError:
        return False


def list_active_zones() -> list[str]:
    """Return firewalld's default zone and every zone that has an interface or a source."""
    default = run("firewall-cmd", "--get-default-zone").stdout.strip()
    active = [
        line.split()[0]
        for line in run("firewall-cmd", "--get-active-zones").stdout.splitlines()
        if line and not line[0].isspace()
    ]
    return sorted({zone for zone in [default, *active] if zone and zone != "trusted"})


def is_running(manager: str) -> bool:
    """Return whether ufw or firewalld is installed and active."""
    if manager == "ufw":
        return "Status: active" in run("ufw", "status").stdout
    return run("firewall-cmd", "--state").returncode == 0


def _make_manager(name: str) -> Ufw | Firewalld:
    return Ufw() if name == "ufw" else Firewalld()


def list_missing(rules: list[Rule]) -> list[Rule]:
    """Return our rules that the manager does not hold; all rules where it does not run.

    Raises HostError where it is unknown whether the manager runs: its rules may exist.
    """
    runs = {name: _is_reported_running(name) for name in {rule["manager"] for rule in rules}}
    return [
        rule
        for rule in rules
        if not runs[rule["manager"]] or not _make_manager(rule["manager"]).find_holder(rule)
    ]


# The exit status of firewall-cmd where the daemon does not run.
_AWAY = 252


def _is_reported_running(manager: str) -> bool:
    command = ("ufw", "status") if manager == "ufw" else ("firewall-cmd", "--state")
    done = run(*command)
    if done.returncode in (NOT_FOUND, _AWAY):
        return False
    if done.returncode != 0 or (manager == "ufw" and "Status: " not in done.stdout):
        said = " ".join((done.stderr or done.stdout).split())[:200]
        raise HostError(f"{' '.join(command)}: {said or done.returncode}")
    return manager != "ufw" or "Status: active" in done.stdout


def ensure(paths: Paths, settings: dict[str, Any], *, check: bool = False) -> FirewallAnswer:
    """Open the port to the listed networks in ufw or firewalld, and to no others.

    Without either (manager "nftables") only rules of earlier runs are removed.
    """
    state = kept_state.read(paths, FIREWALL_STATE)
    ours: list[Rule] = state.get("rules", [])
    zones = list_active_zones() if settings["manager"] == "firewalld" else []
    if settings["manager"] == "ufw" and not _has_ufw_ipv6():
        settings = {
            **settings,
            "ipv6": [],
            "metrics": {**settings["metrics"], "ipv6": []} if settings.get("metrics") else None,
            "peers_ipv6": [],
            **{
                key: {**settings[key], "ipv6": []}
                for key in ("neighbours", "gateways")
                if settings.get(key)
            },
            "knows_ipv6": False,
        }  # With IPV6=no ufw neither filters IPv6 nor takes such a rule.
    wanted = build_rules(add_ephemeral_ports(settings), zones)
    added, removed, kept = [], [], []
    for rule in wanted:
        held = _make_manager(rule["manager"]).find_holder(rule)
        if rule in ours or held == "ours":
            kept.append(rule)
        if not held:
            added.append(rule)
    removed = [rule for rule in ours if rule not in wanted]
    changed = bool(added or removed)
    if changed and not check:
        # The record is written first: a recorded rule may be missing, but no rule is unrecorded.
        record = [*kept, *[rule for rule in added if rule not in kept]]
        make_directory(paths.state, 0o700)
        created = [*state.get("zone_files", []), *_list_new_zone_files(zones)]
        _write(paths, [*record, *removed], created)
        for rule in added:
            _make_manager(rule["manager"]).add(rule)
        for rule in removed:
            if is_running(rule["manager"]):
                _make_manager(rule["manager"]).remove(rule)
        _write(paths, record, created)
    guarded = guard(paths, check=check)
    return {
        "changed": changed or guarded,
        "added": added,
        "removed": removed,
        "findings": _drop_findings(settings),
    }


def _drop_findings(settings: dict[str, Any]) -> list[ToldFinding]:
    """Return a finding for each chain whose drop our accept cannot undo."""
    ports = ", ".join(str(port) for port in [*settings["ports"], *settings.get("peer_ports", ())])
    return [
        {
            "id": "firewall.dropped_elsewhere",
            "observed": drop,
            "required": f"port {ports} accepted from the networks that the inventory allows",
            "fix": f"accept tcp dport {{ {ports} }} in that chain",
        }
        for drop in list_foreign_drops(settings)
    ]


def admit(paths: Paths, settings: dict[str, Any]) -> None:
    """Open the port to neighbours as the plan says, where it is not open yet.

    A first apply fetches weights before its firewall is set up, which holds the rules afterwards.
    """
    near = settings.get("neighbours")
    for family in ("ipv4", "ipv6"):
        for address in (near or {}).get(family, ()):
            # The table may be from an earlier apply; where it has no such set, the port is open.
            words = ("add", "element", *FIREWALL_TABLE, f"neighbours_{family}")
            run("nft", *words, f"{{ {address} }}")
    zones = list_active_zones() if settings["manager"] == "firewalld" else []
    closed = {"ports": [], "ipv4": [], "ipv6": [], "manager": settings["manager"]}
    if settings["manager"] == "ufw" and not _has_ufw_ipv6():
        near = {**(near or {}), "ipv6": []}
    wanted = build_rules({**closed, "neighbours": near}, zones) if near else []
    lacking = [rule for rule in wanted if not _make_manager(rule["manager"]).find_holder(rule)]
    if not lacking:
        return
    state = kept_state.read(paths, FIREWALL_STATE)
    make_directory(paths.state, 0o700)
    ours = [*state.get("rules", []), *(r for r in lacking if r not in state.get("rules", []))]
    _write(paths, ours, [*state.get("zone_files", []), *_list_new_zone_files(zones)])
    for rule in lacking:
        _make_manager(rule["manager"]).add(rule)


def read_table() -> str | None:
    """Return our loaded table as nft lists it, None where there is none.

    Without counters, and without the open port of the ACME challenge, which exists only for the
    minutes of an order.
    """
    listed = run("nft", "--stateless", "list", "table", *FIREWALL_TABLE)
    return _CHALLENGE.sub(r"\1", listed.stdout) if listed.returncode == 0 else None


def normalize_table(text: str) -> str:
    """Return the form in which the record of an apply keeps a table."""
    return hashlib.sha256(text.encode()).hexdigest()


def _is_as_applied(paths: Paths, text: str) -> bool:
    """Return whether the loaded table is the one of the last apply; true where its file is gone."""
    known = applied_record.read(paths)
    wanted = (known.get("firewall") or {}).get("table_sha256")
    rows = {row["path"]: row["sha256"] for row in known.get("files") or ()}
    same_file = rows.get(FIREWALL) == normalize_table(read_text(paths.firewall))
    return not wanted or not same_file or normalize_table(text) == wanted


def guard(paths: Paths, *, check: bool = False) -> bool:
    """Start the firewall's unit and load its table, also after a flush of the rule set.

    A table that was changed by hand since the last apply is loaded again.
    """
    enabled = units.converge(unit_names.FIREWALL, check=check)
    active = (
        units.read_states(unit_names.FIREWALL).get(unit_names.FIREWALL, {}).get("state") == "active"
    )
    there = read_table()
    loaded = there is not None and _is_as_applied(paths, there)
    if not check and not active:
        units.control("start", unit_names.FIREWALL)
    elif not check and not loaded:
        units.control("reload", unit_names.FIREWALL)
    if not check and run("nft", "list", "table", *FIREWALL_TABLE).returncode != 0:
        raise HostError(f"{unit_names.FIREWALL} runs, but there is no table from {paths.firewall}")
    return enabled or not active or not loaded


def remove_all(paths: Paths, *, check: bool = False) -> list[Rule]:
    """Remove every rule that is recorded as ours from ufw and firewalld."""
    state = kept_state.read(paths, FIREWALL_STATE)
    ours: list[Rule] = state.get("rules", [])
    if not check:
        for rule in ours:
            if is_running(rule["manager"]):
                _make_manager(rule["manager"]).remove(rule)
        for name in sorted(state.get("zone_files", [])):
            _drop_zone_file(name)
        if ours:
            _write(paths, [], [])
    return ours


def _write(paths: Paths, rules: list[Rule], zone_files: list[str]) -> None:
    record = {"rules": rules, "zone_files": zone_files}
    write_atomic(paths.firewall_state, json.dumps(record, indent=1) + "\n", 0o600)


def _list_new_zone_files(zones: list[str]) -> list[str]:
    """Return the files that firewalld will write for our rules and that do not exist yet."""
    names = [f"/etc/firewalld/zones/{zone}.xml{old}" for zone in zones for old in ("", ".old")]
    return [name for name in names if not Path(name).exists()]


def _drop_zone_file(name: str) -> None:
    """Remove a zone file that exists only because of our rules and equals the shipped one."""
    path = Path(name)
    shipped = Path("/usr/lib/firewalld/zones") / path.name.replace(".old", "")
    current = path.with_name(shipped.name)
    if path == current and path.exists() and _join(path) != _join(shipped):
        return  # The file has rules of others too.
    if path.exists() and (path == current or not current.exists()):
        path.unlink()


def _join(path: Path) -> list[str]:
    return sorted(read_text(path).replace("><", "> <").split())


def list_foreign_drops(settings: dict[str, Any]) -> list[str]:
    """Return sentences about other chains that would drop traffic to the port."""
    done = run("nft", "-j", "list", "ruleset")
    # No chain can wrongly block a port that is closed to others.
    own = settings.get("metrics") or {}
    shown = [own["port"]] if [*own.get("ipv4", ()), *own.get("ipv6", ())] else []
    ports = [port for port in settings["ports"] if port != own.get("port")]
    ports = [*(ports if [*settings["ipv4"], *settings["ipv6"]] else []), *shown]
    ports = [*ports, *(int(text.partition("-")[0]) for text in settings.get("peer_ports", ()))]
    if done.returncode != 0 or not ports:
        return []
    ruleset = json.loads(done.stdout or "{}")
    found = [find_drops(ruleset, port, settings["manager"]) for port in ports]
    return list(dict.fromkeys(line for lines in found for line in lines))


def find_drops(ruleset: dict[str, Any], port: int, manager: str) -> list[str]:
    """Return input chains in nft's JSON that drop by policy or by a rule on this port.

    ufw's and firewalld's own tables are left out where the port was opened through them.
    """
    chains, accepts, drops = [], set(), []
    for item in ruleset.get("nftables", []):
        chain, rule = item.get("chain"), item.get("rule")
        if chain and chain.get("hook") == "input" and chain.get("type") == "filter":
            chains.append(chain)
        if rule and _is_on_port(rule.get("expr", []), port):
            table = (rule["family"], rule["table"])
            verdicts = {key for part in rule["expr"] for key in part}
            if "accept" in verdicts:
                accepts.add(table)
            elif verdicts & {"drop", "reject"}:
                drops.append((table, rule["chain"]))
    found = []
    for chain in chains:
        table = (chain["family"], chain["table"])
        if chain.get("policy") == "drop" and table not in accepts and not _is_known(table, manager):
            found.append(
                f"chain {chain['name']} of table {' '.join(table)} drops by policy "
                f"and has no rule that accepts port {port}"
            )
    for table, name in drops:
        if not _is_known(table, manager):
            found.append(
                "a rule in chain {} of table {} {} drops port {}".format(name, *table, port)
            )
    return found


def _is_known(table: tuple[str, str], manager: str) -> bool:
    family, name = table
    if (family, name) == FIREWALL_TABLE:
        return True
    if manager == "ufw":
        return family in ("ip", "ip6") and name == "filter"
    return manager == "firewalld" and name == "firewalld"


def _is_on_port(expressions: list[dict[str, Any]], port: int) -> bool:
    for part in expressions:
        match = part.get("match") if isinstance(part, dict) else None
        field = match.get("left", {}).get("payload", {}) if isinstance(match, dict) else {}
        if not (isinstance(field, dict) and field.get("field") == "dport"):
            continue
        if field.get("protocol") == "udp":
            continue
        if match and match.get("op") in ("==", "in") and _is_covered(match.get("right"), port):
            return True
    return False


def _is_covered(right: object, port: int) -> bool:
    if isinstance(right, int):
        return right == port
    if isinstance(right, dict):
        if "range" in right:
            low, high = right["range"]
            return bool(low <= port <= high)
        return any(_is_covered(member, port) for member in right.get("set", []))
    return False


def main(argv: list[str]) -> int:
    """`firewall-ensure [--check] < SETTINGS`: one JSON object in, one out."""
    return answer({"ok": True, **ensure(Paths(), json.load(sys.stdin), check="--check" in argv)})
