"""A refusal of kubectl has the exit code of what it means."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

import pytest

from kimi_prov.errors import UserError
from kimi_prov.operate.kubernetes.kubectl import Kubectl

if TYPE_CHECKING:
    from pathlib import Path

# which nodes take a pod


# in which order


# what changes


# answers that are none


# what kubectl's refusals mean

_NO = "Error from server (Forbidden): "
_INTERNAL = "Error from server (InternalError): Internal error occurred: "


@pytest.mark.parametrize(
    ("told", "code", "fix"),
    [
        (f'{_NO}pods is forbidden: User "me" cannot list resource "pods"', 2, "that right"),
        (f'{_NO}pods "x" is forbidden: exceeded quota: team, used: cpu=4', 3, "resourcequota"),
        (f'{_NO}pods "x" is forbidden: failed quota: team: must specify cpu', 3, "resourcequota"),
        (f'{_NO}admission webhook "v" denied the request: dial tcp', 3, "policy"),
        (f"{_NO}ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no", 3, "policy"),
        (f'{_NO}pods "x" is forbidden: violates PodSecurity "restricted:v1"', 3, "policy"),
        (f"{_NO}maximum memory usage per Container is 1Gi, but limit is 2Gi", 3, "limitrange"),
        (f'{_INTERNAL}failed calling webhook "v": connection refused', 1, "webhook"),
        (f'{_INTERNAL}failed calling webhook "v": x509: certificate has expired', 1, "webhook"),
        (f'{_INTERNAL}failed calling webhook "v": context deadline exceeded', 1, "webhook"),
        ("The connection to the server x was refused - did you specify the right host or port?",
         4, "cluster-info"),
        ("Unable to connect to the server: x509: certificate has expired", 4, "cluster-info"),
        ("error: current-context must exist in order to minify", 2, "get-contexts"),
        ("error: You must be logged in to the server (Unauthorized)", 2, "get-contexts"),
        ('Error from server (NotFound): pods "x" not found', 1, "apply -f -"),
    ],
)  # fmt: skip
def test_a_refusal_has_the_exit_code_of_what_it_means(
    tmp_path: Path, told: str, code: int, fix: str
) -> None:
    # Stands in for kubectl: the sentences of API servers that are not here.
    (tmp_path / "told").write_text(told)
    program = tmp_path / "kubectl"
    program.write_text(f"#!/bin/sh\ncat {shlex.quote(str(tmp_path / 'told'))} >&2\nexit 1\n")
    program.chmod(0o755)
    with pytest.raises(UserError) as raised:
        Kubectl(str(program), "there", "kimi").run("apply", "-f", "-", content="{}")
    assert raised.value.exit_code == code
    assert fix in (raised.value.fix or "")
