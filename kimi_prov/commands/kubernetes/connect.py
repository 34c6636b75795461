"""`kimi-prov connect` to a folder that `render kubernetes` made, until Ctrl-C."""

from __future__ import annotations

import contextlib
import hashlib
import ssl
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kimi_prov.clients import snippets
from kimi_prov.commands.access import key_check, served_model, tunnel
from kimi_prov.commands.access.connect_inventory import SCHEMA, Link
from kimi_prov.commands.kubernetes import access
from kimi_prov.contract import clean_text
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.on_host.endpoint import api_client
from kimi_prov.operate.kubernetes import answers, diagnosis, observe
from kimi_prov.operate.kubernetes.folder import Folder
from kimi_prov.show.output import say
from kimi_prov.show.text import connect as connect_text
from kimi_prov.user_dirs import find_state_home, make_private, replace_file, write_private

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kimi_prov.commands.access.served_model import Served
    from kimi_prov.commands.kubernetes.access import Way
    from kimi_prov.operate.kubernetes.diagnosis import Snapshot, Status
    from kimi_prov.operate.kubernetes.kubectl import Target
    from kimi_prov.show.output import Output

_TIMEOUT_S = 20.0
_POLL_INTERVAL_S = 0.2


@dataclass(frozen=True)
class Request:
    """A rendered folder, and the options of access to its service.

    `ca`: the authority for clients, None for the certificate itself.
    """

    path: Path
    target: Target
    key_file: Path | None
    port: int | None
    every_s: float
    ca: Path | None = None


@dataclass
class Session:
    """Forwards a port while the model serves, and forwards it again after an interruption.

    `snippet`: print the snippet of this name instead of a document.
    """

    folder: Folder
    output: Output | None
    key: str
    files: Path
    port: int | None
    every_s: float
    ca: Path | None = None
    snippet: str | None = None
    shown: bool = field(default=False, init=False)
    _told: str = field(default="", init=False)

    def run(self) -> ExitCode:
        """Follow until no pod serves or starts any more, or until Ctrl-C."""
        while True:
            try:
                found = observe.take_snapshot(self.folder)
                standing = diagnosis.judge_status(found)
                if standing.state == "stopped":
                    return self._stopped(found, standing)
                if self._serves(standing):
                    self._hold(found)
                    continue
            except UserError as error:
                # Once it has answered: an unreachable cluster returns, and a pod is created again.
                if not self.shown or error.exit_code is not ExitCode.UNREACHABLE:
                    raise
                self._tell(f"{error.message}; trying again")
            time.sleep(self.every_s)

    def reach(self) -> None:
        """Wait until the model serves. Raises UserError where it is stopped, or fails."""
        while True:
            found = observe.take_snapshot(self.folder)
            standing = diagnosis.judge_status(found)
            if standing.state == "stopped":
                raise access.make_silent_error(self.folder, found, standing)
            if self._serves(standing):
                self._told = ""
                return
            time.sleep(self.every_s)

    def _serves(self, standing: Status) -> bool:
        """Whether it serves; report what is waited for. Raises UserError where it failed."""
        if standing.state == "failed" and standing.trouble:
            raise observe.make_error(self.folder, standing.trouble)
        if standing.state != "serving":
            self._wait(standing)
        return standing.state == "serving"

    @contextlib.contextmanager
    def way(self, *, apart: bool = False) -> Iterator[Way]:
        """Forward a port, the same each time, and test that the model answers there."""
        with access.open_way(self.folder, self.port, _TIMEOUT_S, apart=apart) as way:
            key_check.prove(way.endpoint, self.key, way.tunnel.check)
            # A client's base URL keeps its port.
            self.port, self._told = way.endpoint.port, ""
            yield way

    def _hold(self, found: Snapshot) -> None:
        """Keep the forwarding until no answer comes any more. Raises UserError where it is lost."""
        with self.way() as way:
            self._show(way, found)
            while not self._over():
                # kubectl notices that its pod is gone only when a client connects.
                with contextlib.suppress(api_client.ApiError):
                    api_client.connect(way.endpoint).close()
                self._pause(way)

    def _over(self) -> bool:
        """Whether the model ended; the forwarding stays until answers in progress have ended."""
        try:
            found = observe.take_snapshot(self.folder)
        except UserError as error:
            # Keep a working connection.
            if error.exit_code is not ExitCode.UNREACHABLE:
                raise
            self._tell(f"{error.message}; trying again")
            return False
        standing = diagnosis.judge_status(found)
        if standing.state == "stopped":
            return not found.pods
        if standing.state == "failed":
            return not any(answers.is_condition_true(pod, "Ready") for pod in found.pods)
        if standing.state == "serving":
            self._told = ""
        else:
            self._wait(standing)
        return False

    def _pause(self, way: Way) -> None:
        until = time.monotonic() + self.every_s
        while time.monotonic() < until:
            way.tunnel.check()
            time.sleep(_POLL_INTERVAL_S)

    def _wait(self, standing: Status) -> None:
        why = standing.trouble.cause if standing.trouble else standing.line
        self._tell(f"{why}; waiting until it answers")

    def served(self, way: Way, files: Path | None, key_file: Path | None = None) -> Served:
        """Return the model as its clients see it. Raises UserError."""
        fix = "make the certificate's secret again"
        given = served_model.ClientOptions(ca=self.ca, key_file=key_file, fix=fix)
        hint = (
            f"kimi-prov status {clean_text.quote_word(self.folder.path)}  tells whether it serves"
        )
        name = clean_text.clean_line(self.folder.name)
        there = served_model.Rendered(name, self.folder.plan, way.certificate, hint)
        return served_model.describe_folder(there, way.endpoint, files, given)

    def _show(self, way: Way, found: Snapshot) -> None:
        make_private(self.files)
        certificate, key_file = self.files / "certificate.pem", self.files / "api.key"
        replace_file(certificate, way.certificate, 0o644)
        write_private(key_file, self.key + "\n")
        if self.shown:
            say(f"it answers again at {way.endpoint.url}")
            return
        assert self.output is not None  # noqa: S101  (who shows has one)
        if self.snippet is not None:
            name, server = self.snippet, self.served(way, self.files, key_file).server
            self.output.write(None, lambda: snippets.format_snippet(name, server))
        else:
            self._write(way, found, certificate, key_file)
        say("the forwarded port stays until Ctrl-C")
        self.shown = True

    def _write(self, way: Way, found: Snapshot, certificate: Path, key_file: Path) -> None:
        assert self.output is not None  # noqa: S101  (who shows has one)
        ready = [pod for pod in found.pods if answers.is_condition_true(pod, "Ready")]
        document: dict[str, Any] = {
            "schema": SCHEMA,
            "base_url": way.endpoint.url,
            "model": self.folder.plan["model"]["served_names"][0],
            "certificate_file": str(certificate),
            "key_file": str(key_file),
            "login": None,
            "job": None,
            "node": answers.read_text(ready[0], "spec", "nodeName") if ready else "",
            "ends_at": None,
        }
        self.output.write(document, lambda: connect_text.format_cluster(document))
        if not _is_trusted(way):
            say(
                f"note: by its names or its issuer the certificate is none for {tunnel.ADDRESS}: a "
                "client has to ask for one of its names there (curl --connect-to)"
            )

    def _tell(self, told: str) -> None:
        if told != self._told:
            say(clean_text.clean_line(told))
            self._told = told

    def _stopped(self, found: Snapshot, standing: Status) -> ExitCode:
        if not self.shown:
            raise access.make_silent_error(self.folder, found, standing)
        say(f"{self.folder.name} was stopped")
        return ExitCode.FAILED


