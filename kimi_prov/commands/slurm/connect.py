"""`kimi-prov connect`: forward a served model to the local loopback, until Ctrl-C.

The server's job is followed to its successor, and to itself if SLURM queues it again. The base URL
and the files of certificate and key stay the same for clients.
"""

from __future__ import annotations

import hashlib
import re
import time
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kimi_prov import schemas
from kimi_prov.clients import snippets
from kimi_prov.commands.access import key_check, served_model, tunnel
from kimi_prov.commands.access.connect_inventory import SCHEMA, Link
from kimi_prov.commands.slurm.folder import Folder
from kimi_prov.contract import addresses, clean_text
from kimi_prov.contract.errors import HostError
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.on_host.cluster import endpoint, slurm
from kimi_prov.on_host.endpoint import api_client
from kimi_prov.render import folder_writer
from kimi_prov.show.output import say
from kimi_prov.show.text import connect as connect_text
from kimi_prov.user_dirs import find_state_home, make_private, replace_file, write_private

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kimi_prov.show.output import Output

_TIMEOUT_S = 20.0
_POLL_INTERVAL_S = 0.2
_ANEW = "submit the server's job again"
_KEY = re.compile(r"[\x21-\x7e]{1,512}")


@dataclass(frozen=True)
class Step:
    """The next step: go to another server, wait, or end; and its message."""

    to: Mapping[str, Any] | None = None
    ends: bool = False
    told: str = ""


@dataclass(frozen=True)
class Identity:
    """The identity of one run of a server: a job that is queued again has another certificate."""

    job: str
    certificate_sha256: str | None

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Identity:
        """Return the identity of a job's row with an endpoint."""
        return cls(row["id"], row["endpoint"]["certificate_sha256"])


def decide_step(servers: Sequence[Mapping[str, Any]], current: Identity | None) -> Step:
    """Decide the next step. Pure. `servers`: rows of the jobs' document, the newest first."""
    for row in servers:
        if row["endpoint"] and current == Identity.from_row(row):
            if row["endpoint"]["state"] == "ready":
                return Step()
            if row["endpoint"]["state"] == "draining":
                # Answers still arrive through the tunnel; no other server is ready before they end.
                heir = row["endpoint"]["successor"]
                then = f"job {heir} takes over" if heir else "no job takes over"
                return Step(told=f"job {row['id']} takes no more requests; {then}")
    for row in servers:
        if row["endpoint"] and row["endpoint"]["state"] == "ready":
            return Step(to=row)
    for row in servers:
        if _may_serve(row):
            state = row["endpoint"]["state"] if row["endpoint"] else row["state"].lower()
            why = f" ({row['reason']})" if row["reason"] else ""
            return Step(told=f"job {row['id']} is {state}{why}; waiting until it answers")
    return Step(ends=True)


def _may_serve(row: Mapping[str, Any]) -> bool:
    lives = row["state"] is not None and row["state"] not in slurm.ENDED
    return lives and (row["endpoint"] is None or row["endpoint"]["state"] == "loading")


@dataclass(frozen=True)
class Opened:
    """A server that answered: its published endpoint, its API key, and its local address."""

    found: Mapping[str, Any]
    key: str
    endpoint: api_client.Endpoint
    login: str | None

    def served(
        self, folder: Folder, files: Path | None, given: served_model.ClientOptions
    ) -> served_model.Served:
        """Return the server as its clients see it. Raises UserError."""
        target = clean_text.quote_word(folder.path)
        there = served_model.Rendered(
            clean_text.clean_line(folder.path),
            folder_writer.read_plan(folder.path),
            self.found["certificate"],
            f"kimi-prov jobs {target}  shows whether it serves",
            login=self.login,
            forwarded=self.login is not None,
        )
        given = replace(given, fix=_ANEW, takes_ca=False)
        about = served_model.describe_folder(there, self.endpoint, files, given)
        # From the folder on the cluster, which may differ from the local one.
        server = replace(about.server, model=clean_text.clean_line(self.found["model"]))
        return replace(about, server=server)


