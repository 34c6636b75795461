"""`kimi-prov connect` to a folder that `render kubernetes` made, until Ctrl-C."""

from __future__ import annotations

import contextlib
import hashlib
import ssl
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kimi_prov.commands import connect, kubernetes_access, tunnel
from kimi_prov.console.output import say
from kimi_prov.contract import clean_text
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.on_host.gateway import api
from kimi_prov.operate.kubernetes import answers, diagnosis, observe
from kimi_prov.operate.kubernetes.folder import Folder
from kimi_prov.user_dirs import make_private, replace_file, state_home, write_private

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.commands.kubernetes_access import Way
    from kimi_prov.console.output import Output
    from kimi_prov.operate.kubernetes.diagnosis import Snapshot, Standing
    from kimi_prov.operate.kubernetes.kubectl import Target

_ASK_S = 20.0
_STEP_S = 0.2


@dataclass
class Session:
    """Holds the way open while the model serves, and opens it again."""

    folder: Folder
    output: Output
    key: str
    files: Path
    port: int | None
    every_s: float
    shown: bool = field(default=False, init=False)
    _told: str = field(default="", init=False)

    def run(self) -> ExitCode:
        """Follow until nothing serves and nothing starts any more, or Ctrl-C."""
        while True:
            try:
                found = observe.snapshot(self.folder)
                standing = diagnosis.of_status(found)
                if standing.state == "serving":
                    self._hold(found)
                    continue
                if standing.state == "stopped":
                    return self._stopped(found, standing)
                if standing.state == "failed" and standing.trouble:
                    raise observe.raised(self.folder, standing.trouble)
                self._wait(standing)
            except UserError as error:
                # Once it has answered, a cluster that is away comes back, and a pod is made anew.
                if not self.shown or error.exit_code is not ExitCode.UNREACHABLE:
                    raise
                self._tell(f"{error.message}; trying again")
            time.sleep(self.every_s)

    def _hold(self, found: Snapshot) -> None:
        """Hold a way until nothing answers there any more. Raises UserError where it is lost."""
        with kubernetes_access.way(self.folder, self.port, _ASK_S) as way:
            connect.prove(way.endpoint, self.key, way.tunnel.check)
            # A client's base URL keeps its port.
            self.port, self._told = way.endpoint.port, ""
            self._show(way, found)
            while not self._over():
                # kubectl sees that its pod is gone when somebody connects, and not before.
                with contextlib.suppress(api.ApiError):
                    api.connect(way.endpoint).close()
                self._pause(way)

    def _over(self) -> bool:
        """Whether the model ended; answers that go on end first, and so the way stays for them."""
        try:
            found = observe.snapshot(self.folder)
        except UserError as error:
            # A way that stands is left alone.
            if error.exit_code is not ExitCode.UNREACHABLE:
                raise
            self._tell(f"{error.message}; trying again")
            return False
        standing = diagnosis.of_status(found)
        if standing.state == "stopped":
            return not found.pods
        if standing.state == "failed":
            return not any(answers.holds(pod, "Ready") for pod in found.pods)
        if standing.state == "serving":
            self._told = ""
        else:
            self._wait(standing)
        return False

    def _pause(self, way: Way) -> None:
        until = time.monotonic() + self.every_s
        while time.monotonic() < until:
            way.tunnel.check()
            time.sleep(_STEP_S)

    def _wait(self, standing: Standing) -> None:
        why = standing.trouble.cause if standing.trouble else standing.line
        self._tell(f"{why}; waiting until it answers")

    def _show(self, way: Way, found: Snapshot) -> None:
        make_private(self.files)
        certificate, key_file = self.files / "certificate.pem", self.files / "api.key"
        replace_file(certificate, way.certificate, 0o644)
        write_private(key_file, self.key + "\n")
        if self.shown:
            say(f"it answers again at {way.endpoint.url}")
            return
        ready = [pod for pod in found.pods if answers.holds(pod, "Ready")]
        names = answers.at(self.folder.plan, "model", "served_names")
        document: dict[str, Any] = {
            "schema": connect.SCHEMA,
            "base_url": way.endpoint.url,
            "model": str(answers.at(names, 0) or self.folder.name),
            "certificate_file": str(certificate),
            "key_file": str(key_file),
            "login": None,
            "job": None,
            "node": answers.text(ready[0], "spec", "nodeName") if ready else "",
            "ends_at": None,
        }
        self.output.write(document, lambda: connect.text(document))
        if not _trusted(way):
            say(
                f"note: by its names or its issuer the certificate is none for {tunnel.ADDRESS}: a "
                "client has to ask for one of its names there (curl --connect-to)"
            )
        say("the forwarded port stays until Ctrl-C")
        self.shown = True

    def _tell(self, told: str) -> None:
        if told != self._told:
            say(clean_text.line(told))
            self._told = told

    def _stopped(self, found: Snapshot, standing: Standing) -> ExitCode:
        if not self.shown:
            raise kubernetes_access.silent(self.folder, found, standing)
        say(f"{self.folder.name} was stopped")
        return ExitCode.FAILED


def _trusted(way: Way) -> bool:
    """Whether a client that has the certificate alone gets through."""
    context = ssl.create_default_context(cadata=way.certificate)
    try:
        return tunnel.handshakes(way.endpoint.port, context)
    except OSError:
        return True


def run(
    path: Path,
    target: Target,
    output: Output,
    *,
    key_file: Path | None,
    port: int | None,
    every_s: float,
) -> ExitCode:
    """Connect to the service of a rendered folder and hold the way."""
    output.check()
    folder = Folder.read(path, target)
    key = kubernetes_access.read_key(folder, key_file)
    place = f"{folder.kubectl.where}:{path.resolve()}"
    mark = hashlib.sha256(place.encode()).hexdigest()[:8]
    files = state_home() / "connect" / f"{path.resolve().name}-{mark}" / "newest"
    return Session(folder, output, key, files, port, every_s).run()
