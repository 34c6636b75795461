"""A command whose standard streams are closed, full or in ASCII ends with a message and a code."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

SHEET = """\
schema: kimi-prov/spec/v1
name: Größe 🚀
cpu: {model: EPYC 9654, sockets: 2}
memory: {dimms: 24, dimm_gb: 64}
gpus: {model: H200 SXM, count: 8}
"""
MAIN = "from kimi_prov.cli import main; main()"


@pytest.fixture
def shell(tmp_path):
    (tmp_path / "Größe.yml").write_text(SHEET)

    def run(words, **environment):
        return subprocess.run(
            ["bash", "-c", f"'{sys.executable}' -c '{MAIN}' {words}"],
            capture_output=True,
            timeout=120,
            check=False,
            cwd=tmp_path,
            env=os.environ | {"XDG_STATE_HOME": str(tmp_path)} | environment,
        )

    return run


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        ("check Größe.yml >/dev/full", 1, "standard output: cannot be written: No space left"),
        ("--help >/dev/full", 1, "standard output: cannot be written: No space left"),
        ("check Größe.yml >&-", 1, "standard output: cannot be written: Bad file descriptor"),
        ("check nothing.yml 2>/dev/full", 2, ""),
        ("check nothing.yml >&- 2>&- <&-", 2, ""),
    ],
)
def test_what_cannot_be_written_is_told_once(shell, words, code, said):
    done = shell(words)
    assert done.returncode == code
    told = done.stderr.decode()
    assert told.startswith(f"error: {said}" if said else ""), told
    assert "Traceback" not in told
    assert "Exception ignored" not in told
    assert told.count("error") == bool(said)


def test_what_ascii_lacks_is_escaped_as_json_does_it(shell):
    done = shell("check Größe.yml --format json", PYTHONIOENCODING="ascii")
    assert done.returncode in (0, 3), done.stderr
    assert json.loads(done.stdout.decode("ascii"))["targets"][0]["name"] == "Größe 🚀"
    done = shell("check Größe.yml", PYTHONIOENCODING="ascii")
    assert done.returncode in (0, 3), done.stderr
    assert "Gr\\u00f6\\u00dfe" in done.stdout.decode("ascii")
    done = shell("check Gräße.yml", PYTHONIOENCODING="ascii")
    assert done.returncode == 2
    assert b"there is no such file" in done.stderr


def test_a_target_whose_name_is_not_utf_8_is_read(shell, tmp_path):
    name = os.fsencode(tmp_path) + b"/gr\xf6sse.yml"
    Path(os.fsdecode(name)).write_text(SHEET.replace("name: Größe 🚀", "name: x"))
    done = shell(r"check $'gr\xf6sse.yml' --format json")
    assert done.returncode in (0, 3), done.stderr
    assert json.loads(done.stdout)["targets"]
