"""A served lab host on which troubles are caused, read by `diagnose`, and taken back."""

from __future__ import annotations

import base64
import json
import shlex
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import closed_form
from machines import HANGS_S, kimi_prov
from waiting import until
from weights_server import Server

from kimi_prov.contract import paths, unit_names

if TYPE_CHECKING:
    from pathlib import Path

    from machines import Host

ENGINE = "kimi-serve@0.service"
# Behind the plan's own drop-in: the last ExecStart= and Environment= win.
DROP_IN = f"/run/systemd/system/{ENGINE}.d/95-trouble.conf"
# Where the download brings its files while a trouble of it is caused.
OTHER = "/srv/kimi/models/other"


@dataclass
class SickHost:
    """The host, the files of its model, and what is undone at the end of a trouble."""

    host: Host
    gateway: str
    files: dict[str, bytes]
    undo: ExitStack = field(default_factory=ExitStack)

    @cached_property
    def plan(self) -> dict[str, Any]:
        return dict(json.loads(self.do(f"cat {paths.PLAN}")))

    @property
    def model(self) -> str:
        """The folder that the engine reads."""
        return str(self.plan["model"]["serve_dir"])

    def do(self, command: str, *, undo: str = "") -> str:
        """Run a command there; `undo` at the end of the trouble, whatever it says."""
        if undo:
            self.undo.callback(self.host.ssh, undo, check=False, timeout=HANGS_S)
        return self.host.ssh(command, timeout=HANGS_S)

    def replace(self, file: str, command: str) -> None:
        """Change or remove a file by a command; it comes back at the end."""
        self.do(f"cp -a {file} /root/kept", undo=f"mv -f /root/kept {file}")
        self.do(command)

    def write(self, file: str, content: bytes, mode: str = "644") -> None:
        """Put a file there, and take it away at the end."""
        text = base64.b64encode(content).decode()
        self.do(f"echo {text} | base64 -d > {file}; chmod {mode} {file}", undo=f"rm -f {file}")

    def set(self, *lines: str, unit: str = ENGINE) -> None:
        """Change a unit as `systemctl edit` would."""
        file = DROP_IN.replace(ENGINE, unit)
        self.undo.callback(self.do, "systemctl daemon-reload")
        self.do(f"mkdir -p {file.rpartition('/')[0]}", undo=f"rm -f {file}")
        text = "\n".join(("[Service]", *lines))
        self.do(f"printf '%s\\n' {shlex.quote(text)} > {file} && systemctl daemon-reload")

    def set_options(self, *options: str) -> None:
        """Start the engine with more options."""
        line = self.do(f"systemctl cat {ENGINE} | sed -n 's/^ExecStart=//p' | tail -1").strip()
        self.set("ExecStart=", f"ExecStart={line} {' '.join(options)}")

    def start(self, unit: str = ENGINE) -> None:
        """Start a unit, with an empty journal: no line of an earlier trouble is read again."""
        self.do(f"systemctl stop '{unit}'; systemctl reset-failed '{unit}' 2>/dev/null; true")
        self.forget()
        self.do(f"systemctl start --no-block '{unit}'")

    def forget(self) -> None:
        """Empty the journal."""
        self.do("sleep 1.1; journalctl -q --rotate; journalctl -q --vacuum-time=1s")

    def serve(self) -> None:
        """Have the engine answer as it was applied."""
        if self.state() != "active" or "ready after" not in self.journal():
            self.start()
            assert until(lambda: "ready after" in self.journal(), HANGS_S, 2), self.journal()

    def state(self, unit: str = ENGINE) -> str:
        return self.host.ssh(f"systemctl is-active '{unit}'", check=False).strip()

    def journal(self, unit: str = ENGINE) -> str:
        return self.do(f"journalctl -u '{unit}' --no-pager -o short-iso")

    def fetch(self, source: str, **more: object) -> None:
        """Have the download's unit fetch into another folder, as after a changed plan."""
        kept = json.loads(self.do(f"cat {paths.WEIGHTS}"))
        back = f"systemctl stop {unit_names.FETCH}; rm -rf {OTHER}; "
        back += f"systemctl reset-failed {unit_names.FETCH}; cp -a /root/weights {paths.WEIGHTS}; "
        back += f"systemctl start --no-block {unit_names.FETCH}"
        self.do(f"cp -a {paths.WEIGHTS} /root/weights", undo=back)
        told = json.dumps({**kept, "source": source, "dir": OTHER, **more})
        self.do(f"printf %s {shlex.quote(told)} > {paths.WEIGHTS}")
        self.start(unit_names.FETCH)

    def serve_files(self, files: dict[str, bytes] | None = None) -> Server:
        """Have a web server of the control machine that gives the model's files."""
        server = Server(self.files if files is None else files, host=self.gateway)
        self.undo.callback(server.stop)
        return server

    def diagnose(self, folder: Path) -> list[dict[str, Any]]:
        """What `diagnose INVENTORY` answers about this host."""
        bundle = folder / "bundle.tar.gz"
        words = ("--limit", self.host.name, "--to", bundle, "--format", "json")
        done = kimi_prov("diagnose", self.host.inventory, *words)
        assert done.returncode in (0, 3), done.stderr
        document = json.loads(done.stdout)
        closed_form.validate(document, "diagnose")
        bundle.unlink()
        found: list[dict[str, Any]] = document["hosts"][self.host.name]["findings"]
        return found
