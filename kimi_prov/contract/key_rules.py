"""The rule of a key, its limits and its expiry: the form in the proxy's map, engines and counter.

A rule is five numbers, `ENDS:R_MINUTE:T_MINUTE:R_DAY:T_DAY`: seconds since 1970 at which the key
ends, requests and tokens a minute, requests and tokens a day; 0 where there is none. A sixth,
`:PARALLEL`, follows where the requests at once have a limit.

Decides: what an API key may do: expiry and limits.
Applied by: roles/proxy.
Held by: tests/component/on_host/keys/test_key_rules.py,
  tests/unit/on_host/usage/test_usage_store.py, tests/component/on_host/usage/test_usage_kill.py,
  tests/lab/test_keys_and_use.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

# In the order of a rule.
_SPANS = ("requests_per_minute", "tokens_per_minute", "requests_per_day", "tokens_per_day")
PARALLEL = "parallel"
LIMITS = (*_SPANS, PARALLEL)
MAX_LIMIT = 10**12
# The headers by which the proxy tells an engine whose request it is and under which rule; a
# client's headers of these names are removed.
KEY_HEADER = "x-kimi-key"
RULE_HEADER = "x-kimi-rule"
# A header in an engine's answer to /health: the engine counts.
COUNTS_HEADER = "x-kimi-counts"
# The path at which a gateway asks a machine what keys used a moment ago.
RECENT = "/usage/recent"
# Keys for the machine's own requests.
UNCOUNTED = ("verify", "watchdog")
# For a refusal in OpenAI's form, by limit: its type, and its words.
_WORDS = {
    "requests_per_minute": ("requests", "requests a minute"),
    "tokens_per_minute": ("tokens", "tokens a minute"),
    "requests_per_day": ("requests", "requests a day"),
    "tokens_per_day": ("tokens", "tokens a day"),
    PARALLEL: ("requests", "requests at once"),
}
# Seconds: a client waits no longer by itself; after a larger value it would retry at once, in vain.
WAITS_S = 60
# Seconds after which a key with too many requests at once may try again; when one ends is unknown.
PARALLEL_WAIT_S = 5
_RULE = re.compile(r"([0-9]{1,12})" + r":([0-9]{1,13})" * len(_SPANS) + r"(?::([0-9]{1,13}))?")


@dataclass(frozen=True)
class Rule:
    """When a key ends, in seconds since 1970, and its limits by name; None or absent: no limit."""

    ends: int | None = None
    limits: Mapping[str, int] = field(default_factory=dict)

    @property
    def empty(self) -> bool:
        """Return whether the rule has no limit and no expiry."""
        return self.ends is None and not self.limits

    def text(self) -> str:
        """Return the rule as the proxy's map has it."""
        at_once = self.limits.get(PARALLEL)
        numbers = (self.ends, *map(self.limits.get, _SPANS), *([at_once] if at_once else ()))
        return ":".join(str(n or 0) for n in numbers)

    def to_json(self) -> dict[str, Any]:
        """Return the rule for a file or a document."""
        return {"ends": self.ends, "limits": dict(self.limits)}


def describe_refusal(reason: str, wait_s: int) -> tuple[str, str]:
    """Return type and message of the refusal of a key that has reached a limit."""
    kind, words = _WORDS.get(reason, ("requests", "requests"))
    return kind, f"This key has reached its limit of {words}. Try again in {wait_s} s."


def parse(text: str) -> Rule:
    """Parse the output of `text`; an empty rule for anything else."""
    match = _RULE.fullmatch(text)
    if match is None:
        return Rule()
    ends, *limits = (int(text or 0) for text in match.groups())
    return Rule(ends or None, {name: n for name, n in zip(LIMITS, limits) if n})


def read(document: object) -> Rule:
    """Parse a rule of a JSON document. Raises ValueError for another form."""
    if not isinstance(document, Mapping):
        raise ValueError("a rule is a mapping")  # noqa: TRY004  (as for its parts)
    ends, limits = document.get("ends"), document.get("limits") or {}
    if not isinstance(limits, Mapping) or not set(limits) <= {*LIMITS}:
        raise ValueError(f"limits are: {', '.join(LIMITS)}")
    for name, value in (("ends", ends), *limits.items()):
        whole = isinstance(value, int) and not isinstance(value, bool)
        if not (value is None and name == "ends") and not (whole and 0 < value <= MAX_LIMIT):
            raise ValueError(f"{name} is no whole number from 1 to {MAX_LIMIT}")
    if ends is not None and ends >= 10**12:
        raise ValueError("ends is no time")
    return Rule(ends, {name: limits[name] for name in LIMITS if name in limits})
