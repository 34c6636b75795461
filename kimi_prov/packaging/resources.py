"""Where playbooks, roles, inventories and docs are: a checkout's top level, or inside the wheel."""

from __future__ import annotations

from pathlib import Path


def find_root() -> Path:
    """Directory that holds `ansible.cfg`, `playbooks/`, `roles/`, `inventories/` and `docs/`."""
    package = Path(__file__).resolve().parents[1]
    packed = package / "_bundle"
    return packed if packed.is_dir() else package.parent


def find_ansible_config() -> Path:
    """Path of Ansible's configuration, for every way of calling Ansible."""
    return find_root() / "ansible.cfg"


def find_playbook(name: str) -> Path:
    """Path of the playbook `name`, given without its ending."""
    return find_root() / "playbooks" / f"{name}.yml"


def find_plugins() -> Path:
    """Directory of our own Ansible plugins; they are part of the package either way."""
    return Path(__file__).resolve().parents[1] / "ansible" / "plugins"


def find_page(name: str) -> Path:
    """Path of a page of the docs, for a message that sends somebody there."""
    return find_root() / "docs" / name
