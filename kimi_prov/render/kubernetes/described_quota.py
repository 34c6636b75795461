"""Quotas and ranges as `kubectl describe resourcequota,limitrange` prints them.

Decides: objects for a Kubernetes cluster (quotas that were described).
Held by: tests/unit/render/test_kubernetes_quota.py.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

# An object of a cluster, as kubectl gives it; and one that is being read.
ClusterObject = Mapping[str, Any]
_Built = dict[str, Any]
_QUOTA = re.compile(r"(?m)^Resource +Used +Hard\b")
_RANGE = re.compile(r"(?m)^Type +Resource +Min +Max\b")
_FIELD = re.compile(r"([A-Za-z]+): *(.*)")
_NAMES = {"Name": "name", "Namespace": "namespace"}


def is_described(text: str) -> bool:
    """Whether a text is what `kubectl describe` prints of quotas or ranges."""
    return bool(_QUOTA.search(text) or _RANGE.search(text))


def read_described(text: str) -> Sequence[ClusterObject]:
    """Return the objects, in the form that `kubectl get -o yaml` gives them."""
    rows: list[_Built] = []
    for line in text.splitlines():
        words, field = line.split(), _FIELD.match(line)
        if field and field[1] == "Name":
            rows.append({"kind": "ResourceQuota", "metadata": {}, "spec": {}, "status": {}})
        if not rows or not words or set(line) <= {"-", " "}:
            continue
        row = rows[-1]
        if field:
            _read_field(row, field[1], field[2].strip())
        elif words[0] == "Type":
            row["kind"], row["spec"] = "LimitRange", {"limits": []}
        elif row["kind"] == "LimitRange" and len(words) >= 4:
            _read_limit(row, words)
        elif words[0] != "Resource" and len(words) == 3:
            row["spec"].setdefault("hard", {})[words[0]] = words[2]
            row["status"].setdefault("used", {})[words[0]] = words[1]
    return rows


def _read_field(row: _Built, name: str, value: str) -> None:
    if name in _NAMES:
        row["metadata"][_NAMES[name]] = value
    elif name == "Scopes":
        row["spec"]["scopes"] = [scope.strip() for scope in value.split(",")]


def _read_limit(row: _Built, words: list[str]) -> None:
    kind, resource, least, most = words[:4]
    bounds = {"min": least, "max": most}
    limit = {side: {resource: value} for side, value in bounds.items() if value != "-"}
    row["spec"]["limits"].append({"type": kind, **limit})
