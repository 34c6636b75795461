"""`bench`: what load it asks for, what it refuses before any machine is asked, how it travels."""

from __future__ import annotations

import base64
import io
import json
import stat
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path

import pytest

from kimi_prov.acceptance import bench_prompts
from kimi_prov.cli import cli
from kimi_prov.commands.common import bench_load
from kimi_prov.errors import UserError
from kimi_prov.show.exit_handling import guarded

REPOSITORY = Path(__file__).resolve().parents[3]
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n and what follows").decode()
QUESTION = {"from": "human", "value": "What is the capital of Norway?"}
SHAREGPT = {"conversations": [QUESTION, {"from": "gpt", "value": "Oslo."}]}
VISION = {"conversation": [[{"role": "user", "content": "What is it?"}]], "images": [PNG]}


def asked(*words):
    """Run the command; give its exit code and what it printed."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = guarded(partial(cli.main, ["bench", *map(str, words)], standalone_mode=False))
    return code, out.getvalue() + err.getvalue()


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["--concurrency", "0"], "from 1 to 10000"),
        (["--concurrency", "1,,4"], "commas between"),
        (["--concurrency", "1,99999999999999"], "commas between"),
        (["--rate", "nan"], "no number"),
        (["--rounds", "0"], "1<=x<=20"),
        (["--image-size", "1024"], "width and height"),
        (["--images", "1", "--image-size", "9x9"], "16 to 8192 pixels"),
        (["--image-size", "64x64"], "--images N"),
        (["--profile", "dgx"], "dgx-h200"),
        (["--profile", "lab", "--load", "x.yml"], "exclude each other"),
        (["--load", "missing.yml"], "missing.yml"),
        (["--prompts", "missing.json"], "missing.json"),
        (["--profile", "dgx-h200", "--completions"], "--completions and --images"),
    ],
)
def test_a_load_that_is_none_is_refused_before_anything_runs(words, told) -> None:
    code, said = asked("inventories/localhost", *words)
    assert code == 2
    assert told in said


def test_every_shipped_inventory_that_is_no_second_lab_has_its_load() -> None:
    shipped = {path.parent.name for path in (REPOSITORY / "inventories").glob("*/hosts.yml")}
    others = {"lab-amx", "lab-group", "lab-qemu", "localhost"}
    assert set(bench_load.profiles()) == shipped - others


def test_options_win_over_a_profile_and_the_rest_of_it_stays() -> None:
    found = bench_load.of({"profile": "dgx-h200", "requests": 5, "image_size": (640, 480)})
    assert found.asked["requests"] == 5
    assert found.asked["rate_per_s"] == 20
    assert (found.asked["image_width"], found.asked["image_height"]) == (640, 480)
    found = bench_load.of({"profile": "dgx-h200", "chat": False, "images": 0})
    assert found.asked["chat"] is False


def test_a_load_file_of_a_team_is_measured_with_its_users(tmp_path) -> None:
    file = tmp_path / "load.yml"
    file.write_text("schema: kimi-prov/load/v1\nusers: 12\ninput_tokens: 2048\n")
    found = bench_load.of({"load_file": file}).asked
    assert (found["concurrency"], found["input_tokens"]) == ([12], 2048)
    file.write_text("schema: kimi-prov/load/v1\nusers: 10001\n")
    code, said = asked("inventories/localhost", "--load", file)
    assert code == 2
    assert "users: 10,001 are more than the 10,000" in said
    file.write_text("schema: kimi-prov/load/v1\nbench: {request: 3, rounds: 2.5}\n")
    code, said = asked("inventories/localhost", "--load", file)
    assert code == 2
    assert f"{file}:2: bench.request" in said
    assert "bench.rounds: wanted a whole number" in said


def read(folder, text):
    file = folder / "prompts.json"
    file.write_text(text if isinstance(text, str) else json.dumps(text))
    return bench_prompts.read(file)


def test_both_forms_are_read_as_a_list_and_by_line(tmp_path) -> None:
    more = {"conversations": [QUESTION, {"value": "Yes."}], "image": f"data:image/x;base64,{PNG}"}
    found = read(tmp_path, [SHAREGPT, more, {"conversations": [QUESTION]}])
    assert (found.form, len(found.rows), found.left_out, found.pictures) == ("sharegpt", 2, 1, 1)
    assert found.rows[0]["answer"] == "Oslo."
    # What it is, by its bytes, and not what it was called.
    assert found.rows[1]["image"] == f"data:image/png;base64,{PNG}"
    turns = {"turns": [[{"role": "user", "content": "And this?"}]], "images": [{"bytes": PNG}]}
    found = read(tmp_path, "\n".join(json.dumps(row) for row in (VISION, turns)))
    assert (found.form, found.pictures) == ("visionarena", 2)
    assert [row["prompt"] for row in found.rows] == ["What is it?", "And this?"]


@pytest.mark.parametrize(
    ("entries", "told"),
    [
        ("", "no prompt in it"),
        ("[{]", ":1: not JSON"),
        ('{"conversations": []}\n{cut', ":2: not JSON"),
        ([SHAREGPT, 7], "[1]: wanted an object, found a number"),
        ([{"text": "x"}], "neither conversations"),
        ([{"conversations": {}}], "[0].conversations: wanted a list"),
        ([{"conversations": [QUESTION, {"value": 3}]}], "[0].conversations[1].value: wanted text"),
        ([{"conversations": [{"value": " "}, QUESTION]}], "nothing is asked"),
        ([{**VISION, "images": []}], "[0].images: wanted an image"),
        ([{**VISION, "images": ["https://example.com/a.png"]}], "the machine fetches and opens"),
        ([{**VISION, "images": ["file:///etc/passwd"]}], "[0].images[0]: wanted the image itself"),
        ([{**VISION, "images": [base64.b64encode(b"GET /").decode()]}], "no PNG, JPEG"),
        ([{"conversation": [], "images": [PNG]}], "nothing is asked"),
        ([SHAREGPT, VISION], "two forms in one file"),
    ],
)
def test_prompts_that_are_none_are_refused_with_line_and_key(tmp_path, entries, told) -> None:
    with pytest.raises(UserError) as refused:
        read(tmp_path, entries)
    assert told in refused.value.message
    assert str(tmp_path / "prompts.json") in refused.value.message


def test_a_fault_of_a_list_is_told_with_its_line(tmp_path) -> None:
    with pytest.raises(UserError, match=r"prompts.json:3: \[1\].conversations\[0\].value"):
        read(tmp_path, f'[{json.dumps(SHAREGPT)},\n{{"conversations": [\n{{"value": 1}}, {{}}]}}]')


def test_a_long_list_of_short_conversations_is_read(tmp_path) -> None:
    assert len(read(tmp_path, [SHAREGPT] * 15_000).rows) == 15_000


def test_more_than_the_bound_is_refused(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(bench_prompts, "LARGEST_BYTES", 1 << 20)
    with pytest.raises(UserError, match="over 1 MiB"):
        read(tmp_path, [{"conversations": [{"value": "a" * (1 << 20)}, QUESTION]}])


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
    paths = installed.site / "kimi_prov" / "contract" / "paths.py"
    text = paths.read_text()
    assert text.count('ZIPAPP = f"{LIB}/kimi-target.pyz"') == 1
    paths.write_text(
        text.replace('ZIPAPP = f"{LIB}/kimi-target.pyz"', f"ZIPAPP = {str(machine)!r}")
    )
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
