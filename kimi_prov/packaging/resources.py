"""Paths of playbooks, roles, inventories and docs: in a checkout, or inside the wheel."""

from __future__ import annotations

from pathlib import Path


def find_root() -> Path:
    """Return the folder of `ansible.cfg`, `playbooks/`, `roles/`, `inventories/` and `docs/`."""
    package = Path(__file__).resolve().parents[1]
    packed = package / "_bundle"
    return packed if packed.is_dir() else package.parent


def find_ansible_config() -> Path:
    """Return the path of Ansible's configuration."""
    return find_root() / "ansible.cfg"


def find_playbook(name: str) -> Path:
    """Return the path of the playbook `name`, given without its ending."""
    return find_root() / "playbooks" / f"{name}.yml"


def find_plugins() -> Path:
    """Return the folder of our own Ansible plugins, which is part of the package."""
    return Path(__file__).resolve().parents[1] / "ansible" / "plugins"


def find_page(name: str) -> Path:
    """Return the path of a page of the docs, for a message that refers to it."""
    return find_root() / "docs" / name
