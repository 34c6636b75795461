"""`bench`: what load it asks for, what it refuses before any machine is asked, how it travels."""

from __future__ import annotations

import base64
import io
import json
from contextlib import redirect_stderr, redirect_stdout
from functools import partial
from pathlib import Path

import pytest

from kimi_prov.acceptance import bench_prompts
from kimi_prov.cli import cli
from kimi_prov.commands.common import bench_load
from kimi_prov.errors import UserError
from kimi_prov.show.exit_handling import run_guarded

REPOSITORY = Path(__file__).resolve().parents[3]
PNG = base64.b64encode(b"\x89PNG\r\n\x1a\n and what follows").decode()
QUESTION = {"from": "human", "value": "What is the capital of Norway?"}
SHAREGPT = {"conversations": [QUESTION, {"from": "gpt", "value": "Oslo."}]}
VISION = {"conversation": [[{"role": "user", "content": "What is it?"}]], "images": [PNG]}


def asked(*words):
    """Run the command; give its exit code and what it printed."""
    out, err = io.StringIO(), io.StringIO()
    with redirect_stdout(out), redirect_stderr(err):
        code = run_guarded(partial(cli.main, ["bench", *map(str, words)], standalone_mode=False))
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
    assert set(bench_load.list_profiles()) == shipped - others


def test_options_win_over_a_profile_and_the_rest_of_it_stays() -> None:
    found = bench_load.parse_load({"profile": "dgx-h200", "requests": 5, "image_size": (640, 480)})
    assert found.request["requests"] == 5
    assert found.request["rate_per_s"] == 20
    assert (found.request["image_width"], found.request["image_height"]) == (640, 480)
    found = bench_load.parse_load({"profile": "dgx-h200", "chat": False, "images": 0})
    assert found.request["chat"] is False


def test_a_load_file_of_a_team_is_measured_with_its_users(tmp_path) -> None:
    file = tmp_path / "load.yml"
    file.write_text("schema: kimi-prov/load/v1\nusers: 12\ninput_tokens: 2048\n")
    found = bench_load.parse_load({"load_file": file}).request
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
    return bench_prompts.read_prompts(file)


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
    monkeypatch.setattr(bench_prompts, "MAX_BYTES", 1 << 20)
    with pytest.raises(UserError, match="over 1 MiB"):
        read(tmp_path, [{"conversations": [{"value": "a" * (1 << 20)}, QUESTION]}])
