"""A role's template filled in with the filters that Ansible finds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jinja2

from kimi_prov.ansible.plugins.filter.kimi import FilterModule

ROOT = Path(__file__).resolve().parents[2]


def filled(role: str, template: str, plan: dict[str, Any], **variables: object) -> str:
    """The template of a role, as Ansible writes it for this plan."""
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(ROOT / "roles" / role / "templates"),
        trim_blocks=True,
        keep_trailing_newline=True,
        undefined=jinja2.StrictUndefined,
        autoescape=False,  # noqa: S701 - units, not HTML
    )
    environment.filters.update(FilterModule().filters())
    return environment.get_template(template).render(kimi_plan=plan, **variables)
