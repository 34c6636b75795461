"""Where playbooks, roles, inventories and docs are: a checkout's top level, or inside the wheel."""

from __future__ import annotations

from pathlib import Path


def root() -> Path:
    """Directory that holds `ansible.cfg`, `playbooks/`, `roles/`, `inventories/` and `docs/`."""
    package = Path(__file__).resolve().parents[1]
    packed = package / "_bundle"
    return packed if packed.is_dir() else package.parent


def ansible_config() -> Path:
    """Path of Ansible's configuration, for every way of calling Ansible."""
    return root() / "ansible.cfg"


def playbook(name: str) -> Path:
    """Path of the playbook `name`, given without its ending."""
    return root() / "playbooks" / f"{name}.yml"


def plugins() -> Path:
    """Directory of our own Ansible plugins; they are part of the package either way."""
    return Path(__file__).resolve().parents[1] / "ansible" / "plugins"


def page(name: str) -> Path:
    """Path of a page of the docs, for a message that sends somebody there."""
    return root() / "docs" / name
