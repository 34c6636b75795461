"""Action `kimi_connect`: what clients need of a served model, read from its machine."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

from ansible.plugins.action import ActionBase

from kimi_prov.acceptance import suite
from kimi_prov.ansible.private_output import OUTPUT_VARIABLE, append_line
from kimi_prov.ansible.remote import RemoteError, build_failure, clean_document, run_shell
from kimi_prov.clients import server
from kimi_prov.contract import paths
from kimi_prov.on_host.endpoint import tls

_ABSENT = "absent"


class ActionModule(ActionBase):  # type: ignore[misc]
    """The plan as applied and the public certificate; the private key stays where it is."""

    TRANSFERS_FILES = False
    _supports_check_mode = True

    def run(
        self, tmp: str | None = None, task_vars: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Describe the server in `kimi_document`; with `login` also how ssh gets to its machine."""
        result: dict[str, Any] = super().run(tmp, task_vars)
        variables = task_vars or {}
        try:
            found = self._described(variables)
        except RemoteError as error:
            return result | build_failure(error)
        local = self._connection.transport == "local"
        host = str(variables.get("ansible_host") or variables.get("inventory_hostname"))
        own = "localhost" if local else host
        found |= {"address": found.get("shared") or own, "login": None}
        if self._task.args.get("login") and not found["elsewhere"] and not local:
            try:
                found["login"] = self._login(str(variables.get("inventory_hostname")))
            except RemoteError as error:
                return result | build_failure(error)
        return result | {"changed": False, "kimi_document": found}

    def _described(self, variables: dict[str, Any]) -> dict[str, Any]:
        plan = self._read(paths.PLAN)
        if plan is None:
            raise RemoteError(f"there is no {paths.PLAN} on it", "run `kimi-prov apply` first")
        try:
            value = json.loads(plan)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise RemoteError(f"{paths.PLAN} is no plan", "run `kimi-prov apply` again")
        certificate = tls.extract_certificates(self._read(paths.TLS_CERTIFICATE) or "")
        try:
            clean = clean_document(value)
            found = server.describe_server(clean, certificate)
            found["stand_ins"] = suite.stand_ins(clean, variables)
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise RemoteError(
                f"{paths.PLAN} lacks what clients need: {error}", "run `kimi-prov apply` again"
            ) from None
        if not found["elsewhere"] and not certificate:
            raise RemoteError(
                f"there is no certificate in {paths.TLS_CERTIFICATE}", "run `kimi-prov apply` again"
            )
        return found

    def _read(self, file: str) -> str | None:
        """Return the text of a file on the machine; None where it is not there."""
        name = shlex.quote(file)
        text = run_shell(self, f"test -e {name} || {{ echo {_ABSENT}; exit 0; }}; cat {name}")
        return None if text.strip() == _ABSENT else text

    def _login(self, host: str) -> list[str]:
        """Return ssh's command line to the machine, as Ansible itself makes it.

        A password goes to the caller's own file. Raises RemoteError for another connection.
        """
        connection = self._connection
        if connection.transport != "ssh":
            raise RemoteError(
                f"a tunnel goes by ssh, and this host's connection is {connection.transport}",
                "leave out --tunnel",
            )
        program = str(connection.get_option("ssh_executable"))
        made = [os.fsdecode(word) for word in connection._build_command(program, "ssh")]
        # What hands a password over stands before the program.
        line = made[made.index(program) :]
        password = connection.get_option("password") or connection._play_context.password
        if password:
            append_line(
                Path(os.environ[OUTPUT_VARIABLE]), {"host": host, "password": str(password)}
            )
        return [*line, str(connection.host)]
