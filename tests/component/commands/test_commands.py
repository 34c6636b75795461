"""Commands out of the wheel, each a process of its own."""

import json
import resource
import subprocess
import sys


def kept_codes(installed):
    """Give exit codes that result.json of each run has: the command's, and the playbook's."""
    kept = [json.loads(path.read_text()) for path in installed.runs.glob("*/result.json")]
    return [(row["exit_code"], row["playbook_exit_code"]) for row in kept]


def quiet(done):
    assert "Traceback" not in done.stderr + done.stdout
    return done


def test_help_is_there_at_once(installed):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = installed.run("--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0
    for command in ("plan", "apply", "verify", "status", "bench", "contribute", "key", "destroy"):
        assert f"  {command} " in done.stdout
    assert all(f"  {command} " in done.stdout for command in ("lab", "init", "probe", "catalog"))
    # Processor time: the clock on the wall also counts what else the machine does.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.3


def test_it_runs_as_a_module_too(installed):
    done = subprocess.run(
        [sys.executable, "-m", "kimi_prov", "check"],
        check=False,
        capture_output=True,
        text=True,
        cwd=installed.home,
        env=installed.environment,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: there is nothing to check")


def test_a_host_that_is_away_is_in_the_report_and_in_the_exit_code(installed):
    installed.playbook("status", "- {hosts: kimi, gather_facts: false, tasks: [{command: uptime}]}")
    path = installed.home / "far.yml"
    # A module that is piped to an ssh that has just ended may hide ssh's reason, on a busy machine.
    path.write_text(
        "kimi: {hosts: {far: "
        "{ansible_host: 127.0.0.1, ansible_port: 9, ansible_pipelining: false}}}\n"
    )
    done = quiet(installed.run("status", path, "--format", "json"))
    assert done.returncode == 4
    assert "refused the connection" in json.loads(done.stdout)["hosts"]["far"]["detail"]


def test_the_key_reaches_the_screen_and_nothing_else(installed, local):
    done = quiet(installed.run("key", local("new", "seen"), "--rotate"))
    assert (done.returncode, done.stdout) == (1, "new sk-kimi-canary-once\n")
    assert "seen: shown before" in done.stderr
    assert kept_codes(installed) == [(1, 0)]
    kept = [p for p in installed.home.rglob("*") if p.is_file()]
    assert [p for p in kept if b"canary" in p.read_bytes()] == []


def test_probe_describes_this_machine_and_makes_its_bundle(installed):
    done = quiet(installed.run("probe"))
    assert done.returncode == 0
    assert json.loads(done.stdout)["schema"] == "kimi-prov/facts/v1"
    done = installed.run("probe", "--bundle", "probe.pyz")
    assert done.returncode == 0
    facts = subprocess.run(
        ["/usr/bin/python3", "probe.pyz"], cwd=installed.home, check=True, capture_output=True
    )
    assert json.loads(facts.stdout)["schema"] == "kimi-prov/facts/v1"


def test_a_bug_is_one_line_and_a_file(installed, local):
    broken = "raise RuntimeError('it hides sk-kimi-canary')\n"
    installed.write("commands/common/playbook_run.py", broken)
    done = installed.run("plan", local("a"))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    crash = installed.home / "state" / "kimi-prov" / "crash.log"
    assert "RuntimeError" in crash.read_text()
    assert "canary" not in crash.read_text() + done.stderr
