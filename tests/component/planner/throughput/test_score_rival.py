"""The rival beside the score. aiconfigurator is large and has pins of its own: doubles play it.

Two kinds: an interpreter that runs the real bridge with a small package by its name, and programs
that take the interpreter's place and say what they like.
"""

import json
import shlex
import sys

import pytest
import yaml
from speed_rows import GPU

from kimi_prov.planner.throughput import score

CPU = {**GPU, "quant": "Q4_K_M", "engine": "llama.cpp", "cpu": "2x EPYC 9654", "gpus": "none"}
# The double of the package: as fast as the batch is large, without figures for some, and talkative.
API = """
import collections, json, os
def cli_estimate(model_path, system_name, *, database_mode, batch_size, isl, osl, **more):
    print("loading")
    os.write(1, b'{"row": 0, "tpot_ms": 1, "ttft_ms": 1}\\n')
    with open(SEEN, "a") as file:
        asked = [model_path, system_name, database_mode, batch_size, isl, osl]
        file.write(json.dumps([asked, more]) + "\\n")
    if system_name == "b200_sxm":
        raise SystemExit("no   \\x1b[31mfigures\\n for it")
    if database_mode == "SILICON" and batch_size > 1:
        raise KeyError("no table")
    return collections.namedtuple("Found", "tpot ttft")(10.0 * batch_size, 500)
"""


@pytest.fixture
def rival(tmp_path):
    """Make an interpreter for which a double of aiconfigurator is installed."""
    site = tmp_path / "site"
    (site / "aiconfigurator" / "cli").mkdir(parents=True)
    for package in ("", "cli/"):
        (site / "aiconfigurator" / f"{package}__init__.py").touch()
    seen = f"SEEN = {str(tmp_path / 'seen')!r}\n"
    (site / "aiconfigurator" / "cli" / "api.py").write_text(seen + API)
    (site / "aiconfigurator-0.0.dist-info").mkdir()
    metadata = "Metadata-Version: 2.1\nName: aiconfigurator\nVersion: 0.0+double\n"
    (site / "aiconfigurator-0.0.dist-info" / "METADATA").write_text(metadata)
    code = f"import runpy, sys; sys.path.insert(0, {str(site)!r}); "
    code += "runpy.run_path(sys.argv[1], run_name='__main__')"
    return program(tmp_path, f'exec {shlex.quote(sys.executable)} -c "{code}" "$2"')


def program(tmp_path, body):
    path = tmp_path / "python"
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o755)
    return path


def rows(tmp_path, *given):
    path = tmp_path / "rows.yaml"
    named = [{"id": f"x{n}", "source": f"source {n}", **row} for n, row in enumerate(given)]
    path.write_text(yaml.safe_dump({"rows": named}))
    return path


def run(path, python, *options):
    return score.main([str(path), "--rival-python", str(python), *options])


def rival_of(capsys):
    return json.loads(capsys.readouterr().out)["rival"]


def test_both_are_scored_on_the_rows_that_the_rival_answers(tmp_path, rival, capsys):
    off = [GPU | {"decode_tok_s_per_request": value} for value in (80.0, 100.0, 125.0)]
    path = rows(tmp_path, *off, GPU | {"gpus": "8x B200"}, GPU | {"gpus": "8x MI300X"}, CPU)
    assert run(path, rival) == 0
    text = capsys.readouterr().out
    assert "aiconfigurator 0.0+double answered 3 of 5 rows on GPUs (3 in mode SILICON)." in text
    assert "not answered, 1 rows: SystemExit: no figures for it\n" in text
    assert "not answered, 1 rows: it has no MI300X\n" in text
    assert run(path, rival, "--format", "json") == 0
    told = rival_of(capsys)
    assert {row["id"]: row["its"] for row in told["rows"]} == pytest.approx(
        {"x0": 100.0, "x1": 100.0, "x2": 100.0}
    )
    [whole] = [c for c in told["classes"] if c["class"] == "all" and c["quantity"] == "decode"]
    assert whole["rows"] == 3
    assert whole["figures"]["its_median"] == pytest.approx(0.2)
    assert whole["figures"]["its_mean"] == pytest.approx(0.45 / 3)
    ours = [abs(row["expected"] / row["measured"] - 1) for row in told["rows"]]
    assert whole["figures"]["our_mean"] == pytest.approx(sum(ours) / 3)


def test_each_row_is_asked_for_in_the_rivals_words(tmp_path, rival, capsys):
    batched = {"concurrency": 4, "decode_tok_s_aggregate": 200.0, "context": "8192/1024"}
    thinking = {"model": "Kimi-K2-Thinking", "engine": "sglang"}
    fp8 = {"model": "Kimi-K2-Instruct", "quant": "FP8", "gpus": "16x H100"}
    path = rows(tmp_path, GPU | batched, GPU | thinking, GPU | fp8)
    assert run(path, rival, "--format", "json") == 0
    [first, again, second, third] = map(json.loads, (tmp_path / "seen").read_text().splitlines())
    assert first[0] == ["moonshotai/Kimi-K2.5", "h200_sxm", "SILICON", 4, 8192, 1024]
    assert first[1]["backend_name"] == "vllm"
    assert again[0][2] == "HYBRID"
    assert second[0][0] == "moonshotai/Kimi-K2.5"
    assert second[1]["backend_name"] == "sglang"
    assert third[0][:2] == ["moonshotai/Kimi-K2.5", "h100_sxm"]
    assert (third[1]["tp_size"], third[1]["moe_quant_mode"]) == (16, "fp8_block")
    told = rival_of(capsys)
    assert [(row["its"], row["its_mode"]) for row in told["rows"]] == [
        (pytest.approx(25.0), "HYBRID"),
        (pytest.approx(100.0), "SILICON"),
        (pytest.approx(100.0), "SILICON"),
    ]


