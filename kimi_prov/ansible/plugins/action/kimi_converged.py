"""Action `kimi_converged`: find out in one round trip whether a role has anything to do."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

from kimi_prov.ansible.host_action import HostAction
from kimi_prov.ansible.remote import RemoteError, call

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.answers import SettledAnswer

DOCUMENTATION = """
module: kimi_converged
short_description: Compares files, units and weights with the machine
description: Returns C(converged) and C(differs), and changes nothing.
options:
  files:
    type: dict
    default: {}
    description: The text of each file by its path.
  units:
    type: list
    elements: str
    default: []
    description: Units that have to be active.
  weights:
    type: bool
    default: false
    description: Whether a converged machine has verified weights.
  converted:
    type: bool
    default: false
    description: Whether a converged machine has converted experts.
  staged:
    type: bool
    default: false
    description: Whether a converged machine has a filled RAM disk or a warm page cache.
"""


class ActionModule(HostAction):
    """A machine without our program, or with an older one, has everything to do."""

    def act(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Ask the machine, and return the first difference."""
        digests = {
            path: hashlib.sha256(str(text).encode()).hexdigest()
            for path, text in args["files"].items()
        }
        try:
            # A machine with an older version knows only this name of the subcommand.
            answer: SettledAnswer = call(self, "settled", stdin={**args, "files": digests})
        except RemoteError as error:
            answer = {"settled": False, "differs": error.line}
        return {"converged": answer["settled"], "differs": answer["differs"]}
