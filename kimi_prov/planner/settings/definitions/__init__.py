"""All inventory variables: the one table for checks, documentation and templates.

Decides: which variables exist, their checks and defaults.
Held by: tests/unit/planner/settings/test_parsing.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.planner.settings.definitions import (
    access,
    cloud,
    engine,
    hosts,
    kubernetes,
    model,
    operation,
    site,
    slurm,
)

if TYPE_CHECKING:
    from kimi_prov.planner.settings.definitions.variable import Variable

VARIABLES: tuple[Variable, ...] = (
    *model.VARIABLES,
    *access.VARIABLES,
    *engine.VARIABLES,
    *operation.VARIABLES,
    *hosts.VARIABLES,
    *slurm.VARIABLES,
    *kubernetes.VARIABLES,
    *cloud.VARIABLES,
    *site.VARIABLES,
)

BY_NAME = {variable.name: variable for variable in VARIABLES}

# The lengths of a typical request, from the load of `check`: they change estimates.
LENGTH_VARIABLES = ("kimi_input_tokens", "kimi_output_tokens")
# Variables that the product itself sets while a playbook runs; no inventory sets them.
_KEY_VARIABLES = ("kimi_key_rotate", "kimi_key_list", "kimi_key_remove")
INTERNAL = frozenset(
    {
        "kimi_plan",
        "kimi_facts",
        "kimi_shared_settings",
        "kimi_batch",
        *_KEY_VARIABLES,
        *LENGTH_VARIABLES,
    }
)
