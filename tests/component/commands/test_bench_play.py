"""The load of a `bench` on its way to the machine, by a play."""

from __future__ import annotations

import io
import json
import stat
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path

from kimi_prov.cli import cli
from kimi_prov.show.exit_handling import run_guarded


def asked(*words):
    """Run the command; give its exit code and what it printed."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run_guarded(partial(cli.main, ["bench", *map(str, words)], standalone_mode=False))
    return code, out.getvalue() + err.getvalue()


MACHINE = """
import json, os, sys
argv = sys.argv[1:]
if argv[:2] == ["bench", "start"]:
    about = os.stat(os.path.dirname(argv[2]))
    seen = {"file": argv[2], "mode": about.st_mode, **json.load(open(argv[2]))}
    json.dump(seen, open(os.environ["HOME"] + "/seen.json", "w"))
    print(json.dumps({"ok": True, "load": seen["load"]}))
else:
    print(json.dumps({"ok": True}))
"""
OLD_MACHINE = """
import json, os, sys
open(os.environ["HOME"] + "/asked", "a").write(" ".join(sys.argv[1:3]) + "\\n")
print(json.dumps({"ok": True}))
"""
BOOK = """
- hosts: kimi
  gather_facts: false
  tasks:
    - kimi_bench: {state: started, load: "{{ bench_load | default('') }}"}
"""


def machine_of(installed, tmp_path, code) -> None:
    machine = tmp_path / "machine.py"
    machine.write_text(code)
    # The code of the machine, in a place of this test's.
    text = (installed.site / "kimi_prov" / "contract" / "paths.py").read_text()
    assert text.count('ZIPAPP = f"{LIB}/kimi-target.pyz"') == 1
    text = text.replace('ZIPAPP = f"{LIB}/kimi-target.pyz"', f"ZIPAPP = {str(machine)!r}")
    installed.write("contract/paths.py", text)
    installed.playbook("bench", BOOK)


def test_a_machine_that_does_not_know_loads_is_not_measured_with_another(
    installed, local, tmp_path
) -> None:
    machine_of(installed, tmp_path, OLD_MACHINE)
    done = installed.run("bench", local("node1"), "--rate", "3")
    assert done.returncode != 0
    said = " ".join((done.stdout + done.stderr).split())
    assert "does not take the load" in said
    assert "kimi-prov apply" in said
    # What it began is ended.
    asked = (installed.home / "asked").read_text().splitlines()
    assert asked == ["bench start", "bench result"]


def test_the_load_reaches_the_machine_by_a_file_and_nothing_of_it_stays(
    installed, local, tmp_path
) -> None:
    machine_of(installed, tmp_path, MACHINE)
    prompts = tmp_path / "questions.json"
    canary = "what nobody else shall read"
    rows = [{"conversations": [{"value": canary}, {"value": "{{ 7 * 7 }}"}]}]
    rows.append({"conversations": [{"value": "nobody answered"}]})
    prompts.write_text(json.dumps(rows))
    scratch = tmp_path / "scratch"
    scratch.mkdir()
    done = installed.run(
        *("bench", local("node1"), "--prompts", prompts, "--concurrency", "2,8", "--rate", "3"),
        env={"TMPDIR": str(scratch), "ANSIBLE_REMOTE_TMP": str(tmp_path / "remote")},
    )
    assert "unexpected:" not in done.stderr
    seen = json.loads((installed.home / "seen.json").read_text())
    assert seen["load"]["concurrency"] == [2, 8]
    assert seen["load"]["rate_per_s"] == 3
    assert (seen["load"]["prompts"], seen["load"]["unanswered"]) == (1, 1)
    assert seen["prompts"] == [{"prompt": canary, "answer": "{{ 7 * 7 }}", "image": None}]
    assert stat.S_IMODE(seen["mode"]) & 0o077 == 0
    assert not Path(seen["file"]).exists()
    assert Path(seen["file"]).parents[1] == tmp_path / "remote"
    assert not list((tmp_path / "remote").iterdir())
    assert not list(scratch.glob("kimi-prov-bench-*"))
    kept = [path for path in installed.runs.rglob("*") if path.is_file()]
    assert kept
    assert not any(canary in path.read_text(errors="replace") for path in kept)
