"""`kimi-prov connect` to an inventory's hosts, or to a URL: what clients need, and snippets."""

from __future__ import annotations

import json
import shlex
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from kimi_prov.clients import snippets
from kimi_prov.commands.access import api_key, served_model, tunnel
from kimi_prov.commands.common import playbook_run
from kimi_prov.contract import clean_text
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.show.output import say
from kimi_prov.show.text import connect

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

    from kimi_prov.clients.server import Server
    from kimi_prov.commands.access.served_model import Served
    from kimi_prov.commands.common.playbook_run import PlaybookOptions
    from kimi_prov.runner.run import FinishedRun
    from kimi_prov.show.output import Output

SCHEMA = "kimi-prov/connect/v1"
_POLL_INTERVAL_S = 0.2
_OF_MODEL = ("model", "models", "catalog_name", "context", "engine", "stand_ins")


@dataclass(frozen=True)
class ConnectOptions:
    """The options beside those of the playbook."""

    ca: Path | None = None
    key_file: Path | None = None
    tunnel: bool = False
    port: int | None = None
    every: float = 15.0
    snippet: str | None = None

    def make_client_options(self, hint: str | None) -> served_model.ClientOptions:
        """Return the user's options with the key. `hint`: how to get a key."""
        key = api_key.read_key(self.key_file)
        return served_model.ClientOptions(self.ca, key, self.key_file, self.port, hint)


@dataclass
class Report:
    """The result of each host: its entry of the document, its server, and the exit codes."""

    hosts: dict[str, dict[str, Any]] = field(default_factory=dict)
    servers: dict[str, Server] = field(default_factory=dict)
    codes: list[ExitCode] = field(default_factory=list)

    def add(self, there: Served, key: str | None) -> None:
        """Add a server, and test that it answers. Raises UserError where it does not."""
        self.servers[there.host] = there.server
        self.hosts[there.host] = _build_entry(there, answers=None if key is None else False)
        served_model.prove(there, key)
        if key is not None:
            self.hosts[there.host]["answers"] = True

    def failed(self, host: str, error: UserError) -> None:
        """Record and report that a host cannot be reached, and why."""
        fix = f"\n  fix: {clean_text.clean_entry(error.fix)}" if error.fix else ""
        say(f"error: {clean_text.clean_entry(error.message)}{fix}")
        entry = self.hosts.setdefault(host, {})
        entry |= {"ok": False, "detail": clean_text.clean_line(error.message)}
        self.codes.append(error.exit_code)


def run(path: Path, options: PlaybookOptions, chosen: ConnectOptions, output: Output) -> ExitCode:
    """Report what clients of each served model need, or print a snippet for one of them."""
    check_output(chosen, output)
    given = chosen.make_client_options(f"kimi-prov key {shlex.quote(str(path))}")
    finished = read_hosts(path, options, login=chosen.tunnel)
    serving, report = sort_hosts(finished)
    if chosen.tunnel or chosen.snippet:
        _require_one(serving, finished, "--tunnel" if chosen.tunnel else f"--for {chosen.snippet}")
    if chosen.tunnel:
        ((host, found),) = serving.items()
        way = _make_tunnel(host, found, finished, given)
        return _hold_tunnel(path, host, way, given, chosen, output)
    for host, found in serving.items():
        try:
            report.add(
                served_model.describe_host(host, found, served_model.find_files(path, host), given),
                given.key,
            )
        except UserError as error:
            report.failed(host, error)
    _write(path, report, chosen, output)
    return playbook_run.conclude(finished, *report.codes)


def _hold_tunnel(
    path: Path,
    host: str,
    way: served_model.Way,
    given: served_model.ClientOptions,
    chosen: ConnectOptions,
    output: Output,
) -> ExitCode:
    """Hold a tunnel to a host until Ctrl-C; if it ends, open it again at the same port."""
    try:
        way.open()
        there = served_model.describe_host(
            host, way.found, served_model.find_files(path, host), given, forwarded=way.port
        )
        report = Report()
        report.add(there, given.key)
        _write(path, report, chosen, output)
        say("the tunnel stays until Ctrl-C")
        told = ""
        while True:
            try:
                way.check()
                time.sleep(_POLL_INTERVAL_S)
            except UserError as error:
                if error.message != told:
                    say(f"{error.message}; trying again")
                told = error.message
                time.sleep(chosen.every)
                with suppress(UserError):
                    way.open()
                    say("the tunnel is open again")
    finally:
        way.close()


