"""`kimi-prov probe`: describe this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.contract import clean_text
from kimi_prov.on_host.probe import collect as target_probe
from kimi_prov.on_host.system.machine import Machine
from kimi_prov.packaging.zipapp import build_zipapp
from kimi_prov.show.output import check_file, show

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.show.output import Output


def run(output: Output, zipapp: Path | None, *, measure: bool) -> None:
    """Write this machine's facts, or the zipapp that does so elsewhere."""
    if zipapp is not None:
        check_file("--bundle", zipapp)
        show(f"{clean_text.clean_row(bundle(zipapp))}\n")
        return
    output.check()
    output.write(probe(measure=measure), str)


def probe(*, measure: bool = False) -> dict[str, Any]:
    """Return the facts of the machine we stand on. Changes nothing and needs no root.

    `measure` times memory, disk, hashing and GPUs as well: ten seconds, and a few for each GPU.
    """
    return target_probe.described(Machine(), timed=measure)


def bundle(dest: Path) -> Path:
    """Write the one file that a vendor runs: `python3 FILE > facts.json`. Returns its path."""
    return build_zipapp(dest)
