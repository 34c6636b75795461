"""Action `kimi_acme`: let the machine order its certificate, or stop ordering one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kimi_prov.ansible.control_files import read_control_file
from kimi_prov.ansible.host_action import HostAction
from kimi_prov.ansible.remote import call
from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.answers import AcmeAnswer

DOCUMENTATION = """
module: kimi_acme
short_description: Orders the certificate, or stops ordering one
description:
  - A unit of the machine answers the order, so a cut connection does not end it.
  - A renewal that fails and can wait is a warning.
options:
  plan:
    type: dict
    required: true
    description: The plan, of which C(proxy.tls.acme) is converged.
"""

MAX_HOOK_CHARACTERS = 1 << 20


def read_hook(path: str | None) -> str | None:
    """Return the text of the program that writes DNS records, None where the plan names none."""
    if path is None:
        return None
    text = read_control_file(path, "kimi_acme_dns_hook", "a script")
    if not text.startswith("#!") or len(text) > MAX_HOOK_CHARACTERS:
        raise UserError(
            f"kimi_acme_dns_hook: {path} is no script: it has to begin with #!",
            fix=f"begin it with  #!/bin/sh  or another interpreter ({Path(path).name})",
        )
    return text


class ActionModule(HostAction):
    """Sends the hook over standard input: it may hold a secret."""

    ERROR_IN_CHECK_MODE = "change"

    def act(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Converge to the plan, and report what was ordered."""
        acme = args["plan"]["proxy"]["tls"]["acme"]
        request = {"acme": acme, "hook": read_hook(acme["dns_hook"]) if acme else None}
        answer: AcmeAnswer = call(
            self, *self.add_check("acme", "ensure"), stdin=request, secret=True
        )
        result: dict[str, Any] = {"changed": answer["changed"]}
        if answer["ordered"]:
            result["msg"] = f"certificate ordered: {answer['ordered']}"
        if answer["warning"]:
            result["warnings"] = [answer["warning"]]
        return result
