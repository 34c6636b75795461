"""The API keys on the machine: made here, kept as SHA-256, shown once.

`/etc/kimi/proxy/keys.map` holds one line a key, `<sha256> <name>`, and is what HAProxy reads.
`/etc/kimi/keys/operator.new` holds the operator's key in clear until it was shown; while it
exists it is authoritative, so the next run corrects one that was killed between the two files.
`/etc/kimi/keys/verify.key` is the key by which this machine tests itself, and `web.key` the one by
which the page speaks to the engine, where there is one.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import groups, unit_names
from kimi_prov.contract.errors import HostError
from kimi_prov.contract.paths import PROXY_USER, WEB_KEY_NAME, Paths
from kimi_prov.on_host.gateway import haproxy
from kimi_prov.on_host.history import record
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.files import (
    make_directory,
    read_json,
    read_text,
    remove,
    write_atomic,
)
from kimi_prov.on_host.system.process import run

if TYPE_CHECKING:
    from pathlib import Path

OPERATOR = "operator"
VERIFY = "verify"
RESERVED = (OPERATOR, VERIFY)
MAP_LINE = re.compile(r"^([0-9a-f]{64}) ([A-Za-z0-9._-]{1,64})$")


def new_key() -> str:
    """Return a fresh key: 256 random bits behind a prefix that secret scanners can know."""
    return "sk-kimi-" + secrets.token_urlsafe(32)


def digest(key: str) -> str:
    """Return the form in which a key is kept."""
    return hashlib.sha256(key.encode()).hexdigest()


def parse_map(text: str) -> dict[str, str]:
    """Name to hash; lines that are no key are left out."""
    found = (MAP_LINE.match(line.strip()) for line in text.splitlines())
    return {match.group(2): match.group(1) for match in found if match}


def render_map(keys: dict[str, str]) -> str:
    """Return the map file for HAProxy, in a stable order."""
    lines = [f"{value} {name}" for name, value in sorted(keys.items())]
    return "\n".join(lines) + "\n"


def told(keys: dict[str, str]) -> dict[str, Any]:
    """Return what the record of an apply holds of the keys: names, and digests by name."""
    return {"keys": sorted(keys), "key_digests": dict(sorted(keys.items()))}


def _secret(path: Path) -> str:
    return read_text(path).strip()


def ensure(
    paths: Paths, given: dict[str, str], *, page: bool = False, check: bool = False
) -> dict[str, Any]:
    """Converge the keys: the operator's, the machine's own, and `given` (name to SHA-256).

    `page`: there is one, which has a key of its own. Returns what changed; never a key. With
    `check`, nothing is written.
    """
    made = make_directory(paths.keys, 0o700, check=check)
    old = parse_map(read_text(paths.key_map))
    wanted = {name: value for name, value in given.items() if name not in RESERVED}
    created = []
    unseen = _secret(paths.operator_new)
    if not unseen and OPERATOR not in old:
        unseen = new_key()
        created.append(OPERATOR)
        if not check:
            write_atomic(paths.operator_new, unseen + "\n", 0o600)
    wanted[OPERATOR] = digest(unseen) if unseen else old[OPERATOR]
    machines = {VERIFY: paths.verify_key, **({WEB_KEY_NAME: paths.web_key} if page else {})}
    for name, file in machines.items():
        own = _secret(file)
        if not own:
            own = new_key()
            created.append(name)
            if not check:
                write_atomic(file, own + "\n", 0o600)
        wanted[name] = digest(own)
    if not page and not check:
        remove(str(paths.web_key))
    changed = wanted != old
    how = "unchanged"
    if changed and not check:
        how = publish(paths, wanted)
    return {
        "changed": made or changed or bool(created),
        "created": created,
        "names": sorted(wanted),
        "removed": sorted(set(old) - set(wanted)),
        "applied": how,
    }


def publish(paths: Paths, keys: dict[str, str]) -> str:
    """Write the map and make the running proxy use it; returns how.

    The engine is not touched, requests under way go on, and a key that is gone is refused from
    the next request on.
    """
    write_atomic(paths.key_map, render_map(keys), 0o640, PROXY_USER)
    record.amend(paths, **told(keys))
    if not paths.socket.exists():
        return "file"
    try:
        haproxy.replace_map(paths.socket, str(paths.key_map), {v: k for k, v in keys.items()})
    except (HostError, OSError):
        done = run("systemctl", "reload", unit_names.PROXY)
        if done.returncode != 0:
            raise HostError(
                f"the new keys are written but the proxy did not take them over: "
                f"{done.stderr.strip()}",
                f"systemctl restart {unit_names.PROXY}",
            ) from None
        return "reload"
    return "runtime"


def rotate(paths: Paths) -> None:
    """Make a new key for the operator; the old one is refused from now on."""
    keys = parse_map(read_text(paths.key_map))
    if not keys:
        raise HostError("there are no keys on this machine yet", "run `kimi-prov apply` first")
    fresh = new_key()
    write_atomic(paths.operator_new, fresh + "\n", 0o600)
    publish(paths, {**keys, OPERATOR: digest(fresh)})


def revoke(paths: Paths, name: str) -> None:
    """Take a key away: it is refused from the next request on.

    Raises HostError for a name that there is not, and for those that the machine cannot do
    without. The page's, and one of kimi_api_keys_file, the next apply brings back: the page's anew.
    """
    keys = parse_map(read_text(paths.key_map))
    if name not in keys:
        known = ", ".join(sorted(keys)) or "none"
        raise HostError(f"there is no key {name}", f"name one of: {known}")
    if name in RESERVED:
        raise HostError(
            f"the key {name} cannot be taken away",
            "`kimi-prov key INVENTORY --rotate` makes a new one for the operator",
        )
    if name == WEB_KEY_NAME:
        remove(str(paths.web_key))
    publish(paths, {other: value for other, value in keys.items() if other != name})


def show(paths: Paths) -> str | None:
    """Return the operator's key until it was shown, else None.

    `forget` follows once it arrived.
    """
    unseen = _secret(paths.operator_new)
    if not unseen:
        return None
    keys = parse_map(read_text(paths.key_map))
    if keys.get(OPERATOR) != digest(unseen):
        publish(paths, {**keys, OPERATOR: digest(unseen)})
    return unseen


def forget(paths: Paths) -> None:
    """Remove the key in clear, and the page's password: they were shown."""
    for file in (paths.operator_new, paths.web_admin_new):
        remove(str(file))


def main(argv: list[str]) -> int:
    """`keys rotate|show|forget|list|remove NAME`; only `show` brings a key to standard output.

    On a host that another serves for, the answer is {"elsewhere": why nothing was done}.
    """
    paths = Paths()
    plan = read_json(paths.plan)
    if not groups.serves(plan):
        return answer({"ok": True, "elsewhere": groups.elsewhere(plan, "its keys are").message})
    action = argv[0] if argv else ""
    if action == "rotate":
        rotate(paths)
        return answer({"ok": True})
    if action == "show":
        admin = read_json(paths.web_admin_new) or None
        return answer({"ok": True, "key": show(paths), "web_admin": admin})
    if action == "forget":
        forget(paths)
        return answer({"ok": True})
    if action == "list":
        return answer({"ok": True, "names": sorted(parse_map(read_text(paths.key_map)))})
    if action == "remove" and len(argv) == 2:
        revoke(paths, argv[1])
        return answer({"ok": True})
    raise HostError("usage: keys rotate|show|forget|list|remove NAME")
