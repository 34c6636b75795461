"""What is done with an engine's unit follows from what runs, not from what was written."""

import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import Any

import pytest

from kimi_prov.contract import unit_comparison
from kimi_prov.contract.errors import HostError
from kimi_prov.contract.unit_comparison import (
    DIGEST_VARIABLE,
    UNKNOWN,
    compute_digest,
    parse_form,
    read_digest,
)
from kimi_prov.on_host.engine import serve
from kimi_prov.on_host.system import machine_key, started

UNIT = "kimi-serve@0.service"


def test_the_stamp_is_read_from_the_process_itself() -> None:
    environment = {**os.environ, DIGEST_VARIABLE: "0123456789abcdef"}
    command = [sys.executable, "-c", "print(flush=True); input()"]
    pipe = subprocess.PIPE
    places = started.UnitPaths()
    with subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe) as process:
        assert process.stdout is not None
        process.stdout.readline()  # it runs
        assert (
            serve.read_running_digest({"MainPID": str(process.pid)}, places) == "0123456789abcdef"
        )
        control = {"MainPID": "0", "ControlPID": str(process.pid)}
        assert serve.read_running_digest(control, places) == "0123456789abcdef"
        process.kill()
    assert serve.read_running_digest({"MainPID": "0"}, places) == ""


class Machine:
    """A machine of files: units, one process, and a systemctl that notes what it was told."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.places = started.UnitPaths(str(root))
        self.log = root / "systemctl.log"
        self.state = root / "state"
        self.places.machine_key.parent.mkdir(parents=True)
        program = root / "bin" / "systemctl"
        program.parent.mkdir()
        program.write_text(
            f'#!/bin/sh\n[ "$1" = show ] && exec cat {self.state}\necho "$@" >> {self.log}\n'
            f'[ ! -e {root}/killed-by-"$1" ] || kill -9 $PPID\n'
        )
        program.chmod(0o755)
        monkeypatch.setenv("PATH", f"{program.parent}:{os.environ['PATH']}")
        self.says("inactive", "0")

    def says(self, active: str, pid: str) -> None:
        lines = {"Id": UNIT, "ActiveState": active, "MainPID": pid, "UnitFileState": "enabled"}
        self.state.write_text("".join(f"{name}={value}\n" for name, value in lines.items()))

    def runs(self, mark: str) -> None:
        """The unit's process is one that was started with this stamp."""
        self.says("active", "4711")
        environ = self.places.proc / "4711" / "environ"
        environ.parent.mkdir(parents=True, exist_ok=True)
        environ.write_bytes(f"HOME=/\0{DIGEST_VARIABLE}={mark}\0".encode())

    def has(self, template: str, drop_in: str) -> None:
        """These files lie there, as older versions wrote them: the template first."""
        self.places.drop_in(UNIT).parent.mkdir(parents=True, exist_ok=True)
        files = ((self.places.file(UNIT), template), (self.places.drop_in(UNIT), drop_in))
        for second, (path, text) in enumerate(files):
            path.write_text(text)
            path.chmod(0o644)
            os.utime(path, (second, second))

    def ensure(self, wanted: tuple[str, str], *, check: bool = False) -> dict[str, Any]:
        self.log.write_text("")
        return serve.ensure(wanted[0], {UNIT: wanted[1]}, self.places, check=check)

    @property
    def told(self) -> str:
        return self.log.read_text()


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Machine:
    return Machine(tmp_path, monkeypatch)


def unit(
    *, length: int = 4096, clock: str = "yes", timeout: int = 60, mark: str = "", note: str = ""
) -> tuple[str, str]:
    """A template and a drop-in; the stamp is made of both where none is given."""
    template = f"# {note}\n[Service]\nTimeoutStartSec={timeout}\nProtectClock={clock}\n"
    drop_in = (
        f"[Service]\nEnvironment={DIGEST_VARIABLE}=MARK\nExecStart=/e/bin/python -m e --len "
        f"{length}\n"
    )
    mark = mark or compute_digest(parse_form(started.join_unit(template, drop_in)))
    return template, drop_in.replace("MARK", mark)


OLD = "0ldstamp0ldstamp"


