"""Action `kimi_bucket`: stop before a download begins whose bucket cannot give all of it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ansible.plugins.action import ActionBase

from kimi_prov.ansible.remote import RemoteError, call, failure
from kimi_prov.planner.findings import Observation, make
from kimi_prov.show.text import terminal

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.planner.findings import Finding


def finding(row: Mapping[str, Any]) -> Finding:
    """Return the finding of what the machine saw of a bucket."""
    seen = Observation(observed=row["observed"], required=row["required"], fix=row["fix"])
    if row["state"] == "ready":
        return make("bucket.ready", **seen)
    if row["state"] == "credentials":
        return make("bucket.credentials", **seen)
    if row["state"] == "absent":
        return make("bucket.absent", **seen)
    if row["state"] == "incomplete":
        return make("bucket.incomplete", **seen)
    return make("bucket.unreachable", **seen)


class ActionModule(ActionBase):  # type: ignore[misc]
    """Asks the machine, whose credentials or role it is that count."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Fail with the blockers that the machine found for `weights`, or say what is ready."""
        result: dict[str, Any] = super().run(tmp, task_vars) | {"changed": False}
        if self._task.check_mode:
            return result | {"skipped": True, "msg": "the bucket is looked at when it is read"}
        try:
            answer = call(self, "bucket", stdin=self._task.args["weights"])
        except RemoteError as error:
            return result | failure(error)
        found = [finding(row) for row in answer["buckets"]]
        blockers = [row for row in found if row["severity"] == "blocker"]
        if blockers:
            host = str((task_vars or {}).get("inventory_hostname", "the machine"))
            message = f"{host} cannot fetch its weights:\n{terminal.findings(blockers)}"
            return result | failure(message, code="blockers", findings=blockers)
        return result | {"msg": terminal.findings(found)}
