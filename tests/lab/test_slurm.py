"""The SLURM cluster itself: what the tests of rendered jobs rest on is as on a real one."""

from __future__ import annotations

from typing import TYPE_CHECKING

import cluster
import pytest
from machines import run
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from cluster import Cluster

pytestmark = [pytest.mark.lab, pytest.mark.slow]

# Tells when it begins, which time that is, and what it is sent.
PATIENT = """\
trap 'echo told to finish; exit 0' USR1
trap 'echo told to end; exit 0' TERM
echo "begun ${SLURM_RESTART_COUNT:-0} on $SLURM_JOB_NODELIST"
while :; do sleep 0.2 & wait $!; done
"""
# What was printed before a requeue stays.
APPEND = "--open-mode=append"
BOTH = ("--nodes=2", "--ntasks-per-node=1", "--exclusive")


@pytest.fixture(autouse=True)
def _idle(slurm: Cluster) -> Iterator[None]:
    yield
    slurm.clear()


def test_users_have_a_login_node_and_no_more(slurm: Cluster) -> None:
    assert [slurm.node_state(name) for name in cluster.NODES] == ["idle", "idle"]
    assert slurm.run("hostname; id -un; pwd").split() == ["login", "alice", "/shared/home/alice"]
    assert slurm.tried("sudo -n true").returncode != 0
    refused = slurm.tried("ssh -o BatchMode=yes -o StrictHostKeyChecking=no c1 hostname")
    assert "Permission denied" in refused.stderr
    kept = slurm.tried("cat /shared/home/alice/.profile", user="bob")
    assert "Permission denied" in kept.stderr


def test_a_job_runs_as_its_user_on_the_cores_and_cards_it_asked_for(slurm: Cluster) -> None:
    number = slurm.submit(
        "id -un; nproc; echo $CUDA_VISIBLE_DEVICES; pwd", "--cpus-per-task=1", "--gres=gpu:1"
    )
    slurm.wait_job(number, "COMPLETED")
    assert slurm.output(number).split() == ["alice", "1", "0", "/shared/home/alice"]


def test_a_job_on_two_nodes_has_a_task_on_each_and_knows_their_names(slurm: Cluster) -> None:
    script = "scontrol show hostnames\nsrun bash -c 'echo $SLURM_PROCID is $(hostname)'"
    number = slurm.submit(script, *BOTH)
    slurm.wait_job(number, "COMPLETED")
    lines = slurm.output(number).splitlines()
    assert lines[:2] == ["c1", "c2"]
    assert sorted(lines[2:]) == ["0 is c1", "1 is c2"]


def test_a_job_loads_a_module_of_the_site_once_it_has_read_what_login_shells_read(
    slurm: Cluster,
) -> None:
    script = f"""\
type module >/dev/null 2>&1 || echo none yet
. /etc/profile.d/modules.sh
module load {cluster.MODULE}
echo $SITE_MODULE
"""
    number = slurm.submit(script)
    slurm.wait_job(number, "COMPLETED")
    assert slurm.output(number).splitlines() == ["none yet", "loaded"]


def test_a_user_reaches_a_jobs_port_through_the_login_node(slurm: Cluster) -> None:
    answer = "HTTP/1.0 200 OK\\r\\n\\r\\nhello from the job"
    number = slurm.submit(
        "port=$((20000 + SLURM_JOB_ID))\n"
        f'python3 -c \'import socket, sys; s = socket.create_server(("", int(sys.argv[1])));'
        f' print("listens", sys.argv[1], flush=True)\nwhile True: c = s.accept()[0];'
        f' c.sendall(b"{answer}"); c.close()\' $port'
    )
    port = int(slurm.wait_output(number, "listens").split()[1])
    node = slurm.job(number)["BatchHost"]
    with slurm.tunnel(node, port) as local:
        done = run("curl", "-sS", "--max-time", "20", f"http://127.0.0.1:{local}/")
    assert done.stdout == "hello from the job", done.stderr


def test_what_no_node_can_give_is_refused_when_the_job_is_handed_in(slurm: Cluster) -> None:
    for option in ("--gres=gpu:8", "--mem=9000G", "--constraint=h200", "--partition=none"):
        refused = slurm.tried(f"sbatch {option} --wrap hostname")
        assert refused.returncode != 0, option
        assert "sbatch: error:" in refused.stderr


def test_the_signal_before_the_end_reaches_the_batch_shell(slurm: Cluster) -> None:
    number = slurm.submit(PATIENT, "--time=1", "--signal=B:USR1@50")
    slurm.wait_output(number, "told to finish")
    assert slurm.wait_job(number, "COMPLETED")["TimeLimit"] == "00:01:00"


def test_a_job_that_is_requeued_begins_again_under_its_number(slurm: Cluster) -> None:
    number = slurm.submit(PATIENT, "--requeue", APPEND)
    slurm.wait_output(number, "begun 0")
    slurm.run(f"scontrol requeue {number}")
    slurm.wait_output(number, "begun 1")
    assert slurm.job(number)["Restarts"] == "1"


def test_an_urgent_job_takes_the_nodes_and_the_other_comes_back(slurm: Cluster) -> None:
    number = slurm.submit(PATIENT, *BOTH, "--requeue", APPEND)
    slurm.wait_output(number, "begun 0")
    urgent = slurm.submit("hostname", *BOTH, "--partition=urgent", user="bob")
    slurm.wait_job(urgent, "COMPLETED")
    text = slurm.wait_output(number, "begun 1")
    assert "DUE TO PREEMPTION" in text
    assert text.index("begun 0") < text.index("told to end") < text.index("begun 1")


def test_a_dead_node_ends_its_jobs_and_requeues_those_that_may(slurm: Cluster) -> None:
    lost = slurm.submit(PATIENT, "--nodes=2", "--ntasks-per-node=1", "--no-requeue")
    back = slurm.submit(PATIENT, "--nodelist=c2", "--requeue", APPEND)
    slurm.wait_output(lost, "begun 0")
    slurm.wait_output(back, "begun 0")
    with slurm.without_node("c2"):
        slurm.wait_job(lost, "NODE_FAIL")
        assert slurm.node_state("c2") == "down*"
        assert slurm.state(back) == "PENDING"
    slurm.wait_output(back, "begun 1 on c2")


def test_nodes_that_are_cut_off_reach_the_cluster_and_nothing_else(slurm: Cluster) -> None:
    # An address that is nobody's, by the rules.
    asked = "ping -q -c1 -W2 login >/dev/null && echo near; ping -q -c1 -W2 203.0.113.1 2>&1"
    with slurm.cut_off(*cluster.NODES):
        number = slurm.submit(asked, "--nodelist=c1")
        slurm.wait_job(number, "COMPLETED", "FAILED")
        assert "near" in slurm.output(number)
        assert "Network is unreachable" in slurm.output(number)
    assert until(lambda: "default" in slurm.node("c1").ssh("ip route"))


def test_a_full_home_takes_nothing_and_the_project_does(slurm: Cluster) -> None:
    with slurm.full_home():
        assert "No space left" in slurm.tried("echo more > ~/more").stderr
        number = slurm.submit("echo more > ~/more", "--output=/shared/projects/%j.out")
        slurm.wait_job(number, "FAILED")
        assert "No space left" in slurm.output(number)
    assert slurm.folder("projects", f"{number}.out").is_file()
