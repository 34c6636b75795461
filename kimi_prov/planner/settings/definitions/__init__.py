"""Every inventory variable there is: the one table that checks, documentation and templates use.

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

# The lengths of a typical request, of the load that `check` is asked for: they change estimates.
LENGTH_VARIABLES = ("kimi_input_tokens", "kimi_output_tokens")
# Set by the product itself while a playbook runs; nobody writes them in an inventory.
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
