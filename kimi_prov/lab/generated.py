"""The files that `up` writes beside the inventory, and `down` removes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import yaml

from kimi_prov.errors import UserError
from kimi_prov.lab.inventory import address6
from kimi_prov.lab.keys import ssh_options

if TYPE_CHECKING:
    from kimi_prov.lab.inventory import Lab
    from kimi_prov.lab.machine import Machine
    from kimi_prov.lab.state import LabState

_HEAD = "# Written by `kimi-prov lab up`, removed by `kimi-prov lab down`. Edits are lost.\n---\n"


def group_variables(lab: Lab, state: LabState, product: dict[str, object]) -> dict[str, object]:
    """Variables for all hosts of the inventory: how to reach them, and the package indexes."""
    return {
        "ansible_user": "root",
        "ansible_ssh_private_key_file": str(state.key),
        "ansible_ssh_common_args": " ".join(ssh_options(state.known_hosts)),
        "lab_gateway6": address6(lab.gateway),
        **product,
    }


def host_variables(machine: Machine) -> dict[str, object]:
    """Variables of one host: where it answers, what it sees of us, and as what it really runs."""
    return {
        "ansible_host": machine.address,
        "ansible_port": machine.port,
        "lab_gateway": machine.gateway,
        "lab_address6": address6(machine.host.address),
        "lab_runs_as": machine.kind,
    }


def plan_files(
    lab: Lab, state: LabState, machines: list[Machine], product: dict[str, object]
) -> dict[Path, str]:
    """Content of each generated file by its path.

    Raises UserError where a file stands in the place of a folder: Ansible would read only one.
    """
    files = {lab.inventory / "group_vars" / "all" / "lab.yml": group_variables(lab, state, product)}
    for machine in machines:
        path = lab.inventory / "host_vars" / machine.host.name / "lab.yml"
        files[path] = host_variables(machine)
    for path in files:
        for ending in (".yml", ".yaml", ".json"):
            rival = path.parent.with_name(path.parent.name + ending)
            if rival.exists():
                raise UserError(
                    f"{rival}: the lab writes {path}, and Ansible reads either this file or that "
                    "folder, not both",
                    fix=f"mkdir -p {path.parent} && mv {rival} {path.parent}/main.yml",
                )
    return {path: _HEAD + yaml.safe_dump(data, sort_keys=False) for path, data in files.items()}


def write(files: dict[Path, str], state: LabState) -> None:
    """Write the files, having first put them on record for `remove`."""
    known = set(_recorded(state))
    state.generated.write_text("".join(f"{p}\n" for p in sorted(known | {str(p) for p in files})))
    for path, text in files.items():
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            if not path.exists() or path.read_text() != text:
                path.write_text(text)
        except OSError as error:
            raise UserError(
                f"{path}: cannot be written: {error.strerror}",
                fix="copy the inventory to a folder of your own: kimi-prov init DIR --profile lab",
            ) from error


def remove(lab: Lab, state: LabState) -> None:
    """Remove the generated files, and the folders that they leave empty."""
    paths = {Path(line) for line in _recorded(state)}
    paths.add(lab.inventory / "group_vars" / "all" / "lab.yml")
    for path in paths:
        if path.is_file() and path.read_text().startswith(_HEAD.splitlines()[0]):
            path.unlink()
        for folder in (path.parent, path.parent.parent):
            if folder.is_dir() and not any(folder.iterdir()):
                folder.rmdir()


def _recorded(state: LabState) -> list[str]:
    return state.generated.read_text().splitlines() if state.generated.exists() else []
