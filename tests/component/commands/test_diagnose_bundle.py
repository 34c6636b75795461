"""`kimi-prov diagnose` out of the wheel, by its own playbook."""

import json
import stat
import tarfile

import closed_form
import gathering
import pytest

START_US = 1_760_000_000_000_000
UNIT = "kimi-serve@0.service"


def log(*messages):
    rows = [
        {"time_us": START_US + n, "unit": UNIT, "priority": 6, "message": message}
        for n, message in enumerate(messages)
    ]
    return {"entries": rows, "cut": False}


def gathered(*messages, ok=True, **more):
    return {
        "plan": {"engine": {"name": "vllm"}},
        "status": {"ok": ok, "provisioned": True, "detail": "serving" if ok else "not serving yet"},
        "logs": {UNIT: log("ready after 3 s", *messages)},
        "kernel": None,
        "metrics": [{"unit": UNIT, "first": "vllm:x 1\n", "second": None, "apart_s": None}],
        "packages": ["torch-2.11.0"],
        "gpus": None,
        "facts": {"schema": "kimi-prov/facts/v1"},
        "units": {UNIT: {"Id": UNIT}},
        "unit_files": "[Service]\nExecStart=x\n",
        "missing": {"gpus": "HostError: nvidia-smi: not found"},
        **more,
    }


@pytest.fixture
def machines(installed, local):
    def make(**told):
        installed.plugin("kimi_diagnose", gathering.diagnose(told))
        return local(*told)

    return make


def opened(file):
    """The files of a bundle, without the folder that all of them are in."""
    with tarfile.open(file) as archive:
        members = archive.getmembers()
        folders = {member.name.partition("/")[0] for member in members}
        assert len(folders) == 1
        assert all(member.isreg() and member.mode == 0o600 for member in members)
        return {
            member.name.partition("/")[2]: archive.extractfile(member).read().decode()
            for member in members
        }


def only(home):
    (file,) = home.glob("kimi-diagnose-*.tar.gz")
    return file


def test_the_bundle_has_what_a_bug_report_needs(installed, machines):
    done = installed.run("diagnose", machines(a=gathered("fine")), "--format", "json")
    assert done.returncode == 0, done.stderr
    document = json.loads(done.stdout)
    closed_form.validate(document, "diagnose")
    assert document["ok"]
    file = only(installed.home)
    assert document["bundle"] == file.name
    assert document["bundle_bytes"] == file.stat().st_size
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    found = opened(file)
    assert set(found) == {
        "README.txt",
        "diagnose.json",
        f"a/logs/{UNIT}.log",
        f"a/metrics/{UNIT}.txt",
        *(f"a/{name}.json" for name in ("facts", "plan", "status", "units")),
        "a/packages.txt",
        "a/units.txt",
    }
    closed_form.validate(json.loads(found["diagnose.json"]), "diagnose")
    assert found[f"a/logs/{UNIT}.log"].splitlines()[-1] == "2025-10-09T08:53:20.000Z fine"
    # What a machine gathered is nowhere else.
    (run,) = installed.runs.iterdir()
    assert "torch-2.11.0" not in "".join(part.read_text() for part in run.iterdir())
