"""`kimi-prov/pod-accept/v1`: the results of a pod's checks."""

from __future__ import annotations

from typing import Literal, TypedDict

from kimi_prov.contract.documents.verify import CheckResult


class PodAccept(TypedDict):
    """The results of the acceptance checks of a pod: `kimi-pod accept`."""

    schema: Literal["kimi-prov/pod-accept/v1"]
    ok: bool
    """Whether no check failed."""
    url: str
    """The address that was tested."""
    checks: list[CheckResult]
    """One row a check, as in `verify`."""
