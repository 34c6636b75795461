"""The argument specifications of the roles."""

from __future__ import annotations

from typing import TYPE_CHECKING

import yaml

from kimi_prov.packaging import resources

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from pathlib import Path

    # An option's specification in Ansible's own form.
    Spec = Mapping[str, object]


def iterate_roles(
    names: Iterable[str],
) -> Iterator[tuple[str, set[str], dict[str, Spec]]]:
    """Give each role's prefix, the `names` that have it, and the role's options."""
    words = {str(name) for name in names}
    for folder in sorted((resources.find_root() / "roles").iterdir()):
        prefix = f"{folder.name}_"
        named = {word for word in words if word.startswith(prefix)}
        if named:
            yield prefix, named, _read_options(folder)


def find_secret_files(names: Iterable[str]) -> set[str]:
    """Return the options among `names` whose files hold secrets: those with `no_log`."""
    return {
        name
        for _, named, options in iterate_roles(names)
        for name in named
        if options.get(name, {}).get("no_log")
    }


def _read_options(folder: Path) -> dict[str, Spec]:
    """Every entry point's options of one role."""
    path = folder / "meta" / "argument_specs.yml"
    if not path.is_file():
        return {}
    specs = yaml.safe_load(path.read_text(encoding="utf-8"))["argument_specs"]
    return {name: spec for entry in specs.values() for name, spec in entry["options"].items()}
