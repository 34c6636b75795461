"""`kimi-prov probe`: describe this machine."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from kimi_prov.commands.common.command import Command
from kimi_prov.commands.common.options import OUTPUT, PATH
from kimi_prov.contract import clean_text
from kimi_prov.on_host.probe import collect as target_probe
from kimi_prov.on_host.system.machine import Machine
from kimi_prov.packaging.zipapp import build_zipapp
from kimi_prov.show.output import Output, check_file, show

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.contract.documents.facts import Facts


@click.command(cls=Command)
@OUTPUT
@click.option("--bundle", type=PATH, metavar="FILE", help="Write a file that probes elsewhere.")
@click.option("--measure", is_flag=True, help="Time memory, disk, hashing and GPUs too.")
def probe(output: Path | None, bundle: Path | None, *, measure: bool) -> None:
    """Describe this machine as JSON; needs no root and changes nothing."""
    if bundle is not None:
        if output is not None or measure:
            raise click.UsageError(
                "--bundle takes neither --output nor --measure: it probes nothing."
            )
        check_file("--bundle", bundle)
        show(f"{clean_text.clean_row(write_bundle(bundle))}\n")
        return
    report = Output("json", output)
    report.check()
    report.write(describe_machine(measure=measure), str)


def describe_machine(*, measure: bool = False) -> Facts:
    """Return the facts of this machine. Changes nothing and needs no root.

    `measure` times memory, disk, hashing and GPUs as well: ten seconds, and a few for each GPU.
    """
    return target_probe.describe(Machine(), timed=measure)


def write_bundle(dest: Path) -> Path:
    """Write the file that a vendor runs, `python3 FILE > facts.json`; return its path."""
    return build_zipapp(dest)
