"""What the modules around the opened port share: where things lie, safe writes, short commands.

Every function takes the root of the file system, so that the same code runs in a test's
directory; on a machine it is `/`.
"""

from __future__ import annotations

import grp
import json
import os
import pwd
import subprocess
import sys
from pathlib import Path
from typing import Any

from kimi_prov.contract import paths

PROXY_USER = "kimi-proxy"
PROXY_UNIT = "kimi-proxy.service"
FIREWALL_UNIT = "kimi-firewall.service"


def serve_unit(index: int) -> str:
    """Name of the unit of engine instance `index`."""
    return f"kimi-serve@{index}.service"


class EdgeError(Exception):
    """What went wrong in one sentence, and what mends it; shown to the operator as it is."""


class Paths:
    """Files of the proxy, the keys and the firewall under one root directory."""

    def __init__(self, root: str | Path = "/") -> None:
        base = Path(root)
        self.root = base
        self.etc = base / paths.ETC[1:]
        self.plan = base / paths.PLAN[1:]
        self.keys = base / paths.KEYS[1:]
        self.operator_new = self.keys / "operator.new"
        self.verify_key = self.keys / "verify.key"
        self.proxy = base / paths.PROXY[1:]
        self.key_map = self.proxy / "keys.map"
        self.tls_pem = self.proxy / "tls.pem"
        self.tls_crt = self.proxy / "tls.crt"
        self.firewall = base / paths.FIREWALL[1:]
        self.srv = base / paths.ROOT[1:]
        self.home = base / paths.HOME[1:]
        self.state = base / paths.STATE[1:]
        self.firewall_state = self.state / "firewall.json"
        self.before = self.state / "before.json"
        self.proxy_config = self.proxy / "haproxy.cfg"
        self.proxy_stamp = self.proxy / "stamp.cfg"
        self.units = base / "etc/systemd/system"
        self.socket = base / "run/kimi-proxy/admin.sock"


def run(
    *argv: str, stdin: str | None = None, timeout: float = 60
) -> subprocess.CompletedProcess[str]:
    """Run a command without a shell; a missing program gives return code 127."""
    try:
        return subprocess.run(  # noqa: PLW1510 - the return code is the caller's to judge
            list(argv),
            input=stdin,
            stdin=None if stdin is not None else subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout,
            env={**os.environ, "LC_ALL": "C"},
        )
    except FileNotFoundError:
        return subprocess.CompletedProcess(list(argv), 127, "", f"{argv[0]}: not found")
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(list(argv), 124, "", f"{argv[0]}: timed out")


def owner_ids(user: str, group: str) -> tuple[int, int]:
    """User and group number; root where the name does not exist (yet)."""
    try:
        uid = pwd.getpwnam(user).pw_uid
    except KeyError:
        uid = 0
    try:
        gid = grp.getgrnam(group).gr_gid
    except KeyError:
        gid = 0
    return uid, gid


def write_atomic(path: Path, content: str, mode: int, group: str = "root") -> None:
    """Replace `path` in one step; it never exists with a wider mode than `mode`."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    descriptor = os.open(str(temporary), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    try:
        with os.fdopen(descriptor, "w") as stream:
            stream.write(content)
            stream.flush()
            os.fsync(stream.fileno())
            if os.geteuid() == 0:
                os.fchown(stream.fileno(), *owner_ids("root", group))
            os.fchmod(stream.fileno(), mode)
        os.replace(str(temporary), str(path))
    except BaseException:
        if temporary.exists():
            temporary.unlink()
        raise


def make_directory(path: Path, mode: int, group: str = "root", *, check: bool = False) -> bool:
    """Directory with this mode and group; True when something was (or would be) changed."""
    wanted = owner_ids("root", group)
    if path.is_dir():
        state = path.stat()
        same_owner = os.geteuid() != 0 or (state.st_uid, state.st_gid) == wanted
        if state.st_mode & 0o7777 == mode and same_owner:
            return False
    if check:
        return True
    path.mkdir(mode=0o700, parents=True, exist_ok=True)
    if os.geteuid() == 0:
        os.chown(str(path), *wanted)
    path.chmod(mode)
    return True


def read_text(path: Path) -> str:
    """Content of a file, empty where there is none."""
    try:
        return path.read_text()
    except FileNotFoundError:
        return ""


def read_json(path: Path) -> dict[str, Any]:
    """Return a JSON object from a file; empty where the file is missing or unreadable as JSON."""
    try:
        value = json.loads(path.read_text())
    except (FileNotFoundError, NotADirectoryError, ValueError):
        return {}
    return value if isinstance(value, dict) else {}


def answer(document: dict[str, Any]) -> int:
    """Print the one JSON document that a subcommand answers with."""
    json.dump(document, sys.stdout, sort_keys=True)
    sys.stdout.write("\n")
    return 0
