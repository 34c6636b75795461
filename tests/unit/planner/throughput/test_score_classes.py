"""The score's classes: who belongs where, what is printed of them, and how aims are judged."""

import dataclasses
import json

import pytest
import yaml
from speed_rows import GPU

from kimi_prov.planner.throughput import classes, rows, score
from kimi_prov.planner.throughput.calibrate import Prediction

HYBRID = {
    **GPU,
    "quant": "RAWINT4",
    "engine": "kt + sglang-kt",
    "cpu": "2x EPYC 9654",
    "sockets": 2,
    "gpus": "1x RTX 4090",
    "decode_tok_s_per_request": 12.0,
}
GGUF = {"quant": "Q4_K_M", "engine": "ik_llama.cpp", "prefill_tok_s": 50.0}


def write(tmp_path, *given):
    path = tmp_path / "rows.yaml"
    named = [{"id": f"x{n}", "source": "one", **row} for n, row in enumerate(given)]
    path.write_text(yaml.safe_dump({"rows": named}))
    return path


def printed(path, capsys, *options):
    assert score.main([str(path), *options]) == 0
    return capsys.readouterr().out


def lines(text, start):
    return [line for line in text.splitlines() if line.startswith(start)]


@pytest.mark.parametrize(
    ("row", "place"),
    [
        (GPU, ("GPU, INT4 and FP8", "one request")),
        (GPU | {"quant": "FP8", "concurrency": 4}, ("GPU, INT4 and FP8", "batched")),
        (GPU | {"quant": "NVFP4", "gpus": "8x B200"}, ("GPU, NVFP4", "one request")),
        (GPU | {"quant": "MXFP4", "gpus": "8x B200"}, ("GPU, MXFP4", "one request")),
        (GPU | {"quant": "BF16"}, ("GPU, other formats", "one request")),
        (HYBRID, ("hybrid", "kt-kernel and vLLM")),
        (HYBRID | GGUF, ("hybrid", "llama.cpp")),
        (HYBRID | {"engine": "ktransformers 0.2"}, ("hybrid", "other engines")),
        (HYBRID | GGUF | {"gpus": "none", "engine": "llama.cpp"}, ("CPU", "llama.cpp")),
        (HYBRID | {"gpus": "none", "engine": "sglang CPU backend"}, ("CPU", "other engines")),
        (HYBRID | {"gpus": "none", "engine": "vllm"}, ("CPU", "kt-kernel and vLLM")),
    ],
)
def test_a_row_has_its_class_by_format_or_engine(tmp_path, row, place):
    cases, _ = rows.read_file(write(tmp_path, row))
    assert {classes.classify_case(case) for case in cases} == {place}


def test_a_class_under_three_authors_is_printed_without_a_figure(tmp_path, capsys):
    two = [HYBRID | {"source": "one"}, HYBRID | {"source": "two"}, HYBRID | {"source": "two"}]
    three = [GPU | {"source": name} for name in ("one", "two", "three")]
    path = write(tmp_path, *two, *three)
    text = printed(path, capsys)
    [line] = lines(text, "hybrid, decode")
    assert line.split() == ["hybrid,", "decode", "3", "2", "unscored:", "under", "3", "authors"]
    [part] = lines(text, "  kt-kernel and vLLM")
    assert "unscored" in part
    assert "%" not in line + part
    [scored] = lines(text, "GPU, INT4 and FP8, decode")
    assert scored.count("%") == 4
    assert lines(text, "unscored  hybrid, decode") == ["unscored  hybrid, decode"]
    document = json.loads(printed(path, capsys, "--format", "json"))
    figures = {
        (c["class"], c["part"], c["quantity"]): (c["rows"], c["sources"], c["figures"])
        for c in document["classes"]
    }
    assert figures["hybrid", None, "decode"] == (3, 2, None)
    assert figures["hybrid", "kt-kernel and vLLM", "decode"] == (3, 2, None)
    assert figures["GPU, INT4 and FP8", None, "decode"][2]["median_error"] >= 0


