"""KTransformers in a job: sglang's stand-in on the loopback, HAProxy with the job's certificate."""

from __future__ import annotations

import signal
import subprocess
from pathlib import Path

import stand_in_sglang
from test_cluster_serve import BODY, client, cluster, state
from waiting import until

from kimi_prov.on_host.endpoint import api_client

ARGUMENTS = ("--served-model-name", "kimi", "--kt-cpuinfer", "4096", "--kt-numa-nodes", "0")


def test_haproxy_speaks_tls_before_it_as_long_as_the_job_lives(tmp_path: Path) -> None:
    at = cluster(tmp_path)
    at.plan["engine"]["name"] = "ktransformers"
    at.write_plan()
    stand_in_sglang.install(Path(at.place(at.plan["engine"]["env_dir"])))
    job = at.start("serve", "--module", stand_in_sglang.MODULE, "--", *ARGUMENTS)
    try:
        assert until(lambda: state(at) == "ready")
        key = (at.root / "keys" / "api.key").read_text().strip()
        assert api_client.request_chat(client(at), key, BODY).status == 200
        assert api_client.request_chat(client(at), "sk-wrong", BODY).status == 401
        assert "kt-kernel's threads are" in " ".join(at.endpoint()["notes"])
        # Told to end, the job leaves nothing behind that listens.
        job.send_signal(signal.SIGTERM)
        printed = job.communicate(timeout=120)[0]
        assert job.returncode == 0, printed
        assert state(at) == "ended"
        assert key not in printed
        assert not _list_proxies(at.root)
    finally:
        if job.poll() is None:
            job.kill()
            job.communicate(timeout=60)


def test_a_node_without_haproxy_is_told_before_the_engine_starts(tmp_path: Path) -> None:
    at = cluster(tmp_path, KIMI_HAPROXY="haproxy-of-nobody")
    at.plan["engine"]["name"] = "ktransformers"
    at.write_plan()
    done = at.run("serve", "--module", stand_in_sglang.MODULE, "--", *ARGUMENTS)
    assert done.returncode != 0
    assert "haproxy-of-nobody is not on this machine" in done.stderr
    assert "KIMI_HAPROXY" in done.stderr


def _list_proxies(root: Path) -> list[str]:
    done = subprocess.run(["pgrep", "-f", str(root)], capture_output=True, text=True, check=False)
    return done.stdout.split()