def test_an_engine_of_another_version_goes_on_where_its_unit_means_the_same(
    machine: Machine,
) -> None:
    machine.has(*unit(mark=OLD, note="As an older version wrote it."))
    machine.runs(OLD)
    wanted = unit(note="As this one does.", timeout=90)
    first = machine.ensure(wanted)
    assert first["changed"]
    assert (first["started"], first["restarted"]) == ([], [])
    assert machine.told == "daemon-reload\n"
    assert machine.places.file(UNIT).read_text() == wanted[0]
    assert machine.places.drop_in(UNIT).read_text() == wanted[1]
    for _ in range(2):
        assert not machine.ensure(wanted)["changed"]
        assert machine.told == ""


def gated() -> tuple[str, str]:
    """A unit whose engine asks for the machine key."""
    template, drop_in = unit()
    bare = ["/e/bin/python", "-m", "e"]
    words = unit_comparison.build_gated_command(bare, "/srv/kimi/lib/kimi-target.pyz")
    drop_in = drop_in.replace(" ".join(bare), " ".join(words))
    old = read_digest(drop_in)
    return template, drop_in.replace(
        old, compute_digest(parse_form(started.join_unit(template, drop_in)))
    )


def test_a_proxy_of_metrics_alone_sends_engines_no_key_and_keeps_none_from_a_start(
    machine: Machine,
) -> None:
    """As on a rank of a group, which no client asks."""
    config = machine.places.proxy_config
    config.parent.mkdir(parents=True, exist_ok=True)
    config.write_text("frontend metrics\nbackend metrics_node\n")
    assert machine.ensure(gated())["started"] == [UNIT]


@pytest.mark.parametrize("older", ["program", "proxy_config"])
def test_no_engine_is_restarted_that_nothing_on_the_machine_fits(
    machine: Machine, older: str
) -> None:
    machine.has(*unit(mark=OLD))
    machine.runs(OLD)
    path = getattr(machine.places, older)
    path.parent.mkdir(parents=True, exist_ok=True)
    if older == "program":
        with zipfile.ZipFile(path, "w") as program:
            program.writestr("__main__.py", "")
    else:
        path.write_text("backend engines\n")
    before = machine.places.drop_in(UNIT).read_text()
    with pytest.raises(HostError, match="is of an older version") as refused:
        machine.ensure(gated())
    assert "without --tags" in str(refused.value.fix)
    assert machine.places.drop_in(UNIT).read_text() == before
    assert not machine.places.machine_key.exists()


def test_an_engine_without_the_machine_key_gets_one_by_a_restart_that_is_named(
    machine: Machine,
) -> None:
    machine.has(*unit(mark=OLD))
    machine.runs(OLD)
    template, drop_in = gated()
    said = machine.ensure((template, drop_in), check=True)
    assert said["reasons"] == {UNIT: ["protection: machine key added"]}
    assert said["made"] == [str(machine.places.machine_key)]
    assert not machine.places.machine_key.exists()
    assert machine.ensure((template, drop_in))["restarted"] == [UNIT]
    key = machine_key.read(machine.places.machine_key)
    assert key
    machine.runs(read_digest(drop_in))
    again = machine.ensure((template, drop_in))
    assert not again["changed"]
    assert key not in str(again)


def test_it_is_restarted_where_it_differs_and_check_says_why_beforehand(machine: Machine) -> None:
    machine.has(*unit(mark=OLD))
    machine.runs(OLD)
    wanted = unit(length=8192, clock="no")
    said = machine.ensure(wanted, check=True)
    assert said["reasons"] == {
        UNIT: ["command line: --len 4096 -> 8192", "protection: ProtectClock yes -> no"]
    }
    assert machine.told == ""
    assert machine.places.drop_in(UNIT).read_text() != wanted[1]
    assert machine.ensure(wanted)["restarted"] == [UNIT]
    assert machine.told == f"daemon-reload\nreset-failed {UNIT}\nrestart --no-block {UNIT}\n"
    mark = compute_digest(parse_form(started.join_unit(*wanted)))
    machine.runs(mark)
    assert not machine.ensure(wanted)["changed"]
    assert [path.stem for path in machine.places.kept.iterdir()] == [mark]


def test_a_version_with_other_stamps_finds_what_was_started(machine: Machine) -> None:
    assert machine.ensure(unit(mark=OLD))["started"] == [UNIT]
    machine.runs(OLD)
    # Since then another comment was written, which that version did not restart for.
    machine.places.file(UNIT).write_text(unit(note="Newer than the drop-in.")[0])
    assert machine.ensure(unit())["restarted"] == []
    assert machine.ensure(unit(length=8192), check=True)["reasons"] == {
        UNIT: ["command line: --len 4096 -> 8192"]
    }


