"""Action `kimi_key`: hand keys over, once; add, change, rotate, list or take one away."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

from kimi_prov.ansible.private_output import OUTPUT_VARIABLE, append_line
from kimi_prov.ansible.remote import RemoteError, build_failure, call


class ActionModule(ActionBase):  # type: ignore[misc]
    """The key goes to a file of the caller and to nothing else; the machine then forgets it."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Rotate when asked, then hand over the key that nobody has seen yet."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        out = os.environ.get(OUTPUT_VARIABLE)
        if not out:
            return result | build_failure(
                f"the environment variable {OUTPUT_VARIABLE} names no file to write the key to",
                f"use `kimi-prov key`, or set {OUTPUT_VARIABLE} to a path on this machine",
                "bad_input",
            )
        rotate = bool(self._task.args.get("rotate", False))
        gone, added, changed = (
            str(self._task.args.get(name) or "") for name in ("remove", "add", "set")
        )
        if self._task.check_mode:
            would = rotate or bool(gone or added or changed)
            return result | {"changed": would, "msg": "check mode: no key was shown"}
        host = (task_vars or {}).get("inventory_hostname", "")
        try:
            if added or changed:
                return result | self._rule(Path(out), host, added, changed)
            return result | self._hand_over(Path(out), host, rotate=rotate, gone=gone)
        except RemoteError as error:
            return result | build_failure(error)
        except OSError as error:
            return result | build_failure(
                f"{out} cannot be written: {error.strerror}", None, "bad_input"
            )

    def _hand_over(self, out: Path, host: str, *, rotate: bool, gone: str) -> dict[str, Any]:
        """Do what was asked for, and write what came of it for the caller alone."""
        elsewhere = call(self, "keys", "list").get("elsewhere")
        if elsewhere:
            append_line(out, {"host": host, "elsewhere": elsewhere})
            return {"changed": False, "msg": elsewhere}
        if gone or self._task.args.get("list"):
            return self._names(out, host, gone)
        if rotate:
            call(self, "keys", "rotate")
        shown = call(self, "keys", "show", secret=True)
        key, admin = shown["key"], shown.get("web_admin")
        if admin:
            append_line(out, {"host": host, "web_admin": admin})
        line: dict[str, Any] = {"host": host, "name": "operator", "key": key}
        if key is None:
            line["detail"] = "the key was shown before; `--rotate` makes a new one"
        append_line(out, line)
        if key is not None or admin:
            call(self, "keys", "forget")
        return {"changed": rotate, "shown": key is not None}

    def _rule(self, out: Path, host: str, added: str, changed: str) -> dict[str, Any]:
        """Make the key `added` and hand it over, or change the rule of `changed`."""
        wish = self._task.args.get("wish") or {}
        name = added or changed
        done = call(self, "keys", "add" if added else "set", name, stdin=wish, secret=bool(added))
        line = {"host": host, "name": name, "uncounted": done.get("uncounted") or []}
        append_line(out, line | ({"key": done.get("key")} if "elsewhere" not in done else done))
        return {"changed": "elsewhere" not in done}

    def _names(self, out: Path, host: str, gone: str) -> dict[str, Any]:
        """Take the key `gone` away, if any, and hand over the names that there are."""
        if gone:
            call(self, "keys", "remove", gone)
        found = call(self, "keys", "list")
        names = found["names"]
        # A machine that an earlier version applied tells the names alone.
        rows = found.get("keys") or [{"name": name} for name in names]
        append_line(out, {"host": host, "names": names, "keys": rows, "removed": gone or None})
        return {"changed": bool(gone), "names": names}
