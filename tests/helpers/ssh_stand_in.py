"""A program in the place of ssh: a machine is a folder, a forwarded port leads to this computer.

Only what stands below the folder is there; the rest of a command runs here. What it was called
with is kept in `calls`, what it had in its environment for a password in `password`.
"""

from __future__ import annotations

import json
import os
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

_PROGRAM = """
import os, pathlib, re, socket, subprocess, sys, threading
machine = pathlib.Path({machine!r})
words = sys.argv[1:]
with open(machine / "calls", "a") as stream:
    stream.write(repr(words) + "\\n")
if os.environ.get("SSH_ASKPASS"):
    told = subprocess.run([os.environ["SSH_ASKPASS"], "?"], capture_output=True, text=True).stdout
    (machine / "password").write_text(told)
if "-L" not in words:
    for found in re.findall("BECOME-SUCCESS-[a-z]+", words[-1])[:1]:
        print(found)
    sys.stdout.flush()
    files = re.findall("cat (/etc/kimi/[a-z./]+)", words[-1])
    if not files:
        sys.exit(0)
    there = [machine / name.lstrip("/") for name in files]
    if not there[0].exists():
        print("absent")
        sys.exit(0)
    mark = "".join(re.findall("echo (---[a-z]+---)", words[-1]))
    print(f"\\n{{mark}}\\n".join(file.read_text() for file in there if file.exists()))
    sys.exit(0)
if (machine / "cut").exists():
    print("administratively prohibited\\x1b[2J", file=sys.stderr)
    sys.exit(255)
address, port, _, port_there = words[words.index("-L") + 1].split(":")


def copy(source, target):
    while data := source.recv(65536):
        target.sendall(data)
    target.shutdown(socket.SHUT_WR)


server = socket.create_server((address, int(port)))
while True:
    near, _ = server.accept()
    far = socket.create_connection(("127.0.0.1", int(port_there)))
    threading.Thread(target=copy, args=(near, far), daemon=True).start()
    threading.Thread(target=copy, args=(far, near), daemon=True).start()
"""


class Machine:
    """A managed machine behind the stand-in, with a plan and a certificate."""

    def __init__(self, folder: Path, plan: dict[str, Any], certificate: str) -> None:
        self.folder = folder
        (folder / "etc" / "kimi" / "proxy").mkdir(parents=True)
        (folder / "etc" / "kimi" / "plan.json").write_text(json.dumps(plan))
        (folder / "etc" / "kimi" / "proxy" / "tls.crt").write_text(certificate)
        self.programs = folder / "bin"
        self.programs.mkdir()
        program = self.programs / "ssh"
        program.write_text(f"#!{sys.executable}{_PROGRAM.format(machine=str(folder))}")
        program.chmod(0o755)

    @property
    def path(self) -> str:
        """A PATH on which the stand-in comes first."""
        return f"{self.programs}:{os.environ['PATH']}"

    @property
    def calls(self) -> list[str]:
        """Each call's arguments, as Python writes them."""
        return (self.folder / "calls").read_text().splitlines()
