"""`kimi-prov connect`: a served model on this computer's loopback, until Ctrl-C.

The server's job is followed: to its successor, and to itself where SLURM has queued it again. What
a client needs keeps its place: the base URL, and the files of certificate and key.
"""

from __future__ import annotations

import hashlib
import re
import shlex
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kimi_prov import schemas
from kimi_prov.commands import tunnel
from kimi_prov.commands.slurm_folder import Folder
from kimi_prov.console.output import say
from kimi_prov.contract import addresses, clean_text
from kimi_prov.contract.errors import HostError
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.on_host.cluster import endpoint, slurm
from kimi_prov.on_host.gateway import api
from kimi_prov.user_dirs import make_private, replace_file, state_home, write_private

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from kimi_prov.console.output import Output

SCHEMA = "kimi-prov/connect/v1"
# Until the tunnel's first answer.
_OPENS_S = 30.0
_ASK_S = 20.0
_STEP_S = 0.2
_HTTP_OK = 200
_KEY = re.compile(r"[\x21-\x7e]{1,512}")


@dataclass(frozen=True)
class Step:
    """What is to be done: go to another server, wait, or end; and what is told of it."""

    to: Mapping[str, Any] | None = None
    ends: bool = False
    told: str = ""


@dataclass(frozen=True)
class Identity:
    """One run of a server: a job that is queued again has another certificate."""

    job: str
    certificate_sha256: str | None

    @classmethod
    def of(cls, row: Mapping[str, Any]) -> Identity:
        """Return that of a job's row with an endpoint."""
        return cls(row["id"], row["endpoint"]["certificate_sha256"])


def next_step(servers: Sequence[Mapping[str, Any]], current: Identity | None) -> Step:
    """Say what to do. Pure. `servers`: rows of the jobs' document, the newest first."""
    for row in servers:
        if row["endpoint"] and current == Identity.of(row):
            if row["endpoint"]["state"] == "ready":
                return Step()
            if row["endpoint"]["state"] == "draining":
                # Answers still come through the tunnel; nothing else is ready before they end.
                heir = row["endpoint"]["successor"]
                then = f"job {heir} takes over" if heir else "none takes over"
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


@dataclass
class Session:
    """The way to a server: the tunnel, and the files that a client reads."""

    folder: Folder
    files: Path
    wanted_port: int | None
    current: Identity | None = None
    _port: int | None = None
    _tunnel: tunnel.Tunnel | None = None

    def go(self, row: Mapping[str, Any]) -> dict[str, Any]:
        """Open the way to a server and see that it answers; return the document.

        Raises UserError, with no way open.
        """
        self.close()
        found, key = _endpoint(self.folder, row["id"])
        # Its node, port and certificate pinned.
        there = _client(found)
        certificate, key_file = self.files / "certificate.pem", self.files / "api.key"
        make_private(self.files)
        replace_file(certificate, found["certificate"], 0o644)
        write_private(key_file, key + "\n")
        here = there
        try:
            if self.folder.login:
                self._port = self._port or tunnel.free_port(self.wanted_port)
                self._tunnel = tunnel.to_node(self.folder.login, self._port, there.host, there.port)
                here = api.Endpoint(tunnel.ADDRESS, self._port, there.fingerprint)
            asked = api.Endpoint(here.host, here.port, here.fingerprint, _ASK_S)
            prove(asked, key, self.check)
        except BaseException:
            self.close()
            raise
        self.current = Identity.of(row)
        return {
            "schema": SCHEMA,
            "base_url": here.url,
            "model": found["model"],
            "certificate_file": str(certificate),
            "key_file": str(key_file),
            "login": self.folder.login,
            "job": found["job"],
            "node": there.host,
            "ends_at": found["ends_at"],
        }

    def check(self) -> None:
        """Raise UserError where the tunnel has ended; the way is closed then."""
        if self._tunnel:
            try:
                self._tunnel.check()
            except UserError:
                self.close()
                raise

    def close(self) -> None:
        """Take the way back."""
        if self._tunnel:
            self._tunnel.close()
        self._tunnel, self.current = None, None


def prove(here: api.Endpoint, key: str, check: Callable[[], None]) -> None:
    """Ask for the models once, as soon as the tunnel takes a connection.

    `check` raises where the tunnel has ended. Raises UserError, exit 1, for any other answer.
    """
    until = time.monotonic() + _OPENS_S
    while True:
        try:
            reply = api.call(here, "GET", "/v1/models", key)
            break
        except api.ApiError as error:
            check()
            if time.monotonic() > until:
                raise UserError(
                    f"the server does not answer: {clean_text.line(error)}",
                    fix="look at its log",
                    exit_code=ExitCode.FAILED,
                ) from None
            time.sleep(_STEP_S)
    judge(reply, here.url)


def judge(reply: api.Reply, url: str) -> None:
    """Raise UserError, exit 1, where the question for the models was not answered with them."""
    if reply.status != _HTTP_OK:
        raise UserError(
            f"{url}/models: HTTP {reply.status}",
            fix="look at its log; with 401 or 403 at the key",
            exit_code=ExitCode.FAILED,
        )


