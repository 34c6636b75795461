"""The proof of a group's network: who is asked, where it runs, and what an answer is worth."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from machine_of_files import tree
from systemd_stand_in import StandIn, systemd_stand_in

from kimi_prov.contract import paths
from kimi_prov.on_host.__main__ import main
from kimi_prov.on_host.engine import network_proof

if TYPE_CHECKING:
    from pathlib import Path

GROUP = {
    "name": "pair",
    "size": 2,
    "rank": 1,
    "members": [
        {"host": "alpha", "rank": 0, "address": "10.0.0.1"},
        {"host": "beta", "rank": 1, "address": "10.0.0.2"},
    ],
    "interface": "ens1",
    "own_addresses": ["10.0.0.2"],
    "peer_addresses": ["10.0.0.1"],
    "last_port": 29541,
    "rdma": None,
}
FOUND = '{"backend": "gloo", "bandwidth_bytes_s": 1.25e9, "latency_s": 1e-4, "bytes": 1048576}'


@pytest.fixture
def systemd(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StandIn:
    return systemd_stand_in(tmp_path / "systemd", monkeypatch)


def prove(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    said: str,
    **plan: Any,
) -> dict[str, Any]:
    """Ask a machine whose engine's python says this; its arguments lie in the file `argv`."""
    python = tmp_path / "env/bin/python"
    python.parent.mkdir(parents=True)
    (tmp_path / "said").write_text(said)
    python.write_text(f'#!/bin/sh\necho "$@" > {tmp_path}/argv\ncat {tmp_path}/said\n')
    python.chmod(0o755)
    file = tmp_path / "plan.json"
    instance = {"gpus": [], "env": {"GLOO_SOCKET_IFNAME": "ens1"}}
    given = {
        "engine": {"env_dir": str(tmp_path / "env")},
        "instances": [instance],
        "group": GROUP,
        **plan,
    }
    file.write_text(json.dumps(given))
    monkeypatch.setattr(paths, "PLAN", str(file))
    main(["network-proof"])
    answer: dict[str, Any] = json.loads(capsys.readouterr().out.splitlines()[-1])
    return answer


def test_it_runs_in_the_sandbox_and_reaches_the_group_alone(
    tmp_path: Path,
    systemd: StandIn,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    answer = prove(tmp_path, monkeypatch, capsys, f"warning: slow\n{FOUND}\n")
    assert answer["found"] == {**json.loads(FOUND), "transport": None}
    assert (answer["rank"], answer["said"]) == (1, "")
    asked = (tmp_path / "argv").read_text().split()
    assert asked[2:] == [
        *("network-proof", "--rank=1", "--size=2", "--master=10.0.0.1", "--port=29541"),
        *("--interface=ens1", "--backend=gloo"),
    ]
    allowed = [text for text in systemd.options if "IPAddress" in text]
    assert sorted(allowed) == [
        "--property=IPAddressAllow=10.0.0.1",
        "--property=IPAddressAllow=10.0.0.2",
        "--property=IPAddressAllow=localhost",
        "--property=IPAddressDeny=any",
    ]
    assert not any("infiniband" in text for text in systemd.options)


def test_with_gpus_it_is_nccl_with_the_rdma_devices(
    tmp_path: Path,
    systemd: StandIn,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    rdma = {"kind": "infiniband", "devices": ["mlx5_0"], "gid_index": None}
    instances = [{"gpus": [0, 1], "env": {"NCCL_IB_HCA": "=mlx5_0"}}]
    took = {"network": "IB", "devices": ["mlx5_0:1/IB", 7], "direct": True, "reason": "\x1b[2J"}
    answer = prove(
        tmp_path,
        *(monkeypatch, capsys, json.dumps({**json.loads(FOUND), "transport": took})),
        group={**GROUP, "rdma": rdma},
        instances=instances,
    )
    kept = {"network": "IB", "devices": ["mlx5_0:1/IB"], "direct": True, "reason": None}
    assert answer["found"]["transport"] == kept
    assert "--backend=nccl" in (tmp_path / "argv").read_text()
    assert "--property=DeviceAllow=char-infiniband_verbs rwm" in systemd.options


@pytest.mark.parametrize(
    ("said", "told"),
    [
        ('{"error": {"message": "network-proof: timed out"}}', "network-proof: timed out"),
        ("", "exit status 0"),
        ("[]", "exit status 0"),
        (FOUND.replace("1.25e9", '"fast"'), "exit status 0"),
        (FOUND.replace("1.25e9", "NaN"), "exit status 0"),
        (FOUND.replace("1.25e9", "-1.0"), "exit status 0"),
    ],
)
@pytest.mark.usefixtures("systemd")
def test_what_is_no_measurement_is_told_as_none(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    said: str,
    told: str,
) -> None:
    answer = prove(tmp_path, monkeypatch, capsys, said)
    assert (answer["found"], answer["said"]) == (None, told)


def test_a_host_that_serves_alone_has_nothing_to_measure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer = prove(tmp_path, monkeypatch, capsys, FOUND, group=None)
    assert "serves its model alone" in answer["error"]["message"]


def test_the_promise_is_that_of_the_slowest_device(tmp_path: Path) -> None:
    machine = tree(
        tmp_path,
        {
            "/sys/class/net/ens1/device/x": "",
            "/sys/class/net/ens1/speed": "10000",
            "/sys/class/net/ens1/mtu": "9000",
            "/sys/class/infiniband/mlx5_0/ports/1/rate": "400 Gb/sec (4X NDR)",
            "/sys/class/infiniband/mlx5_1/ports/1/rate": "100 Gb/sec (4X EDR)",
            "/sys/class/infiniband/mlx5_1/ports/2/rate": "200 Gb/sec (4X HDR)",
        },
    )
    group = {**GROUP, "rdma": {"devices": ["mlx5_0", "mlx5_1:2"]}}
    assert network_proof.describe_link(group, machine) == {
        "interface": "ens1",
        "speed_bits_per_s": 10**10,
        "mtu": 9000,
        "rdma_bits_per_s": 2 * 10**11,
    }
    assert network_proof.describe_link(GROUP, machine)["rdma_bits_per_s"] is None