@dataclass
class Session:
    """The connection to a server: the tunnel, and the files for a client.

    `apart`: Ctrl-C at the terminal does not end the tunnel.
    """

    folder: Folder
    files: Path
    wanted_port: int | None
    apart: bool = False
    current: Identity | None = None
    _port: int | None = None
    _tunnel: tunnel.Tunnel | None = None

    def open(self, row: Mapping[str, Any]) -> Opened:
        """Open the tunnel and test that the server answers. Raises UserError after closing it."""
        self.close()
        found, key = _read_endpoint(self.folder, row["id"])
        # Node, port and certificate are pinned.
        here = there = _make_client(found)
        try:
            if self.folder.login:
                self._port = self._port or tunnel.find_free_port(self.wanted_port)
                self._tunnel = tunnel.open_to_node(
                    self.folder.login, self._port, there.host, there.port, apart=self.apart
                )
                here = api_client.Endpoint(tunnel.ADDRESS, self._port, there.fingerprint)
            asked = api_client.Endpoint(here.host, here.port, here.fingerprint, _TIMEOUT_S)
            key_check.prove(asked, key, self.check)
        except BaseException:
            self.close()
            raise
        self.current = Identity.from_row(row)
        return Opened(found, key, asked, self.folder.login)

    def write(self, opened: Opened) -> dict[str, Any]:
        """Write the files for a client; return the document."""
        found = opened.found
        certificate, key_file = self.files / "certificate.pem", self.files / "api.key"
        make_private(self.files)
        replace_file(certificate, found["certificate"], 0o644)
        write_private(key_file, opened.key + "\n")
        return {
            "schema": SCHEMA,
            "base_url": opened.endpoint.url,
            "model": found["model"],
            "certificate_file": str(certificate),
            "key_file": str(key_file),
            "login": opened.login,
            "job": found["job"],
            "node": _make_client(found).host,
            "ends_at": found["ends_at"],
        }

    def check(self) -> None:
        """Raise UserError where the tunnel has ended, after closing it."""
        if self._tunnel:
            try:
                self._tunnel.check()
            except UserError:
                self.close()
                raise

    def close(self) -> None:
        """Close the tunnel."""
        if self._tunnel:
            self._tunnel.close()
        self._tunnel, self.current = None, None


def _read_endpoint(folder: Folder, number: str) -> tuple[dict[str, Any], str]:
    """Return a server's published endpoint, validated by its schema, and the API key."""
    import jsonschema  # noqa: PLC0415

    answer = folder.call("endpoint", number)
    found, key = answer.get("endpoint"), answer.get("key")
    try:
        jsonschema.validate(found, schemas.load("endpoint"))
    except jsonschema.ValidationError as error:
        raise _make_endpoint_error(folder, number, error.message) from None
    assert isinstance(found, dict)  # noqa: S101  (the schema says so)
    if found["job"] != number:
        raise _make_endpoint_error(folder, number, "it belongs to another job")
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise _make_endpoint_error(folder, number, "the key is no text without spaces")
    if not addresses.NODE.fullmatch(found["node"]):
        raise _make_endpoint_error(folder, number, f"node: {found['node']!r} is no host's name")
    return found, key


def _make_endpoint_error(folder: Folder, number: str, why: str) -> UserError:
    return UserError(
        f"{folder.where}: the endpoint of job {number}: {clean_text.clean_line(why)[:200]}",
        fix=_ANEW,
        exit_code=ExitCode.FAILED,
    )


def _make_client(found: Mapping[str, Any]) -> api_client.Endpoint:
    try:
        there = endpoint.build_client_endpoint(found)
    except HostError as error:
        raise UserError(error.message, fix=error.fix, exit_code=ExitCode.FAILED) from None
    if not 0 < there.port < 1 << 16:
        raise UserError(
            f"{clean_text.clean_line(found['url'])}: this is no port",
            fix=_ANEW,
            exit_code=ExitCode.FAILED,
        )
    return there