def connect_url(url: str, chosen: ConnectOptions, output: Output) -> ExitCode:
    """Report what clients of the server at a URL need; the server lists models only with a key."""
    check_output(chosen, output)
    given = chosen.make_client_options(None)
    key = require_key(given, "ask the administrator of the server for one")
    there = served_model.choose_model(served_model.describe_url(url, given), key, None)
    if chosen.snippet:
        output.write(None, lambda: snippets.format_snippet(str(chosen.snippet), there.server))
        return ExitCode.OK
    document = {"schema": SCHEMA, **_build_entry(there, answers=True)}
    output.write(document, lambda: connect.format_server(document, url))
    return ExitCode.OK


def check_url(options: PlaybookOptions, chosen: ConnectOptions) -> None:
    """Raise UserError where an option of an inventory was given for a URL."""
    names = [f"--{name.replace('_', '-')}" for name in options.list_given()]
    names += ["--tunnel"] if chosen.tunnel else []
    if names:
        raise UserError(
            f"{names[0]}: belongs to an inventory, and this is a URL", fix="leave it out"
        )


def require_key(given: served_model.ClientOptions, fix: str) -> str:
    """Return the key. Raises UserError where there is none."""
    if given.key is None:
        raise UserError(
            "no API key is given",
            fix=f"put it into {api_key.VARIABLE} or --api-key-file FILE; {fix}",
        )
    return given.key


def read_hosts(path: Path, options: PlaybookOptions, *, login: bool) -> FinishedRun:
    """Read from the machines what clients need; with `login` also ssh's command line."""
    wanted = {"connect_login": login}
    inventory, request = playbook_run.prepare("connect", "connect", path, options, wanted)
    return playbook_run.run(request, inventory)


def sort_hosts(finished: FinishedRun) -> tuple[dict[str, dict[str, Any]], Report]:
    """Return the hosts that serve, and a report with the others."""
    serving, report = {}, Report()
    behind = [
        row for row in finished.outcome.documents.values() if row.get("behind") and "engine" in row
    ]
    for host, found in finished.outcome.documents.items():
        if found["elsewhere"]:
            head = clean_text.clean_line(found["elsewhere"])
            where = "behind a gateway" if found.get("behind") else "in a group"
            detail = f"it is {where}: clients reach {head}"
            report.hosts[host] = {"ok": True, "detail": detail, "elsewhere": head}
        else:
            # A gateway serves the model of the machines behind it.
            of_model = behind[0] if found["engine"] is None and behind else {}
            serving[host] = found | {name: of_model[name] for name in _OF_MODEL if of_model}
    for failure in finished.outcome.failures:
        if failure.host:
            report.hosts.setdefault(failure.host, {"ok": False, "detail": failure.cause})
    return serving, report


class Way(Protocol):
    """A connection to a server that may end."""

    def check(self) -> None:
        """Raise UserError where the connection has ended."""

    def again(self, there: Served, key: str) -> tuple[Served, str]:
        """Open it again; return the server that answers now, and its key. Raises UserError."""


@dataclass
class Link:
    """A server that accepted the key, and the connection to it if that may end.

    `chosen`: the user chose the model, which stays the same with another server.
    """

    there: Served
    key: str
    way: Way | None = None
    chosen: bool = False

    def ensure(self) -> None:
        """Open the connection again if it has ended. Raises UserError where that fails."""
        if self.way is not None:
            try:
                self.way.check()
            except UserError:
                there, self.key = self.way.again(self.there, self.key)
                self.there = replace(there, server=self.there.server) if self.chosen else there


