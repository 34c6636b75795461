"""Action `kimi_connect`: read from a machine what clients need to reach its model."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from kimi_prov.acceptance import suite
from kimi_prov.ansible.control_files import append_line
from kimi_prov.ansible.host_action import HostAction
from kimi_prov.ansible.remote import RemoteError, clean_document, run_shell
from kimi_prov.clients import server
from kimi_prov.contract import paths
from kimi_prov.contract.errors import NOT_APPLIED
from kimi_prov.on_host.endpoint import tls
from kimi_prov.runner.arguments import KEY_OUT

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.plan import Plan

DOCUMENTATION = """
module: kimi_connect
short_description: Describes the server for clients
description: Reads the applied plan and the public certificate; returns the host's document.
options:
  login:
    type: bool
    default: false
    description: Also return ssh's command line to the machine, for a tunnel.
"""

_ABSENT = "absent"
# Between two files: no line of a plan, which is JSON.
_NEXT = "---certificate---"


class ActionModule(HostAction):
    """The private key stays on the machine."""

    def act(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Describe the server."""
        document = self._describe()
        local = self._connection.transport == "local"
        own = "localhost" if local else self.address
        document |= {"address": document.get("shared") or own, "login": None}
        if args["login"] and not document["elsewhere"] and not local:
            document["login"] = self._build_login()
        return {"kimi_document": document}

    def _describe(self) -> dict[str, Any]:
        plan, certificate_text = self._read_files()
        if plan is None:
            raise RemoteError(*NOT_APPLIED)
        try:
            value = json.loads(plan)
        except (ValueError, RecursionError):
            value = None
        if not isinstance(value, dict):
            raise RemoteError(f"{paths.PLAN} is no plan", "run `kimi-prov apply` again")
        certificate = tls.extract_certificates(certificate_text)
        try:
            clean = cast("Plan", clean_document(value))
            document = server.describe_server(clean, certificate)
            document["stand_ins"] = suite.list_stand_ins(clean, self.variables)
        except (KeyError, TypeError, IndexError, AttributeError) as error:
            raise RemoteError(
                f"{paths.PLAN} lacks what clients need: {error}", "run `kimi-prov apply` again"
            ) from None
        if not document["elsewhere"] and not certificate:
            raise RemoteError(
                f"there is no certificate in {paths.TLS_CERTIFICATE}", "run `kimi-prov apply` again"
            )
        return document

    def _read_files(self) -> tuple[str | None, str]:
        """Return the applied plan, None where there is none, and the certificate, by one call."""
        plan, certificate = shlex.quote(paths.PLAN), shlex.quote(paths.TLS_CERTIFICATE)
        text = run_shell(
            self,
            f"test -e {plan} || {{ echo {_ABSENT}; exit 0; }}; cat {plan}; "
            f"echo; echo {_NEXT}; test ! -e {certificate} || cat {certificate}",
        )
        if text.strip() == _ABSENT:
            return None, ""
        # A terminal on the way would end lines otherwise.
        first, _, rest = text.partition(_NEXT)
        return first, rest

    def _build_login(self) -> list[str]:
        """Return ssh's command line to the machine, as Ansible itself builds it.

        A password goes to the caller's private file. Raises RemoteError for another connection.
        """
        connection = self._connection
        if connection.transport != "ssh":
            raise RemoteError(
                f"a tunnel goes by ssh, and this host's connection is {connection.transport}",
                "leave out --tunnel",
            )
        program = str(connection.get_option("ssh_executable"))
        words = [os.fsdecode(word) for word in connection._build_command(program, "ssh")]
        # The words that hand a password over come before the program.
        line = words[words.index(program) :]
        password = connection.get_option("password") or connection._play_context.password
        if password:
            secret = {"host": self.host, "password": str(password)}
            append_line(Path(os.environ[KEY_OUT]), secret)
        return [*line, str(connection.host)]
