"""`kimi-prov bundle`: one folder that brings all to machines without the internet."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kimi_prov import documents, inventory_files, schemas
from kimi_prov.catalog import loader
from kimi_prov.commands import pin
from kimi_prov.commands.check import targets
from kimi_prov.commands.common import playbook_run
from kimi_prov.commands.common.command import Command
from kimi_prov.commands.common.option_types import PieceSize
from kimi_prov.commands.common.options import CATALOG, EXTRA, MODEL, PATH, add_inventory_options
from kimi_prov.contract import clean_text
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.on_host.weights import manifest as manifests
from kimi_prov.operate.bundle import signing
from kimi_prov.operate.bundle.advisories import UnknownError, find_advisories
from kimi_prov.operate.bundle.difference import Earlier
from kimi_prov.operate.bundle.gather import LOCK, Extent, Gathering, Machine
from kimi_prov.packaging import resources
from kimi_prov.planner.plan import make_plan
from kimi_prov.planner.settings import parsing
from kimi_prov.planner.software.bundle import get_serving
from kimi_prov.runner.inventory import find_vars_file
from kimi_prov.show.output import Output, say
from kimi_prov.show.text import bundle as bundle_text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.commands.common.playbook_run import PlaybookOptions
    from kimi_prov.contract.documents.bundle import Bundle
    from kimi_prov.contract.documents.plan import Plan
    from kimi_prov.on_host.weights.manifest import Manifest
    from kimi_prov.planner.software.bundle import WeightsNeed

_DEFAULT_MODEL = "kimi-k2.5"
_DATA = ("kimi-prov/spec/", "kimi-prov/facts/")
_FIX = "write a YAML mapping of kimi_* variables"


@click.command(cls=Command)
@add_inventory_options(
    click.option(
        "--output", type=PATH, required=True, metavar="DIR", help="The folder of the bundle."
    ),
    click.option(
        "--sign-with", required=True, metavar="KEY", help="gpg's secret key that signs the index."
    ),
    click.option(
        "--since",
        type=PATH,
        metavar="OTHER",
        help="Bring only what this earlier bundle lacks, of which the index is enough.",
    ),
    click.option(
        "--with-weights", is_flag=True, help="Bring the weights too, from the hub or a web server."
    ),
    click.option(
        "--pieces",
        type=PieceSize(),
        metavar="SIZE",
        help="Also cut it into pieces of this size, such as 4G (4 * 10^9 bytes).",
    ),
    click.option(
        "--advisories",
        is_flag=True,
        help="Ask pip-audit, if installed, for security faults of the Python packages.",
    ),
    MODEL,
    click.option(
        "--os",
        "systems",
        metavar="NAME,...",
        help="Of a sheet: the systems to make it for, such as debian-12.",
    ),
    EXTRA,
    CATALOG,
    click.option(
        "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True
    ),
    report=None,
)
def bundle(
    path: Path,
    options: PlaybookOptions,
    *,
    output: Path,
    sign_with: str,
    model: str | None,
    systems: str | None,
    **choices: Any,  # noqa: ANN401
) -> ExitCode:
    """Gather all that apply installs, for machines without the internet.

    INVENTORY may be a spec sheet or a facts file, which names its schema. What came is kept: the
    same command again goes on, or brings the folder up to date.
    """
    # What is no inventory is refused before the key is looked for.
    inventory_files.list_sources(path, resources.find_ansible_config())
    catalogue, fingerprint = loader.load_catalogue(), signing.find_fingerprint(sign_with)
    if _is_data(path):
        machines = _plan_sheet(path, options, model, _list_systems(systems, catalogue), catalogue)
    else:
        machines, code = _plan_inventory(path, options, model, systems)
        if code is not ExitCode.OK:
            return code
    since = choices["since"]
    extent = Extent(
        Earlier(_require_other(since, output)) if since else None,
        _locate_weights if choices["with_weights"] else None,
        choices["pieces"],
    )
    run = Gathering(output, machines, catalogue, _say_row, extent)
    run.check_room(run.prepare())
    document = run.run(fingerprint)
    if choices["advisories"] and document["ok"]:
        _add_advisories(document, catalogue)
    Output(choices["form"]).write(
        document, lambda: bundle_text.format_text(document, str(output.absolute()), fingerprint)
    )
    return ExitCode.OK if document["ok"] else ExitCode.BLOCKED


def _say_row(line: str) -> None:
    say(clean_text.clean_row(line))


def _require_other(since: Path, output: Path) -> Path:
    if since.resolve() == output.resolve():
        raise UserError(
            f"--since and --output are both {clean_text.clean_line(str(output))}",
            fix="name another folder in --output: the difference is carried",
        )
    return since


def _locate_weights(plan: Plan, row: WeightsNeed) -> tuple[str, Manifest | None]:
    """Return the address below which the files lie, and their manifest by the hub's own digests."""
    if not row.source.startswith("hf://"):
        return row.source, None
    machine = get_serving(plan)
    endpoint = machine["weights"]["hf_endpoint"] if machine else None
    environment = {**os.environ, **({"HF_ENDPOINT": endpoint} if endpoint else {})}
    ca_bundle = plan["site"]["ca_bundle"]
    pinned = pin.pin(
        row.source, ca_bundle=Path(ca_bundle) if ca_bundle else None, environment=environment
    )
    manifest = manifests.parse(pinned, row.source)
    url, _ = pin.locate_files(row.source, str(manifest.revision), None, environment)
    return url, manifest