def test_a_run_killed_between_writing_and_restarting_is_made_good(
    machine: Machine, tmp_path: Path
) -> None:
    machine.has(*unit(mark=OLD))
    machine.runs(OLD)
    wanted = unit(length=8192)
    dies = tmp_path / "killed-by-daemon-reload"
    dies.touch()
    machine.log.write_text("")
    program = (
        "import sys; from kimi_prov.on_host.engine import serve\n"
        "from kimi_prov.on_host.system import started\n"
        f"serve.ensure({wanted[0]!r}, {{{UNIT!r}: {wanted[1]!r}}}, "
        f"started.UnitPaths({str(tmp_path)!r}), check=False)"
    )
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == -9
    dies.unlink()
    assert machine.places.drop_in(UNIT).read_text() == wanted[1]
    assert "restart" not in machine.told
    again = machine.ensure(wanted)
    assert again["restarted"] == [UNIT]
    assert again["reasons"] == {UNIT: ["command line: --len 4096 -> 8192"]}


def test_what_it_was_started_with_is_not_guessed(machine: Machine) -> None:
    wanted = unit()
    machine.has(*unit(mark="ffff"))
    machine.runs(OLD)
    assert machine.ensure(wanted, check=True)["reasons"] == {UNIT: [UNKNOWN]}
    # A run of an older version that was killed after it wrote the template, before the drop-in.
    machine.has(*unit(mark=OLD))
    machine.places.file(UNIT).write_text(unit(clock="no")[0])
    assert machine.ensure(wanted, check=True)["reasons"] == {UNIT: [UNKNOWN]}


def test_a_unit_that_nobody_can_read_is_set_right(machine: Machine) -> None:
    wanted = unit()
    machine.has(*wanted)
    machine.runs(compute_digest(parse_form(started.join_unit(*wanted))))
    machine.places.file(UNIT).chmod(0o600)
    assert machine.ensure(wanted)["changed"]
    assert machine.places.file(UNIT).stat().st_mode & 0o777 == 0o644
    assert not machine.ensure(wanted)["changed"]


RANK = "kimi-rank.service"


def test_a_head_that_becomes_a_rank_and_back_leaves_no_unit_behind(machine: Machine) -> None:
    template, drop_in = unit()
    machine.ensure((template, drop_in))
    machine.log.write_text("")
    done = serve.ensure(template, {RANK: drop_in}, machine.places, check=True)
    assert (done["started"], done["removed"]) == ([RANK], [UNIT])
    assert machine.told == ""
    done = serve.ensure(template, {RANK: drop_in}, machine.places, check=False)
    assert (done["started"], done["removed"]) == ([RANK], [UNIT])
    assert f"stop {UNIT}\n" in machine.told
    assert f"start --no-block {RANK}\n" in machine.told
    assert machine.places.file(RANK).read_text() == template
    assert machine.places.drop_in(RANK).read_text() == drop_in
    assert sorted(path.name for path in machine.places.units.iterdir()) == [RANK, f"{RANK}.d"]
    done = machine.ensure((template, drop_in))
    assert (done["started"], done["removed"]) == ([UNIT], [RANK])
    names = ["kimi-serve@.service", f"{UNIT}.d"]
    assert sorted(path.name for path in machine.places.units.iterdir()) == names


def test_an_instance_that_goes_leaves_the_file_that_others_share(machine: Machine) -> None:
    template, drop_in = unit()
    both = {UNIT: drop_in, "kimi-serve@1.service": drop_in}
    serve.ensure(template, both, machine.places, check=False)
    assert machine.ensure((template, drop_in))["removed"] == ["kimi-serve@1.service"]
    assert machine.places.file(UNIT).read_text() == template


def test_a_host_of_a_group_needs_a_program_that_supervises(machine: Machine) -> None:
    template, drop_in = gated()
    bare = " engine -m "
    supervised = drop_in.replace(bare, " group --name pair -- engine -m ")
    machine.places.program.parent.mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(machine.places.program, "w") as program:
        program.writestr("kimi_prov/on_host/engine/launch.py", "")
    machine.ensure((template, drop_in))
    with pytest.raises(HostError, match="is of an older version"):
        machine.ensure((template, supervised))
