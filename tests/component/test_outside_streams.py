"""Documents from pipes and standard input, and those that would exhaust a process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest
from waiting import HANGS_S

from kimi_prov import documents
from kimi_prov.errors import ExitCode, UserError

LIMIT = 1 << 20
READ = """
import sys, time
from pathlib import Path
from kimi_prov import documents
from kimi_prov.errors import UserError
try:
    found = documents.read_document(Path(sys.argv[1]), what="a note", limit=1 << 20, fix="mend it")
    print(found.name, found.text)
except UserError as error:
    print("refused:", error.message)
"""


def text(path: Path) -> str:
    return documents.read_document(path, what="a note", limit=LIMIT, fix="mend it").text


def refused(path: Path) -> str:
    start = time.monotonic()
    with pytest.raises(UserError) as caught:
        text(path)
    assert time.monotonic() - start < HANGS_S
    assert caught.value.exit_code == ExitCode.BAD_INPUT
    assert caught.value.fix == "mend it"
    assert str(path) in caught.value.message
    return caught.value.message


def test_what_is_no_file_is_refused_at_once(tmp_path: Path) -> None:
    assert "folder" in refused(tmp_path)
    for device in ("/dev/zero", "/dev/null", "/dev/full"):
        assert "device" in refused(Path(device))
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(str(tmp_path / "socket"))
        assert "socket" in refused(tmp_path / "socket")
    assert "No such file" in refused(tmp_path / "nothing")
    (tmp_path / "loop").symlink_to("loop")
    assert "symbolic links" in refused(tmp_path / "loop")
    assert "too long" in refused(tmp_path / ("n" * 300))
    assert "null" in refused(tmp_path / "a\0b")


def test_a_pipe_that_delivers_is_read(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["sh", "-c", f"echo words > {tmp_path}/pipe"]) as writer:
        assert text(tmp_path / "pipe") == "words\n"
    assert writer.returncode == 0


@pytest.mark.parametrize(
    ("command", "said"),
    [
        ("printf words | {read} -", "standard input words"),
        ("(sleep 2; printf late) | {read} -", "standard input late"),
        ("{read} - < note", "standard input kept"),
        ("{read} <(sleep 2; printf late)", "/dev/fd/63 late"),
        ("{read} - < /dev/zero", "refused: standard input: cannot be read: this is a device"),
        ("{read} - <&-", "refused: standard input: cannot be read: Bad file descriptor"),
        ("head -c 9999999 /dev/zero | {read} -", "refused: standard input: larger than a note"),
    ],
)
def test_standard_input_and_what_a_shell_joins_to_us(
    tmp_path: Path, command: str, said: str
) -> None:
    (tmp_path / "note").write_text("kept")
    (tmp_path / "read.py").write_text(READ)
    done = subprocess.run(
        ["bash", "-c", command.format(read=f"{sys.executable} read.py")],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(documents.__file__).rsplit("/", 2)[0]},
    )
    assert done.stdout.strip().startswith(said), done


NESTS = {
    "flow": "[" * 200_000,
    "mappings": "{a: " * 200_000,
    "closed": "[" * 2000 + "]" * 2000,
    "blocks": "\n".join(" " * n + "a:" for n in range(600)),
    "lists": "- " * 20_000 + "a",
    "keys": "? " * 20_000 + "a",
    "by names": "".join(f"- &a{n} [*a{n - 1}]\n" if n else "- &a0 [x]\n" for n in range(2000)),
    "keys in brackets": "[" + "? [" * 20_000,
}


@pytest.mark.parametrize("nest", NESTS)
def test_no_nest_reaches_what_calls_itself(nest: str) -> None:
    # In a process of its own: the stack of the C loader ends in a signal.
    code = (
        "import sys; from kimi_prov import documents\n"
        "try: documents.Document('x.yml', sys.stdin.read()).yaml('mend it')\n"
        "except documents.UserError as error: print(error.message)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        input=NESTS[nest],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "nested deeper than 100 levels" in done.stdout