@contextmanager
def open_host(
    path: Path, options: PlaybookOptions, chosen: ConnectOptions, what: str
) -> Iterator[Link]:
    """Give the only served host of an inventory, with a tested key, for the time of this context.

    Raises UserError where there is no such host, more than one, or no key.
    """
    given = chosen.make_client_options(None)
    key = require_key(given, f"kimi-prov key {shlex.quote(str(path))}  shows a new one, once")
    finished = read_hosts(path, options, login=chosen.tunnel)
    serving, _ = sort_hosts(finished)
    _require_one(serving, finished, what)
    ((host, found),) = serving.items()
    if not chosen.tunnel:
        there = served_model.describe_host(host, found, served_model.find_files(path, host), given)
        served_model.prove(there, key)
        yield Link(there, key)
        return
    # Ctrl-C ends the answer and must not reach ssh.
    way = _make_tunnel(host, found, finished, given, apart=True)
    try:
        way.open()
        there = served_model.describe_host(
            host, found, served_model.find_files(path, host), given, forwarded=way.port
        )
        served_model.prove(there, key)
        yield Link(there, key, way)
    finally:
        way.close()


def check_output(chosen: ConnectOptions, output: Output) -> None:
    """Raise UserError for an output that a snippet cannot have, or that cannot be written."""
    output.check()
    if chosen.snippet and output.format == "json":
        raise UserError("--for: a snippet is text", fix="leave out --format json")


def _require_one(serving: Mapping[str, Any], finished: FinishedRun, what: str) -> None:
    if len(serving) == 1:
        return
    if serving:
        raise UserError(
            f"{what}: is for one host, and {len(serving)} serve: {', '.join(serving)}",
            fix="choose one:  --limit HOST",
        )
    code = playbook_run.conclude(finished)
    elsewhere = [row["elsewhere"] for row in finished.outcome.documents.values()]
    raise UserError(
        f"{what}: no host of these serves a model",
        fix=f"--limit {elsewhere[0]}" if elsewhere else "kimi-prov status shows why",
        exit_code=code or ExitCode.BAD_INPUT,
    )


def _make_tunnel(
    host: str,
    found: Mapping[str, Any],
    finished: FinishedRun,
    given: served_model.ClientOptions,
    *,
    apart: bool = False,
) -> served_model.Way:
    """Return the tunnel to a host; it is not open yet."""
    if found["login"] is None:
        raise UserError(
            f"--tunnel: {host} is this computer", fix="leave it out: the port is on this computer"
        )
    rows = [json.loads(line) for line in finished.key_lines]
    password = next((row["password"] for row in rows if row.get("host") == host), None)
    return served_model.Way(found, password, tunnel.find_free_port(given.port), apart=apart)


def _write(path: Path, report: Report, chosen: ConnectOptions, output: Output) -> None:
    """Write the document, or the snippet of the one server."""
    if chosen.snippet:
        name = chosen.snippet
        for server in report.servers.values():
            output.write(None, lambda server=server: snippets.format_snippet(name, server))  # type: ignore[misc]
        return
    if report.hosts:
        ok = all(row["ok"] for row in report.hosts.values())
        document = {"schema": SCHEMA, "ok": ok, "hosts": report.hosts}
        output.write(document, lambda: connect.format_hosts(document, shlex.quote(str(path))))


def _build_entry(there: Served, *, answers: bool | None) -> dict[str, Any]:
    server = there.server
    return {
        "ok": True,
        "detail": "",
        "base_url": server.base_url,
        "model": server.model,
        "models": list(there.models),
        "certificate_file": server.certificate_file,
        "key_file": server.key_file,
        "login": there.login,
        "job": None,
        "node": there.host,
        "ends_at": None,
        "page_url": there.page_url,
        "context": server.context,
        "engine": dict(there.engine) if there.engine else None,
        "messages_api": server.messages_api,
        "answers": answers,
        "resolve": vars(server.resolve) if server.resolve else None,
        "stand_ins": list(there.stand_ins),
    }
