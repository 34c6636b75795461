from __future__ import annotations

import os
import socket
from pathlib import Path

from kimi_prov.acceptance import suite
from kimi_prov.contract import paths as layout
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.engine import runtime

ENGINE = {"index": 0, "port": 8001}

NUMA_MAPS = """\
7f10 bind:0 anon=300 dirty=300 active=0 N0=290 N1=10 kernelpagesize_kB=4
7f20 bind:0 huge anon=2 N0=2 kernelpagesize_kB=2048
7f30 default file=/lib/x.so mapped=5 N1=5 kernelpagesize_kB=4
7f40 bind:0
7f50 bind:0 file=/dev/shm/psm_1 dirty=4 N0=3 N1=1 kernelpagesize_kB=4
"""


def test_a_process_own_pages_of_every_size_are_counted_on_their_node():
    """Not those of libraries: another engine may have read them first, from another node."""
    found = runtime.parse_numa_maps(NUMA_MAPS)
    assert found["bytes_by_node"] == {"0": 293 * 4096 + 2 * 2048 * 1024, "1": 11 * 4096}
    assert found["policies"] == {"bind:0": 4, "default": 1}


def test_this_very_process_can_be_read():
    found = runtime.parse_status(Path("/proc/self/status").read_text())
    allowed = sorted(os.sched_getaffinity(0))
    assert found["cpus"].startswith(str(allowed[0]))
    assert found["resident_bytes"] > 1_000_000


def test_threads_and_huge_pages_of_a_unit_are_told(tmp_path):
    """Of a made-up /proc: what a kernel calls huge differs from machine to machine."""
    (tmp_path / "7" / "task" / "8").mkdir(parents=True)
    status = "Name:\tx\nCpus_allowed_list:\t2\nVmRSS:\t 9 kB\n"
    for place in (tmp_path / "7" / "status", tmp_path / "7" / "task" / "8" / "status"):
        place.write_text(status)
    (tmp_path / "7" / "smaps_rollup").write_text(
        "Rss: 9 kB\nAnonHugePages:   4096 kB\nShmemPmdMapped: 1 kB\nPrivate_Hugetlb: 2048 kB\n"
    )
    (tmp_path / "cgroup.procs").write_text("7\n")
    (found,) = runtime.list_processes("/", tmp_path, tmp_path)
    assert found["threads"] == {"2": 1}
    assert found["huge_bytes"] == 6144 * 1024


def test_listening_addresses_are_told_apart():
    with socket.socket() as loop, socket.socket() as everywhere:
        loop.bind(("127.0.0.1", 0))
        everywhere.bind(("0.0.0.0", 0))
        loop.listen()
        everywhere.listen()
        ports = [loop.getsockname()[1], everywhere.getsockname()[1], 1]
        found = runtime.find_listeners(ports)
    assert found == {str(ports[0]): ["127.0.0.1"], str(ports[1]): ["any"], "1": []}


def test_an_engine_that_ended_is_told_with_its_cause(tmp_path, monkeypatch):
    """`verify` says why it does not run, as `apply` and `start` do; no secret is in it."""
    programs = tmp_path / "bin"
    programs.mkdir()
    said = "Started kimi-serve@0.service.\nOSError: [Errno 98] Address already in use: hf_secret7\n"
    show = "Id=kimi-serve@0.service\nLoadState=loaded\nActiveState=failed\nMainPID=0\n"
    for name, text in (("systemctl", show), ("journalctl", said)):
        (programs / name).write_text(f"#!/bin/sh\ncat <<'END'\n{text}END\n")
        (programs / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{programs}:{os.environ['PATH']}")
    places = Paths(tmp_path / "root")
    token = places.locate(layout.HUB_TOKEN)
    token.parent.mkdir(parents=True)
    token.write_text("hf_secret7\n")
    monkeypatch.setattr(runtime.plans, "read_machine_plan", lambda path: {"instances": [ENGINE]})
    monkeypatch.setattr(runtime.certificate, "describe_current", lambda *_: None)
    seen = runtime.collect(places)
    check = suite.check_placement({"instances": [ENGINE]}, seen)
    assert check["status"] == "fail"
    assert "instance 0 does not run: " in check["detail"]
    assert "already in use" in check["detail"]
    assert "hf_secret7" not in str(seen)
