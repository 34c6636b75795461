"""The context: the tokens of one conversation, as set, or the most that model and memory allow.

Decides: the context.
Applied by: roles/serve.
Held by: tests/unit/planner/memory/test_gpu.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kimi_prov.planner.settings.flag_names import parse_int

if TYPE_CHECKING:
    from kimi_prov.catalog.models import Model
    from kimi_prov.planner.settings.flag_names import FlagNames
    from kimi_prov.planner.settings.parsing import Settings

# Contexts are offered in whole blocks of this many tokens.
CONTEXT_STEP = 1024


def choose_context(settings: Settings, model: Model, names: FlagNames, most_tokens: int) -> int:
    """Return the context that is set, or the largest that model and cache allow, in whole steps.

    The engine's own flag in `kimi_engine_args` wins over `kimi_context`.
    """
    requested = parse_int(settings.engine_args.get(names.context))
    if requested is not None:
        return requested
    if not settings.auto("context"):
        return int(settings.context)
    fits = max(CONTEXT_STEP, most_tokens // CONTEXT_STEP * CONTEXT_STEP)
    return min(model.context, fits)
