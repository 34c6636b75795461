"""Action `kimi_converged`: ask in one round trip whether a role has anything to do."""

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
    description: Whether the weights have to be verified.
  converted:
    type: bool
    default: false
    description: Whether the experts have to be converted.
  staged:
    type: bool
    default: false
    description: Whether the RAM disk has to be filled, or the page cache warmed.
"""


class ActionModule(HostAction):
    """A machine without our program, or with an older one, has everything to do."""

    def act(self, args: Mapping[str, Any]) -> dict[str, Any]:
        """Ask, and return what differs first."""
        digests = {
            path: hashlib.sha256(str(text).encode()).hexdigest()
            for path, text in args["files"].items()
        }
        try:
            # An older version may answer, which knows this question by this name alone.
            answer: SettledAnswer = call(self, "settled", stdin={**args, "files": digests})
        except RemoteError as error:
            answer = {"settled": False, "differs": error.line}
        return {"converged": answer["settled"], "differs": answer["differs"]}