def _is_trusted(way: Way) -> bool:
    """Whether a client that only has the certificate accepts the server."""
    context = ssl.create_default_context(cadata=way.certificate)
    try:
        return tunnel.is_trusted(way.endpoint.port, context)
    except OSError:
        return True


def run(request: Request, output: Output, snippet: str | None = None) -> ExitCode:
    """Connect to the service of a rendered folder until Ctrl-C.

    With `snippet`, print the snippet of this name instead of the document.
    """
    output.check()
    return _open_session(request, output, snippet).run()


def _open_session(
    request: Request, output: Output | None = None, snippet: str | None = None
) -> Session:
    folder, whole = Folder.read(request.path, request.target), request.path.resolve()
    key = access.read_key(folder, request.key_file)
    mark = hashlib.sha256(f"{folder.kubectl.where}:{whole}".encode()).hexdigest()[:8]
    files = find_state_home() / "connect" / f"{whole.name}-{mark}" / "newest"
    return Session(folder, output, key, files, request.port, request.every_s, request.ca, snippet)


@dataclass
class _Held:
    """The connection of a chat: if its pod is gone, it is opened to another."""

    session: Session
    stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack)
    current: Way | None = field(default=None, init=False)

    def open(self) -> Served:
        """Open it once the model serves; wait for a model that starts. Raises UserError."""
        self.current = None
        self.stack.close()
        self.session.reach()
        current = self.stack.enter_context(self.session.way(apart=True))
        self.there, self.current = self.session.served(current, None), current
        return self.there

    def check(self) -> None:
        """Raise UserError without a connection, if kubectl has ended, or without an answer."""
        if self.current is None:
            raise UserError("no connection is open", exit_code=ExitCode.UNREACHABLE)
        self.current.tunnel.check()
        served_model.prove(self.there, self.session.key)

    def again(self, _: Served, key: str) -> tuple[Served, str]:
        """Open it to a pod that answers now."""
        return self.open(), key


@contextlib.contextmanager
def open_link(request: Request) -> Iterator[Link]:
    """Give the model of a rendered folder, with a tested key, for the time of this context.

    It waits for a model that starts. Raises UserError where the model is stopped or fails.
    """
    session = _open_session(request)
    held = _Held(session)
    with held.stack:
        yield Link(held.open(), session.key, held)