def _add_advisories(document: Bundle, catalogue: Catalogue) -> None:
    names = sorted({LOCK, *(row["name"] for row in document["locks"])})
    _say_row(f"asking pip-audit about the packages of {len(names)} locks")
    try:
        document["advisories"] = find_advisories([catalogue.lock(name) for name in names])
    except UnknownError as error:
        _say_row(f"security advisories are not known: {error}")


def _is_data(path: Path) -> bool:
    """Whether a file names the schema of a sheet or of facts: an inventory is run by Ansible."""
    if not path.is_file():
        return False
    text = documents.read_document(path, what="a target", limit=16 << 20, fix=targets.KINDS).text
    return (schemas.named_in(text) or "").startswith(_DATA)


def _plan_inventory(
    path: Path, options: PlaybookOptions, model: str | None, systems: str | None
) -> tuple[list[Machine], ExitCode]:
    """Describe and plan the hosts, as for the network even where a bundle is named already."""
    if systems or model:
        raise UserError(
            "--os and --model are for a spec sheet: the hosts of an inventory say theirs",
            fix="leave them out",
        )
    inventory, request = playbook_run.prepare(
        "bundle", "plan", path, options, {"kimi_bundle": None}
    )
    finished = playbook_run.run(request, inventory)
    outcome = finished.outcome
    machines = [Machine(host, plan, outcome.facts[host]) for host, plan in outcome.plans.items()]
    return machines, playbook_run.conclude(finished)


def _plan_sheet(
    path: Path,
    options: PlaybookOptions,
    model: str | None,
    systems: Sequence[str],
    catalogue: Catalogue,
) -> list[Machine]:
    facts = targets.read(path, "bundle")
    name = targets.find_name(path, facts)
    variables = {"kimi_model": _DEFAULT_MODEL, **targets.read_variables(facts)}
    for text in options.extra:
        file = find_vars_file(text)
        variables |= documents.read_document(file, what="variables", limit=1 << 20, fix=_FIX).yaml(
            _FIX
        )
    variables |= {"kimi_bundle": None, **({"kimi_model": model} if model else {})}
    settings = parsing.parse_settings(variables, host=name, base=path.absolute().parent)
    if not systems and facts["host"]["os"]["id"] is None:
        raise UserError(
            f"{path}: it names no operating system, on which packages and wheels depend",
            fix="add  --os debian-12",
        )
    machines = []
    for system in systems or [""]:
        row = targets.set_system(facts, system, catalogue) if system else facts
        label = f"{name} ({system})" if system else name
        machines.append(Machine(label, make_plan(row, settings, catalogue), row))
    return machines


def _list_systems(text: str | None, catalogue: Catalogue) -> list[str]:
    names = [name.strip() for name in (text or "").split(",") if name.strip()]
    known = [f"{row.id}-{row.version}" for row in catalogue.systems]
    for name in names:
        if name not in known:
            raise UserError(
                f"--os {clean_text.clean_line(name)}: this system is not in the catalogue",
                fix=f"name some of {', '.join(known)}",
            )
    return names
