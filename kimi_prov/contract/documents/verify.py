"""`kimi-prov/verify/v1`: the results of the acceptance checks."""

from __future__ import annotations

from typing import Literal, TypedDict

from kimi_prov.contract.documents.form import Amount, NotRequired


class Verify(TypedDict):
    """The results of kimi-prov verify."""

    schema: Literal["kimi-prov/verify/v1"]
    ok: bool
    hosts: dict[str, VerifiedHost]


class VerifiedHost(TypedDict):
    """The checks of one host."""

    ok: bool
    endpoint: str
    vantage: Literal["control", "machine", "none"]
    vantage_reason: str
    checks: list[CheckResult]
    stand_ins: list[str]
    suite: NotRequired[Literal["basic", "full"]]
    """Which checks were run."""
    unproven: NotRequired[list[str]]
    """What a full suite could not prove here."""


class CheckResult(TypedDict):
    """A check and its result."""

    name: str
    status: Literal["ok", "fail", "skip"]
    detail: str
    seconds: Amount
    expected: NotRequired[str]
    """What a failed check expected, where it says so."""
    observed: NotRequired[str]
    """What came instead, clean and cut."""
