"""The files that `up` writes beside the inventory, and `down` removes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

from kimi_prov.errors import UserError
from kimi_prov.lab.inventory import derive_ipv6
from kimi_prov.lab.keys import make_ssh_options

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.lab.inventory import Lab
    from kimi_prov.lab.machine import Machine
    from kimi_prov.lab.state import LabState

_HEAD = "# Written by `kimi-prov lab up`, removed by `kimi-prov lab down`. Edits are lost.\n---\n"


def make_group_variables(
    lab: Lab, state: LabState, product: dict[str, object]
) -> dict[str, object]:
    """Variables for all hosts of the inventory: how to reach them, and the package indexes."""
    return {
        "ansible_user": "root",
        "ansible_ssh_private_key_file": str(state.key),
        "ansible_ssh_common_args": " ".join(make_ssh_options(state.known_hosts)),
        "lab_gateway6": derive_ipv6(lab.gateway),
        **product,
    }


def make_host_variables(machine: Machine) -> dict[str, object]:
    """Return one host's variables: its address, the control machine's, and the kind it runs as."""
    return {
        "ansible_host": machine.address,
        "ansible_port": machine.port,
        "lab_gateway": machine.gateway,
        "lab_address6": derive_ipv6(machine.host.address),
        "lab_runs_as": machine.kind,
    }


def plan_files(
    lab: Lab, state: LabState, machines: list[Machine], product: dict[str, object]
) -> dict[Path, str]:
    """Return the content of each generated file by its path.

    Raises UserError where a file has a folder's name: Ansible would read only one of them.
    """
    files = {
        lab.inventory / "group_vars" / "all" / "lab.yml": make_group_variables(lab, state, product)
    }
    for machine in machines:
        path = lab.inventory / "host_vars" / machine.host.name / "lab.yml"
        files[path] = make_host_variables(machine)
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


def write_files(files: dict[Path, str]) -> None:
    """Write the files that are missing or differ."""
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


def remove_files(inventory: Path) -> None:
    """Remove the generated files below `inventory`, and the folders that they leave empty.

    A generated file is recognised by its first line: another lab.yml stays.
    """
    for kind in ("group_vars", "host_vars"):
        for path in inventory.glob(f"{kind}/*/lab.yml"):
            if not path.read_text().startswith(_HEAD.splitlines()[0]):
                continue
            path.unlink()
            for folder in (path.parent, path.parent.parent):
                if not any(folder.iterdir()):
                    folder.rmdir()
