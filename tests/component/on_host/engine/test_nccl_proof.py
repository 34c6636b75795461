"""The proof of NCCL: its ranks are code of the engine, and what they say is data."""

from __future__ import annotations

import io
import json
import sys
from typing import TYPE_CHECKING

import pytest
from systemd_stand_in import StandIn, systemd_stand_in

from kimi_prov.contract import paths
from kimi_prov.on_host.__main__ import main
from kimi_prov.on_host.engine import nccl_proof
from kimi_prov.on_host.system.files import read_json

if TYPE_CHECKING:
    from pathlib import Path

PROOF = {"engine": "vllm-cuda", "driver": "580"}


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    monkeypatch.setattr(paths, "NCCL_STATE", str(tmp_path / "nccl.json"))
    return systemd_stand_in(tmp_path / "systemd", monkeypatch)


def prove(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, said: str, status: int = 0) -> int:
    """Ask with an engine's python that says this."""
    python = tmp_path / "python"
    (tmp_path / "said").write_text(said)
    python.write_text(f'#!/bin/sh\n[ "$4" = --ranks ] && cat {tmp_path}/said\nexit {status}\n')
    python.chmod(0o755)
    request = {"python": str(python), "ranks": 2, "env": {"NCCL_P2P_LEVEL": "NVL"}, "proof": PROOF}
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(request)))
    return main(["nccl-proof"])


def test_a_proof_is_recorded_and_was_made_in_the_sandbox(
    tmp_path: Path, systemd: StandIn, monkeypatch: pytest.MonkeyPatch
) -> None:
    said = 'NCCL version 2.29\n{"proven": true, "said": ""}\n'
    assert prove(tmp_path, monkeypatch, said) == 0
    assert read_json(paths.NCCL_STATE) == PROOF
    assert "--unit=kimi-sandbox.service" in systemd.options
    assert "--property=DevicePolicy=closed" in systemd.options


@pytest.mark.parametrize(
    ("said", "status", "shown"),
    [
        ('{"proven": false, "said": "rank 1: the sum is wrong"}', 0, "rank 1: the sum is wrong"),
        ("", 217, "exit status 217"),
        ("[]", 0, "exit status 0"),
        ('{"proven": "yes", "said": "all is well"}', 0, "all is well"),
        ('{"proven": 1}', 0, "exit status 0"),
    ],
)
@pytest.mark.usefixtures("systemd")
def test_what_proves_nothing_is_not_recorded(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    said: str,
    status: int,
    shown: str,
) -> None:
    assert prove(tmp_path, monkeypatch, said, status) != 0
    answer = json.loads(capsys.readouterr().out.splitlines()[-1])
    assert answer["error"]["message"].endswith(f"over all GPUs failed: {shown}")
    assert read_json(paths.NCCL_STATE) == {}


def test_the_gpus_of_one_host_of_a_group_find_each_other_on_its_loopback(tmp_path: Path) -> None:
    """The sandbox keeps them from the group's network, which the plan names for the engine."""
    python = tmp_path / "python"
    python.write_text('#!/bin/sh\necho "$NCCL_SOCKET_IFNAME $NCCL_SOCKET_FAMILY"; exit 1\n')
    python.chmod(0o755)
    engine = {"NCCL_SOCKET_IFNAME": "eth0", "NCCL_SOCKET_FAMILY": "AF_INET6"}
    found = nccl_proof.prove({"python": str(python), "ranks": 1, "env": engine})
    assert found == {"proven": False, "said": "lo AF_INET"}
