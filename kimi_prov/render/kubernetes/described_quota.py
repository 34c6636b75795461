"""Quotas and ranges as kubectl prints them for people: `describe`, also of a namespace, and `get`.

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
_QUOTA = re.compile(r"(?m)^ *Resource +Used +Hard\b")
_RANGE = re.compile(r"(?m)^ *Type +Resource +Min +Max\b")
_TABLE = re.compile(r"(?m)^NAME +(?:AGE +)?REQUEST +LIMIT\b")
# requests.cpu: 0/64
_USED_OF = re.compile(r"([a-z][\w./-]*): ([0-9][\w.]*)/([0-9][\w.]*)")
_FIELD = re.compile(r"([A-Za-z]+): *(.*)")
_NAMES = {"Name": "name", "Namespace": "namespace"}


def is_described(text: str) -> bool:
    """Whether a text is what kubectl prints for people of quotas or ranges."""
    return any(one.search(text) for one in (_QUOTA, _RANGE, _TABLE))


def read_described(text: str) -> Sequence[ClusterObject]:
    """Return the objects, in the form that `kubectl get -o yaml` gives them."""
    if _TABLE.search(text):
        return _read_table(text)
    rows: list[_Built] = []
    for line in map(str.strip, text.splitlines()):
        words, field = line.split(), _FIELD.match(line)
        if field and field[1] == "Name":
            rows.append({"kind": "ResourceQuota", "metadata": {}, "spec": {}, "status": {}})
        if not rows or not words or set(line) <= {"-", " "}:
            continue
        row = rows[-1]
        if field:
            _read_field(row, field[1], field[2].strip())
        elif words[0] == "Type":
            if row["spec"]:
                # A namespace's ranges follow its quotas, without a name.
                rows.append({"metadata": {}})
            rows[-1] |= {"kind": "LimitRange", "spec": {"limits": []}}
        elif row["kind"] == "LimitRange" and len(words) >= 4:
            _read_limit(row, words)
        elif words[0] != "Resource" and len(words) == 3:
            row["spec"].setdefault("hard", {})[words[0]] = words[2]
            row["status"].setdefault("used", {})[words[0]] = words[1]
    # A namespace begins with its own name.
    return [row for row in rows if row["spec"]]


def _read_table(text: str) -> list[_Built]:
    rows: list[_Built] = []
    for line in text.splitlines():
        parts = _USED_OF.findall(line)
        if parts:
            hard = {name: most for name, _, most in parts}
            used = {name: taken for name, taken, _ in parts}
            metadata = {"name": line.split()[0]}
            row = {"kind": "ResourceQuota", "metadata": metadata, "spec": {"hard": hard}}
            rows.append({**row, "status": {"used": used}})
    return rows


def _read_field(row: _Built, name: str, value: str) -> None:
    if name in _NAMES:
        row["metadata"][_NAMES[name]] = value
    elif name == "Scopes":
        row["spec"]["scopes"] = [scope.strip() for scope in value.split(",")]


def _read_limit(row: _Built, words: list[str]) -> None:
    """Read a row: type, resource, least, most, default request, default limit and a ratio."""
    kind, resource = words[:2]
    sides = zip(("min", "max", "defaultRequest", "default"), words[2:], strict=False)
    limit = {side: {resource: value} for side, value in sides if value != "-"}
    row["spec"]["limits"].append({"type": kind, **limit})
