"""What is read of NCCL's lines: they are in the form of its source, with names of examples."""

from __future__ import annotations

import pytest

from kimi_prov.on_host.engine.nccl_log import NO_DEVICE, NO_LIBRARY, read_transport

IB = """\
gpu-1:310:310 [0] NCCL INFO NCCL_IB_HCA set to =mlx5_0,mlx5_1
gpu-1:310:355 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_1:1/IB [RO]; OOB ens1:10.0.0.1<0>
gpu-1:310:355 [0] NCCL INFO Initialized NET plugin IB
gpu-1:310:355 [0] NCCL INFO Assigned NET plugin IB to comm
gpu-1:310:355 [0] NCCL INFO Using network IB
gpu-1:310:360 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [receive] via NET/IB/0/GDRDMA
"""
ROCE = """\
gpu-1:310:355 [0] NCCL INFO NET/IB : Using [0]mlx5_2:1/RoCE ; OOB ens1:10.0.0.1<0>
gpu-1:310:355 [0] NCCL INFO Using network IB
gpu-1:310:360 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [send] via NET/IB/0(0)
"""
SOCKET = """\
gpu-1:310:355 [0] NCCL INFO {why}
gpu-1:310:355 [0] NCCL INFO NET/Socket : Using [0]ens1:10.0.0.1<0>
gpu-1:310:355 [0] NCCL INFO Using network Socket
gpu-1:310:360 [0] NCCL INFO Channel 00/0 : 1[0] -> 0[0] [send] via NET/Socket/0
"""


def test_the_cards_and_their_link_are_named() -> None:
    assert read_transport(IB) == {
        "network": "IB",
        "devices": ["mlx5_0:1/IB", "mlx5_1:1/IB"],
        "direct": True,
        "reason": None,
    }
    assert read_transport(ROCE) == {
        "network": "IB",
        "devices": ["mlx5_2:1/RoCE"],
        "direct": False,
        "reason": None,
    }


@pytest.mark.parametrize(
    ("why", "reason"),
    [
        ("Failed to open libibverbs.so[.1]", NO_LIBRARY),
        ("Count not open libibverbs.so.1", NO_LIBRARY),
        ("NET/IB : No device found.", NO_DEVICE),
        ("NCCL_SOCKET_IFNAME set by environment to ens1", None),
    ],
)
def test_tcp_is_named_with_what_nccl_says_about_it(why: str, reason: str | None) -> None:
    found = read_transport(SOCKET.format(why=why))
    assert found is not None
    assert (found["network"], found["devices"], found["reason"]) == ("Socket", [], reason)


def test_a_library_that_opens_at_the_second_name_is_no_fault() -> None:
    """Where only the package without the development files is installed, as here."""
    found = read_transport(f"x [0] NCCL INFO Count not open libibverbs.so\n{IB}")
    assert found is not None
    assert found["reason"] is None


def test_lines_without_a_network_say_nothing() -> None:
    assert read_transport("") is None
    assert read_transport("NCCL INFO NET/IB : No device found.") is None
