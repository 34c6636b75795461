"""A real playbook with a long task and an asynchronous one, ended from outside."""

import os
import signal
import subprocess
import time
from pathlib import Path

import psutil
import pytest
from waiting import HANGS_S, until

LONG = """
- hosts: kimi
  gather_facts: false
  tasks:
    - name: Fire and forget
      command: sleep 3141
      async: 4000
      poll: 0
    - name: Take long
      command: sleep 2718
"""
SHORT = "- {hosts: kimi, gather_facts: false, tasks: [{command: 'true'}]}\n"


def marked(home):
    """Every live process of runs in this home, by the mark that they carry."""
    found = {}
    for process in psutil.process_iter():
        try:
            given = process.environ()
            if given.get("HOME") == str(home) and process.status() != psutil.STATUS_ZOMBIE:
                found[process.pid] = process.cmdline()
        except (psutil.Error, OSError):
            continue
    return found


def privates(home):
    """Private folders of the runs in this home."""
    found = set()
    for pid in marked(home):
        try:
            told = psutil.Process(pid).environ().get("KIMI_PROV_PROGRESS")
        except (psutil.Error, OSError):
            continue
        if told:
            found.add(Path(told).parent)
    return found


@pytest.fixture
def long_run(installed, local, request):
    installed.playbook("site", LONG)
    # As nohup does, where a test asks for it.
    handler = getattr(request, "param", signal.SIG_DFL)
    process = installed.start(
        "apply",
        local("one", "two"),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=lambda: signal.signal(signal.SIGHUP, handler),
    )

    def sleeping():
        return sum(line[:1] == ["sleep"] for line in marked(installed.home).values())

    assert until(lambda: sleeping() == 4, every_s=0.2), "the tasks did not start"
    process.private = next(iter(privates(installed.home)))
    yield process
    process.terminate()
    process.wait()
    process.stdout.close()
    assert until(lambda: marked(installed.home) == {}, every_s=0.2)


@pytest.mark.parametrize("long_run", [signal.SIG_IGN], indirect=True)
def test_under_nohup_a_run_outlives_its_terminal_and_a_signal_ends_everything(installed, long_run):
    """What runs would take almost an hour; so long nobody waits."""
    long_run.send_signal(signal.SIGHUP)
    time.sleep(1)
    assert long_run.poll() is None
    long_run.send_signal(signal.SIGTERM)
    assert long_run.wait(HANGS_S) == 130
    assert marked(installed.home) == {}
    said = long_run.stdout.read()
    assert "interrupted (SIGTERM)" in said
    assert "SIGHUP" not in said
    assert "Traceback" not in said
    assert not long_run.private.exists()


def test_a_second_apply_is_refused_and_more_signals_change_nothing(installed, local, long_run):
    again = installed.run("apply", local("one", "two"))
    assert again.returncode == 3
    assert f"process {long_run.pid}" in again.stderr
    assert again.stdout == ""
    for number in (signal.SIGINT, signal.SIGINT, signal.SIGHUP):
        long_run.send_signal(number)
        time.sleep(0.2)
    assert long_run.wait(HANGS_S) == 130
    assert marked(installed.home) == {}


def test_a_killed_command_line_leaves_nobody_behind_and_its_lock_goes_with_the_last(
    installed, local, long_run
):
    long_run.kill()
    long_run.wait()
    installed.playbook("site", SHORT)
    again = installed.run("apply", local("one", "two"))
    assert again.returncode == 0, again.stderr
    assert marked(installed.home) == {}
    assert not long_run.private.exists()


def test_what_nobody_was_left_to_clean_up_is_cleaned_by_the_next_run(installed, local, long_run):
    watchdog = [pid for pid, line in marked(installed.home).items() if line[-1].endswith("dog")]
    assert len(watchdog) == 1
    for pid in (watchdog[0], long_run.pid):
        os.kill(pid, signal.SIGKILL)
    long_run.wait()
    assert marked(installed.home) != {}
    assert long_run.private.exists()
    installed.playbook("site", SHORT)
    again = installed.run("apply", local("one", "two"))
    assert again.returncode == 0, again.stderr
    assert marked(installed.home) == {}
    assert not long_run.private.exists()
