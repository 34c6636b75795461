"""`kimi-prov logs` out of the wheel, by its own playbook."""

import json
import signal
import subprocess

import closed_form
import gathering
import pytest

START_US = 1_760_000_000_000_000


def entries(*ats, text="line"):
    return [
        {
            "time_us": START_US + at,
            "unit": "kimi-proxy.service",
            "priority": 6,
            "message": f"{text} {at}",
        }
        for at in ats
    ]


@pytest.fixture
def machines(installed, local):
    def make(**told):
        installed.plugin("kimi_logs", gathering.logs(told))
        return local(*told)

    return make


def test_lines_of_all_hosts_come_in_one_order(installed, machines):
    inventory = machines(a={"entries": entries(1, 4)}, b={"entries": entries(2, 3), "after_s": 1})
    done = installed.run("logs", inventory, "--format", "json")
    assert done.returncode == 0, done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    for row in rows:
        closed_form.validate(row, "logs")
    assert [(row["host"], row["message"]) for row in rows] == [
        ("a", "line 1"),
        ("b", "line 2"),
        ("b", "line 3"),
        ("a", "line 4"),
    ]
    # The lines are nowhere else.
    (run,) = installed.runs.iterdir()
    for file in run.iterdir():
        assert "line 4" not in file.read_text()


def test_ctrl_c_ends_following_and_leaves_nothing(installed, machines):
    inventory = machines(a={"entries": entries(1)}, b={"entries": entries(2)})
    process = installed.start(
        "logs", inventory, "--follow", stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout.readline().endswith(" a proxy: line 1\n")
        assert process.stdout.readline().endswith(" b proxy: line 2\n")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert out == ""
    assert "Traceback" not in err
