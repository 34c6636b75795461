"""Quarantines NCCL plugins that fail on one machine: Google's GIB, and its entries of the loader.

`nccl-plugins [--check]`: the files are moved, not deleted, so that `destroy` can restore them.
Renaming them in place does not help: the loader would still find the files.
"""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from kimi_prov.contract import paths
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.probe import software
from kimi_prov.on_host.system import process
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.machine import Machine

if TYPE_CHECKING:
    from kimi_prov.contract.documents.answers import NcclPluginsAnswer
    from kimi_prov.contract.documents.facts.gpus import GibFacts


def main(argv: list[str]) -> int:
    """`nccl-plugins [--check]`."""
    return answer(quarantine(check="--check" in argv))


def quarantine(*, check: bool) -> NcclPluginsAnswer:
    """Move the files below `layout.QUARANTINE` and rebuild the loader's cache."""
    found = _find_plugins()
    if not found or not found["present"]:
        return {"changed": False, "moved": []}
    inside = tuple(f"{folder}/" for folder in found["directories"])
    loose = [path for path in found["cached"] if not path.startswith(inside)]
    places = [*found["directories"], *found["ld_conf"], *loose]
    if not check:
        for path in places:
            _move(path, paths.QUARANTINE + path)
        process.run("ldconfig")
        left = _find_plugins()
        if left and left["present"]:
            raise HostError(
                f"still in the dynamic loader's cache: {', '.join(left['cached'])}",
                "find the entry that names it: ldconfig -v",
            )
    return {"changed": True, "moved": places}


def _find_plugins() -> GibFacts | None:
    machine = Machine()
    return software.describe_gib(machine, software.read_loader(machine))


def _move(path: str, to: str) -> None:
    if os.path.isdir(to) and not os.path.islink(to):
        shutil.rmtree(to)
    os.makedirs(os.path.dirname(to), mode=0o755, exist_ok=True)
    shutil.move(path, to)
