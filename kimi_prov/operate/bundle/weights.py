"""Download a model's weights into a bundle, each file compared with the manifest.

The machine's own program does it: it goes on after an interruption, and keeps what is verified.
"""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING

from kimi_prov.contract.errors import HostError
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.on_host.system.progress import Progress
from kimi_prov.on_host.weights import fetch
from kimi_prov.on_host.weights import manifest as manifests

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


class _Spoken(Progress):
    """Progress in lines for the operator: standard output has the document."""

    def __init__(self, say: Callable[[str], None]) -> None:
        super().__init__(None, "fetch")
        self._tell = say

    def say(self, line: str, *, log: bool = True) -> None:
        if log:
            self._tell(line)


def gather_weights(config: fetch.Config, into: Path, say: Callable[[str], None]) -> None:
    """Bring the files of a source into a folder, with their manifest. Raises UserError."""
    try:
        fetch.run(config, _Spoken(say))
    except HostError as error:
        raise UserError(
            f"the weights of {into.parent.name}: {error.message}",
            fix=error.fix or "run the same command again: complete files are kept",
            exit_code=ExitCode.FAILED,
        ) from None
    # They say of this disk alone what was verified when.
    for name in (manifests.MARK, manifests.LOCK):
        (into / name).unlink(missing_ok=True)
    shutil.rmtree(into / manifests.PARTIAL, ignore_errors=True)
