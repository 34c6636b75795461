"""The one file that travels, run by the Pythons that machines have."""

from __future__ import annotations

import ast
import json
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import closed_form
import pytest
from locales import latin

from kimi_prov.on_host.probe import cpu
from kimi_prov.on_host.system.machine import Machine
from kimi_prov.packaging import zipapp

PACKAGE = Path(zipapp.__file__).parents[1]
TRAVELS = [p for room in ("contract", "on_host") for p in sorted((PACKAGE / room).rglob("*.py"))]


def test_it_describes_the_machine_and_leaves_nothing(tmp_path: Path) -> None:
    program = zipapp.build_zipapp(tmp_path / "probe.pyz")
    # -I: nothing of this project's environment helps it.
    done = subprocess.run(
        [sys.executable, "-I", str(program)],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
    )
    document = json.loads(done.stdout)
    closed_form.validate(document, "facts")
    assert document["cpu"]["model"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["probe.pyz"]


def test_it_reads_and_writes_utf_8_where_the_machine_s_locale_is_another(tmp_path: Path) -> None:
    program = zipapp.build_zipapp(tmp_path / "kimi-target.pyz")
    script = (
        "import os, runpy, sys\n"
        "sys.argv[1:] = ['no-such-command']\n"
        "try:\n"
        f"    runpy.run_path({str(program)!r}, run_name='__main__')\n"
        "except SystemExit:\n"
        "    print(sys.stdout.encoding, os.environ['LC_ALL'], file=sys.stderr)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env=latin(tmp_path / "locales"),
        capture_output=True,
        text=True,
        check=True,
    )
    assert done.stderr.splitlines()[-1] == "utf-8 C.UTF-8"


def test_py_cpuinfo_reads_the_cpu_from_within_the_one_file(tmp_path: Path) -> None:
    """Its public function, which by itself starts a file that a zipapp does not have."""
    program = zipapp.build_zipapp(tmp_path / "probe.pyz")
    code = (
        "import json, sys; sys.path.insert(0, sys.argv[1])\n"
        "from kimi_prov.on_host.probe import cpu; from kimi_prov.on_host.system import machine\n"
        "print(json.dumps(cpu.read_py_cpuinfo(machine.Machine())))"
    )
    # -S: without the py-cpuinfo that is installed here.
    command = [sys.executable, "-I", "-S", "-c", code, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    read = json.loads(done.stdout)
    assert read["model"] == cpu.read_proc_cpuinfo(Machine())["model"]
    assert read["flags"]


def test_it_needs_no_root() -> None:
    # Where pytest's own folders are root's alone, another user sees neither them nor its Python.
    with tempfile.TemporaryDirectory(prefix="kimi-probe-") as folder:
        Path(folder).chmod(0o755)
        program = zipapp.build_zipapp(Path(folder) / "probe.pyz")
        done = subprocess.run(
            ["/usr/bin/python3", "-I", str(program)],
            capture_output=True,
            text=True,
            check=True,
            user=65534 if os.geteuid() == 0 else None,
        )
    document = json.loads(done.stdout)
    closed_form.validate(document, "facts")
    assert document["host"]["root"] is False


def pythons() -> list[Path]:
    """The oldest Python that a vendor may have, where this machine has one."""
    roots = [Path("/usr/bin"), *Path("~/.pyenv/versions").expanduser().glob("3.9.*/bin")]
    return [path for root in roots for path in root.glob("python3.9") if os.access(path, os.X_OK)]


@pytest.mark.skipif(not pythons(), reason="no Python 3.9 on this machine")
@pytest.mark.parametrize("form", [[], ["probe"], ["--output", "facts.json"]])
def test_it_runs_under_python_3_9_and_leaves_nothing(tmp_path: Path, form: list[str]) -> None:
    program = zipapp.build_zipapp(tmp_path / "probe.pyz")
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    done = subprocess.run(
        [str(pythons()[0]), "-I", "-W", "error", str(program), *form],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=True,
        env={"HOME": str(scratch), "TMPDIR": str(scratch)},
    )
    assert done.stderr == ""
    written = tmp_path / "facts.json"
    document = json.loads(written.read_text() if "--output" in form else done.stdout)
    written.unlink(missing_ok=True)
    closed_form.validate(document, "facts")
    assert document["python"]["version"].startswith("3.9.")
    assert document["origin"]["kind"] == "probe"
    assert sorted(entry.name for entry in tmp_path.iterdir()) == ["probe.pyz", "scratch"]
    assert list(scratch.iterdir()) == []


def too_old() -> list[Path]:
    """Pythons of this machine that are older than what the code needs."""
    roots = Path("~/.pyenv/versions").expanduser()
    return [path for v in ("2.7", "3.6", "3.8") for path in sorted(roots.glob(f"{v}.*/bin/python"))]


# The entry point itself, told that it is another version.
PRETEND = """
import runpy, sys
sys.version_info = (3, 6, 15, "final", 0)
runpy.run_path(sys.argv[1], run_name="__main__")
"""


def test_an_older_python_ends_in_one_sentence(tmp_path: Path) -> None:
    program = str(zipapp.build_zipapp(tmp_path / "probe.pyz"))
    runs = [(str(path), program) for path in too_old()]
    runs += [(sys.executable, "-I", "-c", PRETEND, program)]
    for words in runs:
        done = subprocess.run(words, capture_output=True, text=True, check=False, cwd=tmp_path)
        told = re.fullmatch(
            r"Python 3\.9 or newer is needed; this is (2\.7|3\.6|3\.8)\n", done.stderr
        )
        assert told, (words, done.stderr)
        assert (done.returncode, done.stdout) == (2, "")
    assert [entry.name for entry in tmp_path.iterdir()] == ["probe.pyz"]


WATCH = """
import os, sys
def watch(event, arguments):
    if event == "open" and arguments[0] != os.devnull:
        if (arguments[2] or 0) & (os.O_WRONLY | os.O_RDWR | os.O_CREAT):
            raise RuntimeError(f"opened for writing: {arguments}")
    if event in ("os.remove", "os.rename", "os.mkdir", "os.rmdir", "os.chmod", "os.chown"):
        raise RuntimeError(f"{event}: {arguments}")
sys.dont_write_bytecode = True
sys.addaudithook(watch)
sys.path.insert(0, sys.argv.pop(1))
from kimi_prov.on_host.probe.collect import main
sys.exit(main([]))
"""


def test_it_opens_nothing_for_writing(tmp_path: Path) -> None:
    program = zipapp.build_zipapp(tmp_path / "probe.pyz")
    command = [sys.executable, "-I", "-c", WATCH, str(program)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("path", TRAVELS, ids=lambda path: path.name)
def test_every_module_is_python_3_9(path: Path) -> None:
    ast.parse(path.read_text(), feature_version=(3, 9))
