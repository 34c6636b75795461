"""`submit`, `jobs` and `cancel` as their user calls them, with stand-ins of SLURM and of ssh."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from slurm_stand_in import Site, endpoint, job

LOGIN = "me@login.example.com"


@pytest.fixture
def site(rendered: Path, tmp_path: Path) -> Site:
    return Site.of(rendered, tmp_path)


def complete_environment(site: Site) -> None:
    plan = json.loads((site.folder / "plan.json").read_text())
    mark = Path(plan["engine"]["env_dir"].replace("/srv/kimi", str(site.root))) / ".complete"
    mark.parent.mkdir(parents=True)
    mark.touch()


def outcomes(document: dict[str, Any]) -> dict[str, str]:
    return {row["name"]: row["outcome"] for row in document["jobs"]}


def test_jobs_are_submitted_each_after_those_that_it_needs(site: Site) -> None:
    document = site.json("submit", site.folder)
    assert [row["id"] for row in document["jobs"]] == ["101", "102", "103"]
    argv = [row["argv"] for row in site.slurm.queued]
    assert argv == [
        "--parsable jobs/environment.sbatch",
        "--parsable --dependency=afterok:101 --kill-on-invalid-dep=yes jobs/weights.sbatch",
        "--parsable --dependency=afterok:101:102 --kill-on-invalid-dep=yes jobs/serve.sbatch",
    ]
    assert {row["%Z"] for row in site.slurm.queued} == {str(site.folder)}
    again = site.slurm.run("submit", site.folder)
    assert "serve        job 103 waits or runs already" in again.stdout
    assert f"kimi-prov connect {site.folder}" in again.stderr
    assert len(site.slurm.queued) == 3


def test_what_is_complete_is_left_out(site: Site) -> None:
    complete_environment(site)
    document = site.json("submit", site.folder)
    assert outcomes(document) == {
        "environment": "complete",
        "weights": "submitted",
        "serve": "submitted",
    }
    assert document["jobs"][2]["after"] == ["101"]


def test_one_job_is_submitted_by_its_name(site: Site) -> None:
    assert outcomes(site.json("submit", site.folder, "serve")) == {"serve": "submitted"}
    assert "no job is called 'srve'" in site.fails("submit", site.folder, "srve", code=2)
    assert "no server answers" in site.fails("submit", site.folder, "accept", code=2)
    site.slurm.queue(job(200, "serve", site.folder))
    endpoint(site.root, 200, site.folder)
    assert outcomes(site.json("submit", site.folder, "accept")) == {"accept": "submitted"}


def test_the_full_suite_is_submitted_with_the_time_that_it_takes(site: Site) -> None:
    site.slurm.queue(job(200, "serve", site.folder))
    endpoint(site.root, 200, site.folder)
    words = ("submit", site.folder, "accept", "--suite", "full", "--login", LOGIN)
    told = site.fails("submit", site.folder, "tune", "--suite", "full", code=2)
    assert "--suite: belongs to the job accept" in told
    endpoint(site.root, 200, site.root / "renders" / "kimi-jobs")
    assert outcomes(site.json(*words)) == {"accept": "submitted"}
    given = site.slurm.queued[-1]["argv"].split()
    assert given == ["--parsable", "--time=04:00:00", "jobs/accept.sbatch", "--suite", "full"]


def test_the_full_suite_goes_only_to_a_job_that_runs_it(site: Site) -> None:
    site.slurm.queue(job(200, "serve", site.folder))
    endpoint(site.root, 200, site.folder)
    words = ("submit", site.folder, "accept", "--suite", "full")
    script = site.folder / "jobs" / "accept.sbatch"
    whole = script.read_text()
    script.write_text(whole.replace("#SBATCH --time=00:30:00", "#SBATCH --time=1-00:00:00"))
    site.json(*words)
    given = site.slurm.queued[-1]["argv"].split()
    assert given == ["--parsable", "jobs/accept.sbatch", "--suite", "full"], "its own is longer"
    script.write_text(whole.replace('"$@"', '"${1:-newest}"'))
    told = site.fails(*words, code=2)
    assert "accept.sbatch: it takes no arguments" in told
    assert '"$@"' in told
    assert len(site.slurm.queued) == 2
    # As a folder that was rendered before has it.
    (site.folder / "jobs" / "prelude.sh").write_text("kimi=(bash -c 'exec cat \"$0\"' answer)\n")
    answer = {"error": {"message": "no job is called '--suite'", "fix": "x", "retryable": False}}
    (site.folder / "answer").write_text(json.dumps(answer) + "\n")
    assert "render the folder again" in site.fails(*words, code=2)


def test_what_sbatch_refuses_is_said_with_what_was_submitted(site: Site) -> None:
    (site.slurm.there / "refuses").touch()
    told = site.fails("submit", site.folder, code=2)
    assert "sbatch jobs/environment.sbatch: sbatch: error: invalid partition" in told
    assert "#SBATCH" in told


def test_a_folder_is_brought_to_the_cluster_and_what_was_changed_there_stays(site: Site) -> None:
    (site.folder / "jobs" / "serve.sbatch").write_text("#!/bin/bash\n# mine\n")
    (site.folder / "thesis.tex").touch()
    document = site.json("submit", site.folder, "--login", LOGIN)
    there = site.root / "renders" / "kimi-jobs"
    assert document["folder"] == str(there)
    assert {row["%Z"] for row in site.slurm.queued} == {str(there)}
    assert (there / "jobs" / "serve.sbatch").read_text() == "#!/bin/bash\n# mine\n"
    assert not (there / "thesis.tex").exists()
    assert (there / "kimi-cluster.pyz").stat().st_mode & 0o111
    assert [path.name for path in there.parent.iterdir()] == ["kimi-jobs"]
    (there / "jobs" / "bench.sbatch").write_text("changed there\n")
    (site.folder / "jobs" / "serve.sbatch").write_text("#!/bin/bash\n# newer\n")
    done = site.slurm.run("submit", site.folder, "--login", LOGIN)
    assert "kept, because changed there: jobs/bench.sbatch" in done.stderr
    assert (there / "jobs" / "bench.sbatch").read_text() == "changed there\n"
    assert (there / "jobs" / "serve.sbatch").read_text() == "#!/bin/bash\n# newer\n"
    site.slurm.run("submit", site.folder, "--login", LOGIN, "--force")
    assert (there / "jobs" / "bench.sbatch").read_text() != "changed there\n"
    assert len(site.json("jobs", site.folder, "--login", LOGIN)["jobs"]) == 3


def test_the_login_of_the_render_is_taken_where_none_is_given(site: Site) -> None:
    settings = site.folder / "cluster.env"
    settings.write_text(settings.read_text().replace("KIMI_LOGIN=''", f"KIMI_LOGIN={LOGIN}"))
    told = site.fails("jobs", site.folder, code=2)
    assert f"{LOGIN}: there is no folder {site.root}/renders/kimi-jobs" in told
    assert "kimi-prov submit" in told
    assert LOGIN in (site.slurm.there / "ssh").read_text()
    assert site.json("jobs", site.folder, "--login", "")["jobs"] == []


def test_a_login_node_that_is_not_reached_is_exit_4(site: Site) -> None:
    (site.slurm.there / "cut").touch()
    for command in ("submit", "jobs", "cancel"):
        told = site.fails(command, site.folder, "--login", LOGIN, code=4)
        assert f"{LOGIN}: ssh: ssh: connect to host x port 22: No route to host" in told


@pytest.mark.parametrize(
    "login", ["-oProxyCommand=touch /tmp/x", "a b", "a@-x", "me@h\n", "me@h\x1b[2J", "a@b@c"]
)
def test_a_login_that_is_none_is_refused(site: Site, login: str) -> None:
    for command in ("submit", "jobs", "cancel"):
        assert "expected USER@HOST" in site.fails(command, site.folder, f"--login={login}", code=2)
    settings = site.folder / "cluster.env"
    settings.write_text(settings.read_text() + "export KIMI_LOGIN=-oProxyCommand=x\n")
    assert "cluster.env: KIMI_LOGIN" in site.fails("jobs", site.folder, code=2)
    assert not (site.slurm.there / "ssh").exists()


def test_settings_are_read_and_not_run(site: Site, tmp_path: Path) -> None:
    settings = site.folder / "cluster.env"
    settings.write_text(settings.read_text() + f"export KIMI_ROOT=$(touch {tmp_path}/run)\n")
    told = site.fails("submit", site.folder, "--login", LOGIN, code=2)
    assert "KIMI_ROOT: expected plain text" in told
    assert not (tmp_path / "run").exists()


def test_a_folder_that_no_render_made_is_refused(site: Site, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    for command in ("submit", "jobs", "cancel"):
        assert "no render made" in site.fails(command, tmp_path / "other", code=2)
        assert "no render made" in site.fails(command, tmp_path / "absent", code=2)


def test_jobs_tell_state_address_and_time_left(site: Site, tmp_path: Path) -> None:
    site.slurm.queue(
        job(200, "serve", site.folder),
        job(201, "serve", site.folder, T="PENDING", r="Dependency", N="", e="N/A", L="1-00:00:00"),
        job(202, "serve", tmp_path / "other"),
    )
    endpoint(site.root, 200, site.folder, state="draining", successor="201", notes=["c1: note"])
    document = site.json("jobs", site.folder)
    assert [row["id"] for row in document["jobs"]] == ["201", "200"]
    waits, runs = document["jobs"]
    assert (waits["left_s"], waits["reason"], waits["nodes"]) == (86400, "Dependency", None)
    assert (runs["left_s"], runs["endpoint"]["state"]) == (83645, "draining")
    text = site.slurm.run("jobs", site.folder).stdout
    assert "https://c1:8101/v1" in text
    assert "job 201 takes over" in text
    assert max(map(len, text.splitlines())) <= 80


def test_an_endpoint_whose_job_no_longer_runs_is_lost(site: Site, tmp_path: Path) -> None:
    site.slurm.queue(
        job(200, "serve", site.folder, T="NODE_FAIL"),
        job(202, "serve", site.folder, T="PENDING", N=""),
    )
    endpoint(site.root, 199, site.folder, state="draining")
    endpoint(site.root, 198, site.folder, state="ended")
    endpoint(site.root, 197, tmp_path / "other")
    endpoint(site.root, 200, site.folder)
    # Queued again: what it published is of the nodes that it had.
    endpoint(site.root, 202, site.folder)
    found = {row["id"]: row["endpoint"] for row in site.json("jobs", site.folder)["jobs"]}
    assert {number: told and told["state"] for number, told in found.items()} == {
        "202": None,
        "200": "lost",
        "199": "lost",
        "198": "ended",
    }
    site.slurm.queue()
    document = site.json("jobs", site.folder, code=1)
    assert {row["state"] for row in document["jobs"]} == {None}


def test_a_server_that_failed_makes_it_exit_1_with_its_log(site: Site) -> None:
    site.slurm.queue(job(200, "serve", site.folder, T="FAILED", r="NonZeroExitCode"))
    endpoint(site.root, 200, site.folder, state="failed", notes=["the engine ended"])
    (site.folder / "logs" / "kimi-serve.200.out").touch()
    done = site.slurm.run("jobs", site.folder)
    assert done.returncode == 1
    assert "note: the engine ended" in done.stdout
    assert "log: logs/kimi-serve.200.out" in done.stdout
    site.slurm.queue(job(201, "serve", site.folder))
    site.json("jobs", site.folder)


def test_jobs_that_ended_lately_are_of_the_accounting_where_there_is_one(site: Site) -> None:
    rows = [
        ("90", "CANCELLED by 2001", "c1", "2031-02-03T04:05:06", "Unknown", site.folder),
        ("91", "RUNNING", "c1", "2031-02-03T04:05:06", "Unknown", site.folder),
        ("92", "COMPLETED", "c1", "2031-02-03T04:05:06", "Unknown", "/elsewhere"),
    ]
    text = "".join("\x1f".join(map(str, [*row, "kimi-weights"])) + "\n" for row in rows)
    (site.slurm.there / "history").write_text(f"garbage\n{text}")
    (row,) = site.json("jobs", site.folder)["jobs"]
    assert (row["id"], row["name"], row["state"]) == ("90", "weights", "CANCELLED")


def test_texts_of_the_cluster_do_not_steer_the_terminal(site: Site) -> None:
    name = "a\nFAKE \x1b]0;x\x07 \u202e \x1f\x1f"
    site.slurm.queue(job(200, "x", site.folder, j=name, r="\x1b[2J"))
    endpoint(site.root, 201, site.folder, notes=["b\nc\x1b[31m"], url="https://x\x1b[2J")
    site.slurm.queue(
        job(200, "x", site.folder, j=name, r="\x1b[2J"), job(201, "serve", site.folder)
    )
    done = site.slurm.run("jobs", site.folder)
    assert done.returncode == 0, done.stderr
    assert "\x1b" not in done.stdout
    assert "\u202e" not in done.stdout
    assert not [line for line in done.stdout.splitlines() if line.startswith(("FAKE", "c"))]
    (row,) = [row for row in site.json("jobs", site.folder)["jobs"] if row["id"] == "200"]
    assert (row["job_name"], row["name"]) == (name, None)


def test_a_program_that_gives_no_such_document_is_told(site: Site) -> None:
    endpoint(site.root, 201, site.folder, state="\x1b[2J")
    site.slurm.queue(job(201, "serve", site.folder))
    assert "no document kimi-prov/jobs/v1" in site.fails("jobs", site.folder, code=1)
    (site.folder / "kimi-cluster.pyz").write_text("raise SystemExit('\\x1b[2Jno')")
    assert "did not answer" in site.fails("jobs", site.folder, code=1)


def test_a_slurm_that_does_not_answer_is_exit_1_and_none_exit_2(site: Site) -> None:
    (site.slurm.there / "silent").touch()
    assert "Unable to contact slurm" in site.fails("jobs", site.folder, code=1)
    (site.slurm.programs / "squeue").unlink()
    told = site.fails("jobs", site.folder, code=2)
    assert "squeue is not on this machine" in told
    assert "--login USER@HOST" in told


def test_a_server_ends_gently_and_its_successor_first(site: Site) -> None:
    site.slurm.queue(
        job(200, "serve", site.folder),
        job(201, "serve", site.folder, T="PENDING"),
        job(202, "bench", site.folder),
        job(203, "serve", site.folder, T="COMPLETED"),
    )
    document = site.json("cancel", site.folder)
    assert {row["id"]: row["outcome"] for row in document["jobs"]} == {
        "201": "cancelled",
        "202": "cancelled",
        "200": "ending",
    }
    calls = (site.slurm.there / "scancel").read_text().splitlines()
    assert calls[0] == "201"
    assert "--batch --signal=TERM 200" in calls
    assert "lets answers end" in site.slurm.run("cancel", site.folder, "serve").stdout


def test_now_kills_a_server_too(site: Site) -> None:
    site.slurm.queue(job(200, "serve", site.folder))
    assert site.json("cancel", site.folder, "200", "--now")["jobs"][0]["outcome"] == "cancelled"
    assert (site.slurm.there / "scancel").read_text() == "200\n"


def test_jobs_of_others_are_refused_by_name(site: Site, tmp_path: Path) -> None:
    site.slurm.queue(job(200, "serve", site.folder), job(300, "serve", tmp_path / "other"))
    told = site.fails("cancel", site.folder, "200", "300", "bench", code=2)
    assert "is '300', 'bench'" in told
    assert "serve 200" in told
    assert not (site.slurm.there / "scancel").exists()
    site.slurm.queue()
    assert "no job waits or runs" in site.slurm.run("cancel", site.folder).stdout
