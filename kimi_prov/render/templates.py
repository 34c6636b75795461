"""Templates of rendered files."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from kimi_prov.contract import clean_text
from kimi_prov.contract.sizes import format_bytes

if TYPE_CHECKING:
    from pathlib import Path


@cache
def make_environment(folder: Path) -> Environment:
    """Return the environment of a folder of templates; a name that has no value is an error."""
    environment = Environment(
        loader=FileSystemLoader(folder),
        undefined=StrictUndefined,
        autoescape=False,  # noqa: S701  (bash, YAML and text: filters quote)
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    environment.filters |= {"line": clean_text.clean_line, "size": format_bytes}
    return environment


def list_names(folder: Path) -> list[str]:
    """List the files that a folder of templates makes; those with a leading _ are parts."""
    paths = (path.relative_to(folder) for path in folder.rglob("*.j2"))
    return sorted(path.as_posix().removesuffix(".j2") for path in paths if path.name[0] != "_")