def _endpoint(folder: Folder, number: str) -> tuple[dict[str, Any], str]:
    """Return what a server published, held to its schema, and the API key."""
    import jsonschema  # noqa: PLC0415

    answer = folder.call("endpoint", number)
    found, key = answer.get("endpoint"), answer.get("key")
    try:
        jsonschema.validate(found, schemas.load("endpoint"))
    except jsonschema.ValidationError as error:
        raise _not_whole(folder, number, error.message) from None
    assert isinstance(found, dict)  # noqa: S101  (the schema says so)
    if found["job"] != number:
        raise _not_whole(folder, number, "it is another job's")
    if not isinstance(key, str) or not _KEY.fullmatch(key):
        raise _not_whole(folder, number, "the key is no text without spaces")
    if not addresses.NODE.fullmatch(found["node"]):
        raise _not_whole(folder, number, f"node: {found['node']!r} is no host's name")
    return found, key


def _not_whole(folder: Folder, number: str, why: str) -> UserError:
    return UserError(
        f"{folder.where}: the endpoint of job {number}: {clean_text.line(why)[:200]}",
        fix="submit the server's job again",
        exit_code=ExitCode.FAILED,
    )


def _client(found: dict[str, Any]) -> api.Endpoint:
    try:
        there = endpoint.client(found)
    except HostError as error:
        raise UserError(error.message, fix=error.fix, exit_code=ExitCode.FAILED) from None
    if not 0 < there.port < 1 << 16:
        raise UserError(
            f"{clean_text.line(found['url'])}: this is no port",
            fix="submit the server's job again",
            exit_code=ExitCode.FAILED,
        )
    return there


@dataclass
class Follower:
    """Keeps the way open to the server that answers."""

    session: Session
    output: Output
    every_s: float
    chain: set[str] | None
    shown: bool = field(default=False, init=False)
    _told: str = field(default="", init=False)
    _last: str = field(default="", init=False)

    def run(self) -> ExitCode:
        """Follow until nothing serves any more, or Ctrl-C."""
        while True:
            try:
                step = next_step(self._servers(), self.session.current)
                if step.ends:
                    return self._end()
                if step.to is not None:
                    self._go(step.to)
                self._tell(step.told)
                self._pause()
            except UserError as error:
                # Once it has answered, a login node that is away comes back, and a server that
                # ended between two questions has a successor. A tunnel that stands is left alone.
                if not self.shown:
                    raise
                self._tell(f"{error.message}; trying again")
                time.sleep(self.every_s)

    def _servers(self) -> list[dict[str, Any]]:
        """Return the servers' jobs; of a job that was named, itself and who takes over from it."""
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
        document = self.session.go(row)
        self._last, self._told = row["id"], ""
        if not self.shown:
            self.output.write(document, lambda: text(document))
            kept = "the tunnel stays" if document["login"] else "the server is followed"
            say(f"{kept} until Ctrl-C")
            self.shown = True
        else:
            url = clean_text.line(document["base_url"])
            say(f"job {row['id']} on {clean_text.line(document['node'])} answers now at {url}")

    def _tell(self, told: str) -> None:
        if told and told != self._told:
            say(clean_text.line(told))
            self._told = told

    def _pause(self) -> None:
        until = time.monotonic() + self.every_s
        while time.monotonic() < until:
            self.session.check()
            time.sleep(min(_STEP_S, self.every_s))

    def _end(self) -> ExitCode:
        if not self.shown:
            whose = f"job {min(self.chain, key=int)}" if self.chain else "this folder"
            target = clean_text.word(self.session.folder.path)
            raise UserError(
                f"no server of {whose} answers, and none waits or loads",
                fix=f"kimi-prov submit {target}",
                exit_code=ExitCode.FAILED,
            )
        say(f"job {self._last} has ended, and none takes over")
        return ExitCode.FAILED


def run(
    path: Path,
    login: str | None,
    job: str | None,
    output: Output,
    *,
    port: int | None,
    every_s: float,
) -> ExitCode:
    """Connect to the newest server of a rendered folder, or to a job's, and follow it."""
    output.check()
    folder = Folder.read(path, login)
    mark = hashlib.sha256(f"{folder.login or ''}:{path.resolve()}".encode()).hexdigest()[:8]
    files = state_home() / "connect" / f"{path.resolve().name}-{mark}" / (job or endpoint.NEWEST)
    session = Session(folder, files, port)
    try:
        return Follower(session, output, every_s, {job} if job else None).run()
    finally:
        session.close()


def text(document: Mapping[str, Any]) -> str:
    """Write what a client needs; the key itself is never written."""
    url, name = document["base_url"], clean_text.line(document["model"])
    certificate, key = (shlex.quote(document[n]) for n in ("certificate_file", "key_file"))
    through = f" through {document['login']}" if document["login"] else ""
    job = f"job {document['job']} on " if document["job"] else ""
    server = f"{job}{document['node'] or 'a node that is not known'}{through}"
    return "\n".join(
        [
            f"base URL     {url}",
            f"model        {name}",
            f"server       {server}",
            *([f"until        {document['ends_at'] or 'not known'}"] if document["job"] else []),
            f"certificate  {document['certificate_file']}",
            f"key file     {document['key_file']}",
            "",
            f"cert={certificate}",
            f"key={key}",
            'curl --cacert "$cert" -H @<(echo "Authorization: Bearer $(cat "$key")") \\',
            f"  {url}/models",
            "",
            "# OpenAI's client:",
            f"export OPENAI_BASE_URL={url}",
            'export SSL_CERT_FILE="$cert" OPENAI_API_KEY="$(cat "$key")"',
        ]
    )
