"""The load that machines are sized for: requested and assumed values."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, cast

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.contract.documents.check import CheckedLoad

# The default request: a prompt with some files, an answer with its reasoning.
INPUT_TOKENS, OUTPUT_TOKENS = 8192, 1024


@dataclass(frozen=True)
class Load:
    """The load to carry; None: not requested.

    `people` is who may ask, `users` is requests in flight at peak, `tokens_per_day` output tokens
    of all of them, `ttft_s` the longest time to the first token, `tpot_ms` the longest between two
    tokens of a request.
    `assumed` names the fields with assumed values.
    """

    people: int | None = None
    users: int | None = None
    tokens_per_day: float | None = None
    ttft_s: float | None = None
    tpot_ms: float | None = None
    input_tokens: int = INPUT_TOKENS
    output_tokens: int = OUTPUT_TOKENS
    assumed: frozenset[str] = field(default_factory=frozenset)

    @property
    def inputs(self) -> float:
        """Tokens of a prompt for each token of its answer."""
        return self.input_tokens / self.output_tokens

    def fits(self, context: int) -> bool:
        """Whether a context holds a request of the given lengths; assumed lengths are cut to it."""
        lengths = ("input_tokens", "output_tokens")
        return sum(1 if key in self.assumed else getattr(self, key) for key in lengths) <= context

    def document(self) -> CheckedLoad:
        """Return the check document's `load`."""
        figures = {
            name: None
            if getattr(self, name) is None
            else {"value": getattr(self, name), "assumed": name in self.assumed}
            for name in NAMES
        }
        return cast("CheckedLoad", figures)


NAMES = tuple(part.name for part in fields(Load) if part.name != "assumed")


def make_load(options: Mapping[str, Any], concurrency: int, share: float) -> Load | None:
    """Make the load from given values; None where there are none.

    Of `people`, `share` have a request in flight at peak. Without people, users and tokens a day it
    has `concurrency` users, the planned number.
    """
    known = {name: options[name] for name in NAMES if options.get(name) is not None}
    if not known:
        return None
    assumed = {"input_tokens", "output_tokens"} - known.keys()
    if "people" in known:
        known["users"] = math.ceil(known["people"] * share)
        assumed.add("users")
    if "users" not in known and "tokens_per_day" not in known:
        known["users"] = concurrency
        assumed.add("users")
    return Load(**known, assumed=frozenset(assumed))
