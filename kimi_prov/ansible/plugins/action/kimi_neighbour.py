"""Action `kimi_neighbour`: have a host give its weights to another while that one fetches."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible.plugins.action import ActionBase

from kimi_prov.ansible.remote import RemoteError, call

if TYPE_CHECKING:
    from collections.abc import Mapping

_DOOR = ("port", "certificate_sha256")


class ActionModule(ActionBase):  # type: ignore[misc]
    """`state`: prepared, opened, taken or closed; what cannot be done is a warning.

    The download asks the source where no neighbour gives, so nothing here fails a host. All of it
    lies in /run while weights are fetched: it is no change of the machine.
    """

    TRANSFERS_FILES = False
    _supports_check_mode = False

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Return `done`, and what the next task on the other host has to know."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        given: dict[str, Any] = self._task.args
        try:
            found: dict[str, Any] = getattr(self, f"_{given['state']}")(given)
        except RemoteError as error:
            told = f"{given['host']}: {error.line}; the source is asked for the weights"
            result |= {} if given["state"] == "closed" else {"warnings": [told]}
            return result | {"changed": False, "done": False}
        return result | {"changed": False, "done": True, **found}

    def _prepared(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """On the host that takes: whether it has to fetch, and the hash of its key."""
        del given
        found = call(self, "share", "key", stdin={})
        return {"needed": found["needed"], "key_sha256": found["key_sha256"]}

    def _opened(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """On the host that gives: one more neighbour may ask; `plan` is this host's."""
        plan, taker = given["plan"], given["taker"]
        rows = {row["host"]: row["address"] for row in plan["neighbours"]["gives_to"]}
        if taker not in rows:
            raise RemoteError(f"its plan gives no weights to {taker}")
        wanted = {
            "port": plan["neighbours"]["port"],
            "addresses": list(rows.values()),
            "firewall": plan["firewall"],
            "taker": taker,
            "taker_address": rows[taker],
            "key_sha256": given["key_sha256"],
            "connections": int(given["connections"]),
            "rate": int(given["rate"]),
            "limit_s": int(given["limit_s"]),
        }
        found = call(self, "share", "open", stdin=wanted)
        return {"door": {name: found[name] for name in _DOOR}}

    def _taken(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """On the host that takes: its download asks the neighbour first."""
        giver = given["giver"]
        wanted = {
            "name": giver["host"],
            "address": giver["address"],
            "slowest": float(given["slowest"]),
            **given["door"],
        }
        call(self, "share", "take", stdin=wanted)
        return {}

    def _closed(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """On the host that gives, and with no `taker` on the one that took: it is over."""
        verb = "close" if given.get("taker") else "drop"
        call(self, "share", verb, stdin={"taker": given.get("taker")})
        return {}
