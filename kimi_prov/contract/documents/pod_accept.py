"""`kimi-prov/pod-accept/v1`: what the checks of a pod found."""

from __future__ import annotations

from typing import Literal, TypedDict

from kimi_prov.contract.documents.verify import CheckResult


class PodAccept(TypedDict):
    """What the acceptance checks of a pod found: `kimi-pod accept`."""

    schema: Literal["kimi-prov/pod-accept/v1"]
    ok: bool
    """Whether no check failed."""
    url: str
    """The address that was asked."""
    checks: list[CheckResult]
    """One row a check, as `verify` has them."""
