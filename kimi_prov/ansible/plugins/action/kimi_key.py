"""Action `kimi_key`: show new keys once; add, change, rotate, list or remove a key."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kimi_prov.ansible.control_files import append_line
from kimi_prov.ansible.host_action import HostAction
from kimi_prov.ansible.remote import call
from kimi_prov.errors import UserError
from kimi_prov.runner.arguments import KEY_OUT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.answers import KeyListAnswer

DOCUMENTATION = """
module: kimi_key
short_description: Hands over the key that was not shown yet, or changes keys
description:
  - The key goes only to a file of the caller; the machine then forgets it.
  - The environment variable KIMI_PROV_KEY_OUT names the file.
options:
  rotate:
    type: bool
    default: false
    description: Create a new operator's key.
  list:
    type: bool
    default: false
    description: Only list the names of the keys.
  add:
    type: str
    default: ''
    description: Create a key of this name.
  set:
    type: str
    default: ''
    description: Change the limits of the key of this name.
  remove:
    type: str
    default: ''
    description: Remove the key of this name.
  rule:
    type: dict
    default: {}
    description: Limits and end of the key that is added or set.
"""


class ActionModule(HostAction):
    """In check mode no key is shown."""

    def act(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Do the requested work, and write its result to a file that only the caller reads."""
        output = os.environ.get(KEY_OUT)
        if not output:
            raise UserError(
                f"the environment variable {KEY_OUT} names no file to write the key to",
                fix=f"use `kimi-prov key`, or set {KEY_OUT} to a path on this machine",
            )
        if self.check_mode:
            changed = any(args[name] for name in ("rotate", "add", "set", "remove"))
            return {"changed": changed, "msg": "check mode: no key was shown"}
        file = Path(output)
        if args["add"] or args["set"]:
            return self._change_rule(file, args)
        answer = call(self, "keys", "list")
        elsewhere = answer.get("elsewhere")
        if elsewhere:
            append_line(file, {"host": self.host, "elsewhere": elsewhere})
            return {"msg": elsewhere}
        if args["remove"] or args["list"]:
            return self._list_names(file, args["remove"], answer)
        return self._hand_over(file, rotate=args["rotate"])

    def _hand_over(self, file: Path, *, rotate: bool) -> dict[str, Any]:
        if rotate:
            call(self, "keys", "rotate")
        answer = call(self, "keys", "show", secret=True)
        key, admin = answer["key"], answer.get("web_admin")
        if admin:
            append_line(file, {"host": self.host, "web_admin": admin})
        line: dict[str, Any] = {"host": self.host, "name": "operator", "key": key}
        if key is None:
            line["detail"] = "the key was shown before; `--rotate` makes a new one"
        append_line(file, line)
        if key is not None or admin:
            call(self, "keys", "forget")
        return {"changed": rotate, "shown": key is not None}

    def _change_rule(self, file: Path, args: Mapping[str, Any]) -> dict[str, Any]:
        """Create the key `add` and hand it over, or change the rule of the key `set`."""
        verb = "add" if args["add"] else "set"
        name = args[verb]
        answer = call(self, "keys", verb, name, stdin=args["rule"], secret=verb == "add")
        line = {"host": self.host, "name": name, "uncounted": answer.get("uncounted") or []}
        elsewhere = "elsewhere" in answer
        append_line(file, line | (answer if elsewhere else {"key": answer.get("key")}))
        return {"changed": not elsewhere}

    def _list_names(self, file: Path, removed: str, answer: KeyListAnswer) -> dict[str, Any]:
        """Remove the key `removed`, if any, and hand over the names of the keys."""
        if removed:
            call(self, "keys", "remove", removed)
            answer = call(self, "keys", "list")
        names = answer["names"]
        # A machine of an earlier version sends only the names.
        rows = answer.get("keys") or [{"name": name} for name in names]
        line = {"host": self.host, "names": names, "keys": rows, "removed": removed or None}
        append_line(file, line)
        return {"changed": bool(removed), "names": names}
