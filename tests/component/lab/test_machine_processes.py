"""Processes and keys of the lab's virtual machines."""

import ipaddress
import subprocess
import tarfile
from pathlib import Path

from kimi_prov.lab import keys, seed
from kimi_prov.lab.inventory import Lab, LabHost
from kimi_prov.lab.state import HostState, kill_process, launch_host, read_start_time

NODE = LabHost("node1", "nspawn", "debian-12", "10.93.7.11", 22, 4096)
GUEST = LabHost("q1", "qemu", "debian-12", "10.93.7.21", 2222, 6144, (8000, 9000))
LAB = Lab(
    Path("/srv/inv"),
    "inv-12ab34cd",
    "12ab34cd",
    ipaddress.IPv4Network("10.93.7.0/24"),
    (NODE, GUEST),
)


def test_the_seed_carries_the_host_key_for_root_alone(tmp_path):
    key = tmp_path / "host_key"
    keys.ensure_key(key, "host")
    target = tmp_path / "seed.tar"
    seed.write_tar(seed.make_common_files(LAB, NODE, "ssh-ed25519 AAAA lab\n", key), target)
    with tarfile.open(target) as tar:
        assert tar.getmember("etc/ssh/ssh_host_ed25519_key").mode == 0o600
        assert tar.getmember("etc").mode == 0o755
        assert {entry.uid for entry in tar} == {0}
        hosts = tar.extractfile("etc/hosts")
        assert hosts is not None
        assert b"10.93.7.21\tq1\n" in hosts.read()
    assert target.stat().st_mode & 0o777 == 0o600


def test_a_machine_is_on_record_by_pid_and_start_time(tmp_path):
    state = HostState(tmp_path / "node1")
    state.folder.mkdir()
    launch_host(["sleep", "60"], state, "12ab34cd")
    pid = state.running_pid()
    assert pid is not None
    kill_process(state)
    assert state.running_pid() is None
    # The pid of another living process, with the start time of the dead one, is not ours.
    own = subprocess.run(["sh", "-c", "echo $PPID"], check=True, capture_output=True, text=True)
    state.pid_file.write_text(f"{own.stdout.strip()} 1")
    assert read_start_time(int(own.stdout)) is not None
    assert state.running_pid() is None
    kill_process(state)
