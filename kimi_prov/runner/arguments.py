"""The arguments and the environment of ansible-playbook, from pure functions."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kimi_prov import inventory_files
from kimi_prov.packaging import resources
from kimi_prov.runner.connection import ASKS, Connection

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.runner.connection import Access

RUN = "KIMI_PROV_RUN"
PROGRESS = "KIMI_PROV_PROGRESS"
KEY_OUT = "KIMI_PROV_KEY_OUT"
# A larger result reaches the callback empty: a plan carries its manifest.
_RESULT_CHARACTERS = "50000000"


@dataclass(frozen=True)
class Request:
    """One run of one playbook. Paths are absolute; `variables` never reach the command line.

    `inventory` is the path on the command line, `sources` are its files that Ansible reads.
    """

    command: str
    playbook: Path
    inventory: Path
    sources: tuple[Path, ...]
    limit: str | None = None
    tags: str | None = None
    skip_tags: str | None = None
    check: bool = False
    diff: bool = False
    vars_files: tuple[Path, ...] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)
    # Other names of phases: one playbook may do what two commands are called for.
    phase_names: Mapping[str, str] = field(default_factory=dict)
    connection: Connection = field(default_factory=Connection)


@dataclass(frozen=True)
class PrivateFolder:
    """The paths of one run in its private folder, which is removed at its end."""

    folder: Path

    @property
    def variables(self) -> Path:
        """Extra variables, as JSON."""
        return self.folder / "vars.json"

    @property
    def progress(self) -> Path:
        """Lines of progress that action plugins append."""
        return self.folder / "progress"

    @property
    def key(self) -> Path:
        """The file in which the action `kimi_key` hands over the operator's key."""
        return self.folder / "key"

    @property
    def sockets(self) -> Path:
        """Sockets of the SSH connections that this run shares between its tasks."""
        return self.folder / "s"

    @property
    def temporary(self) -> Path:
        """Ansible's own temporary files, rendered templates among them."""
        return self.folder / "tmp"


def find_executable(name: str = "ansible-playbook") -> str:
    """Return the path of one of Ansible's commands, which is installed beside this Python."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else name


def make_playbook_arguments(request: Request, private: PrivateFolder, access: Access) -> list[str]:
    """Return the arguments of ansible-playbook for `request`; the playbook comes last."""
    arguments = [word for source in request.sources for word in ("-i", str(source))]
    arguments += access.playbook_arguments
    for flag, value in (
        ("--limit", request.limit),
        ("--tags", request.tags),
        ("--skip-tags", request.skip_tags),
    ):
        if value:
            arguments += [flag, value]
    if request.check:
        arguments.append("--check")
    if request.diff:
        arguments.append("--diff")
    files = [*request.vars_files, *([private.variables] if request.variables else [])]
    for file in files:
        arguments += ["-e", f"@{file}"]
    return [*arguments, str(request.playbook)]


def make_environment(
    inherited: Mapping[str, str],
    *,
    config: Path,
    plugins: Path,
    private: PrivateFolder,
    run_id: str,
    inventory: Path,
) -> dict[str, str]:
    """Return the variables that ansible-playbook runs with, on top of `inherited`.

    `plugins` holds our own Ansible plugins: beside the configuration in a checkout, elsewhere in
    a wheel. `run_id` marks every process of the run, so that each can be found and ended.
    """
    own = {
        "ANSIBLE_CONFIG": str(config),
        "ANSIBLE_ACTION_PLUGINS": str(plugins / "action"),
        "ANSIBLE_FILTER_PLUGINS": str(plugins / "filter"),
        "ANSIBLE_LOCAL_TEMP": str(private.temporary),
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(private.sockets),
        "ANSIBLE_NOCOLOR": "1",
        "ANSIBLE_FORCE_COLOR": "0",
        # An inventory file that cannot be read is an error: no run uses a part of an inventory.
        "ANSIBLE_INVENTORY_ANY_UNPARSED_IS_FAILED": "true",
        **inventory_files.choose_readers(
            inventory, config, inherited, own=resources.find_ansible_config()
        ),
        **dict.fromkeys(ASKS.values(), "False"),
        "MAX_EVENT_RES": _RESULT_CHARACTERS,
        # Messages are matched in English, and Ansible refuses a locale that is not UTF-8.
        "LC_ALL": "C.UTF-8",
        "PYTHONUNBUFFERED": "1",
        RUN: run_id,
        PROGRESS: str(private.progress),
        KEY_OUT: str(private.key),
    }
    # ansible-runner turns off the check of host keys unless it is set.
    kept = {"ANSIBLE_HOST_KEY_CHECKING": inherited.get("ANSIBLE_HOST_KEY_CHECKING", "True")}
    return {**own, **kept}
