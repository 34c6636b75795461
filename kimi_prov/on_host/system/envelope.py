"""The output of a subcommand: its own JSON object, or the error instead of it."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.errors import HostError


def answer(document: Mapping[str, Any]) -> int:
    """Print the one JSON object that a subcommand answers with; return 0, its exit status."""
    json.dump(document, sys.stdout, sort_keys=True)
    sys.stdout.write("\n")
    return 0


def fail(error: HostError) -> int:
    """Print the error for the control machine and for a log; return the exit status."""
    # On a terminal both streams are one, and the control machine reads the last line.
    print(error.line, file=sys.stderr, flush=True)
    answer({"error": error.to_json()})
    return error.exit_status