def test_a_prompt_alone_and_a_request_end_to_end_take_their_own_times(tmp_path, rival, capsys):
    prompt = {"decode_tok_s_per_request": None, "prefill_tok_s": 3000.0}
    path = rows(tmp_path, GPU | prompt, GPU | {"note": "incl. TTFT"})
    assert run(path, rival, "--format", "json") == 0
    assert [row["its"] for row in rival_of(capsys)["rows"]] == pytest.approx([2000.0, 1000 / 11])


def test_a_class_under_three_authors_has_no_figure_of_the_rival_either(tmp_path, rival, capsys):
    path = rows(tmp_path, GPU, GPU)
    assert run(path, rival) == 0
    beside = capsys.readouterr().out.partition("its median")[2].partition("set aside")[0]
    assert beside.count("unscored: under 3 authors") == 4
    assert "%" not in beside


def test_with_rows_each_row_has_the_rivals_figure(tmp_path, rival, capsys):
    assert run(rows(tmp_path, GPU, CPU), rival, "--rows") == 0
    text = capsys.readouterr().out
    assert [line.count("; rival 100.0") for line in text.splitlines() if " measured, " in line] == [
        1,
        0,
    ]


NONSENSE = r"""
cat > /dev/null
cat <<'END'
{"name": "a double \u001b[2J of it"}
loading ...
[1, 2]
{"row": 0, "tpot_ms": "12", "ttft_ms": 5}
{"row": 1, "tpot_ms": NaN, "ttft_ms": 5}
{"row": 2, "tpot_ms": -3, "ttft_ms": 5}
{"row": 3, "tpot_ms": 12}
{"row": 4, "why": "\u001b]0;title\u0007 broke\nnot answered, 9 rows: all"}
{"row": 99, "tpot_ms": 1, "ttft_ms": 1}
{"row": 5, "tpot_ms": 10, "ttft_ms": 5, "mode": ["x"]}
END
printf '\377\376\n'
exit 3
"""


def test_what_is_no_answer_is_counted_and_nothing_of_it_steers_the_terminal(tmp_path, capsys):
    path = rows(tmp_path, *[GPU] * 7)
    assert run(path, program(tmp_path, NONSENSE)) == 0
    text = capsys.readouterr().out
    assert "answered 1 of 7 rows on GPUs" in text
    assert "not answered, 3 rows: its answer is none that can be read" in text
    assert "not answered, 2 rows: it ended without an answer" in text
    assert "broke not answered, 9 rows: all\n" in text
    assert "\x1b" not in text
    assert "\x07" not in text


@pytest.mark.parametrize(
    ("body", "why"),
    [
        ("exec sleep 600", "no answer within 0.5 s"),
        ("sleep 600 & wait", "no answer within 0.5 s"),
        ("exit 1", "it ended without an answer"),
        ("exec yes", "it says more than answers can be"),
    ],
)
def test_a_rival_that_answers_nothing_is_told_and_is_a_failure(tmp_path, capsys, body, why):
    path = rows(tmp_path, GPU, GPU)
    seconds = "0.5" if "sleep" in body else "300"
    assert run(path, program(tmp_path, body), "--rival-seconds", seconds) == 1
    text = capsys.readouterr().out
    assert f"not answered, 2 rows: {why}\n" in text
    assert "GPU, INT4 and FP8, decode" in text


def test_an_interpreter_that_is_none_is_refused_with_the_way_to_one(tmp_path, capsys):
    assert run(rows(tmp_path, GPU), tmp_path / "none") == 2
    said = capsys.readouterr()
    assert f"{tmp_path / 'none'}: cannot be started" in said.err
    assert "pip install aiconfigurator==" in said.err
    assert not said.out


@pytest.mark.parametrize("by_path", [True, False])
def test_an_interpreter_is_found_from_where_the_score_is_called(
    tmp_path, rival, by_path, capsys, monkeypatch
):
    path = rows(tmp_path, GPU)
    monkeypatch.chdir(tmp_path.parent if by_path else "/")
    if not by_path:
        monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert run(path, f"{tmp_path.name}/{rival.name}" if by_path else rival.name) == 0
    assert "answered 1 of 1 rows on GPUs" in capsys.readouterr().out


def test_an_interpreter_without_the_rival_is_refused(tmp_path, capsys):
    bare = program(tmp_path, f'exec {shlex.quote(sys.executable)} -I -S "$2"')
    assert run(rows(tmp_path, GPU), bare) == 2
    assert f"{bare}: aiconfigurator is not installed for it" in capsys.readouterr().err


def test_without_a_rival_the_score_says_in_a_line_how_to_get_it(tmp_path, capsys):
    assert score.main([str(rows(tmp_path, GPU))]) == 0
    [line] = [line for line in capsys.readouterr().out.splitlines() if "RIVAL=" in line]
    assert "pip install aiconfigurator==" in line