@dataclass
class Follower:
    """Keeps a tunnel to the server that answers. `snippet`: printed instead of a document."""

    session: Session
    output: Output | None
    every_s: float
    chain: set[str] | None
    snippet: str | None = None
    shown: bool = field(default=False, init=False)
    _told: str = field(default="", init=False)
    _last: str = field(default="", init=False)

    def run(self) -> ExitCode:
        """Follow until no server is left, or until Ctrl-C."""
        while True:
            try:
                step = decide_step(self._servers(), self.session.current)
                if step.ends:
                    return self._end()
                if step.to is not None:
                    self._go(step.to)
                self._tell(step.told)
                self._pause()
            except UserError as error:
                # Once a server has answered: an unreachable login node returns, and a server
                # that ended between two checks has a successor. Keep a working tunnel.
                if not self.shown:
                    raise
                self._tell(f"{error.message}; trying again")
                time.sleep(self.every_s)

    def reach(self) -> Opened:
        """Wait for a server that answers, and open a tunnel to it. Raises UserError without one."""
        while True:
            step = decide_step(self._servers(), None)
            if step.ends:
                raise self._nothing()
            if step.to is not None:
                self._told = ""
                return self.session.open(step.to)
            self._tell(step.told)
            time.sleep(self.every_s)

    def _servers(self) -> list[dict[str, Any]]:
        """Return the servers' jobs; for a named job only that job and its successors."""
        document = self.session.folder.call("jobs", "--living", schema="jobs")
        servers = [row for row in document["jobs"] if row["name"] == "serve"]
        if self.chain is None:
            return servers
        # Oldest first: a successor is newer than its job.
        for row in reversed(servers):
            if row["id"] in self.chain and row["endpoint"] and row["endpoint"]["successor"]:
                self.chain.add(row["endpoint"]["successor"])
        return [row for row in servers if row["id"] in self.chain]

    def _go(self, row: Mapping[str, Any]) -> None:
        opened = self.session.open(row)
        document = self.session.write(opened)
        self._last, self._told = row["id"], ""
        if not self.shown:
            self._show(document, opened)
            kept = "the tunnel stays" if document["login"] else "the server is followed"
            say(f"{kept} until Ctrl-C")
            self.shown = True
        else:
            url = clean_text.clean_line(document["base_url"])
            say(
                f"job {row['id']} on {clean_text.clean_line(document['node'])} answers now at {url}"
            )

    def _show(self, document: Mapping[str, Any], opened: Opened) -> None:
        assert self.output is not None  # noqa: S101  (who shows has one)
        if self.snippet is None:
            self.output.write(document, lambda: connect_text.format_cluster(document))
            return
        name, files = self.snippet, self.session.files
        given = served_model.ClientOptions(key_file=Path(document["key_file"]))
        server = opened.served(self.session.folder, files, given).server
        self.output.write(None, lambda: snippets.format_snippet(name, server))

    def _tell(self, told: str) -> None:
        if told and told != self._told:
            say(clean_text.clean_line(told))
            self._told = told

    def _pause(self) -> None:
        until = time.monotonic() + self.every_s
        while time.monotonic() < until:
            self.session.check()
            time.sleep(min(_POLL_INTERVAL_S, self.every_s))

    def _end(self) -> ExitCode:
        if not self.shown:
            raise self._nothing()
        say(f"job {self._last} has ended, and no job takes over")
        return ExitCode.FAILED

    def _nothing(self) -> UserError:
        whose = f"job {min(self.chain, key=int)}" if self.chain else "this folder"
        target = clean_text.quote_word(self.session.folder.path)
        return UserError(
            f"no server of {whose} answers, and none waits or loads",
            fix=f"kimi-prov submit {target}",
            exit_code=ExitCode.FAILED,
        )


@dataclass(frozen=True)
class Request:
    """The server of a rendered folder and the access to it, from the options."""

    path: Path
    login: str | None
    job: str | None
    port: int | None
    every_s: float

    def session(self, *, apart: bool = False) -> Session:
        """Return the connection, not open yet. Raises UserError for another folder."""
        folder = Folder.read(self.path, self.login)
        whole = self.path.resolve()
        mark = hashlib.sha256(f"{folder.login or ''}:{whole}".encode()).hexdigest()[:8]
        files = (
            find_state_home() / "connect" / f"{whole.name}-{mark}" / (self.job or endpoint.NEWEST)
        )
        return Session(folder, files, self.port, apart)

    @property
    def chain(self) -> set[str] | None:
        """The named job, to which its successors are added; None for the newest server."""
        return {self.job} if self.job else None


def run(request: Request, output: Output, snippet: str | None = None) -> ExitCode:
    """Connect to the newest server of a rendered folder, or to a job's, and follow it.

    With `snippet`, print the snippet of this name instead of the document.
    """
    output.check()
    session = request.session()
    try:
        return Follower(session, output, request.every_s, request.chain, snippet).run()
    finally:
        session.close()


@dataclass
class _Way:
    """The connection of a chat: a server that has ended has a successor, or starts again."""

    follower: Follower

    def open(self) -> tuple[served_model.Served, str]:
        """Open it to the server that answers now, or wait for one. Raises UserError."""
        opened = self.follower.reach()
        self.there = opened.served(self.follower.session.folder, None, served_model.ClientOptions())
        self.key = opened.key
        return self.there, self.key

    def check(self) -> None:
        """Raise UserError where the tunnel has ended, or the server does not answer."""
        self.follower.session.check()
        served_model.prove(self.there, self.key)

    def again(self, _: served_model.Served, _key: str) -> tuple[served_model.Served, str]:
        """Open it again: a successor may have another key and model."""
        return self.open()


@contextmanager
def open_link(request: Request) -> Iterator[Link]:
    """Give a server of a rendered folder, with a tested key, for the time of this context.

    It waits for a server that loads. Raises UserError where no server answers, waits or loads.
    """
    session = request.session(apart=True)
    try:
        follower = Follower(session, None, request.every_s, request.chain)
        way = _Way(follower)
        yield Link(*way.open(), way)
    finally:
        session.close()