def test_decode_and_prefill_are_classes_of_their_own(tmp_path, capsys):
    path = write(tmp_path, *(HYBRID | GGUF | {"source": name} for name in "abc"))
    text = printed(path, capsys)
    for start in ("hybrid, decode", "hybrid, prefill", "all, decode", "all, prefill", "all  "):
        [line] = lines(text, start)
        assert "%" in line


def predicted(tmp_path, errors, *, wide, row=GPU):
    """Predictions whose expected values are off by so much, one of a source each."""
    [case], _ = rows.read_file(write(tmp_path, row))
    return [
        Prediction(
            dataclasses.replace(case, author=str(n)),
            expected := case.value * (1 + error),
            expected / wide**0.5,
            expected * wide**0.5,
        )
        for n, error in enumerate(errors)
    ]


def test_figures_are_of_the_classes_own_rows(tmp_path):
    found = predicted(tmp_path, [0.0, 0.1, 0.2, 0.3, 1.4], wide=2.0)
    whole = classes.score_classes(found)[0]
    assert (whole.of.title, whole.rows, whole.authors) == ("GPU, INT4 and FP8, decode", 5, 5)
    f = whole.figures
    assert (f.median_error, f.mean_error) == pytest.approx((0.2, 0.4))
    assert f.error_p90 == pytest.approx(0.3 + 0.6 * 1.1)
    assert (f.held, f.high_over_low) == pytest.approx((0.8, 2.0))


@pytest.mark.parametrize(
    ("errors", "wide", "row", "verdict", "said"),
    [
        ([0.1, 0.15, 0.15], 2.0, GPU, "met", []),
        ([0.1, 0.17, 0.2], 2.0, GPU, "missed", ["median error 17.0%, aim 15%"]),
        ([0.1, 0.17, 0.2], 2.0, {"quant": "NVFP4", "gpus": "8x B200"}, "met", []),
        ([0.1, 0.19, 0.3], 2.0, HYBRID, "met", []),
        ([0.1, 0.26, 0.3], 2.0, HYBRID, "missed", ["median error 26.0%, aim 20%"]),
        ([0.0, 0.1, 0.6], 2.0, GPU, "missed", ["ranges hold 66.7%, aim 85%"]),
        ([0.0, 0.1] * 5, 2.204, GPU, "missed", ["high/low 2.204, aim 2.2"]),
        ([0.0, 0.1] * 5, 2.3, GPU, "missed", ["high/low 2.300, aim 2.2"]),
        ([0.0, 0.1, 0.1], 2.3, GPU, "met", []),  # few authors: wider by rule
        ([0.0, 3.0], 2.3, GPU, "unscored", []),
        ([0.0, 0.1, 0.1], 2.0, {"quant": "BF16"}, None, []),
    ],
)
def test_aims_are_judged_by_class(tmp_path, errors, wide, row, verdict, said):
    whole = classes.score_classes(predicted(tmp_path, errors, wide=wide, row=GPU | row))[0]
    assert (whole.verdict, whole.missed) == (verdict, said)


def test_prefill_has_an_aim_of_its_own(tmp_path):
    path = write(tmp_path, HYBRID | GGUF)
    cases, _ = rows.read_file(path)
    [prefill] = [case for case in cases if case.quantity == "prefill"]
    found = [
        Prediction(dataclasses.replace(prefill, author=str(n)), prefill.value * 1.29, 1.0, 1e6)
        for n in range(3)
    ]
    assert classes.score_classes(found)[0].missed == []


def test_what_was_missed_is_said_in_words_and_the_exit_is_as_ever(tmp_path, capsys):
    off = [GPU | {"source": name, "decode_tok_s_per_request": 900.0} for name in "abc"]
    text = printed(write(tmp_path, *off), capsys)
    [line] = lines(text, "missed    GPU, INT4 and FP8, decode")
    assert "aim 15%; ranges hold 0.0%, aim 85%" in line
    assert "Met by 0 of 2 scored classes; 0 are unscored." in text
    assert lines(text, "no rows   GPU, NVFP4") == ["no rows   GPU, NVFP4, decode"]
