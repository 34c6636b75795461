"""`check --measured`: a bench of a machine holds its prediction, and one of another is refused."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import bench_inputs as given
import closed_form
import pytest
from bench_inputs import level
from click.testing import CliRunner

from kimi_prov.cli import cli
from kimi_prov.errors import UserError

if TYPE_CHECKING:
    from pathlib import Path


def checked(facts: Path, *benches: Path, form: str = "json", more: tuple[str, ...] = ()) -> Any:
    words = [str(facts), *more, "--format", form]
    for bench in benches:
        words += ["--measured", str(bench)]
    done = CliRunner().invoke(cli, ["check", *words])
    if isinstance(done.exception, UserError):
        raise done.exception
    assert done.exception is None or isinstance(done.exception, SystemExit), done.exception
    return json.loads(done.output) if form == "json" else done.output


def target(*words: Any, **options: Any) -> dict[str, Any]:
    document = checked(*words, **options)
    closed_form.validate(document, "check")
    (row,) = document["targets"]
    closed_form.validate(row["plan"], "plan")
    return row


@pytest.fixture
def facts(tmp_path: Path) -> Path:
    path = tmp_path / "facts.json"
    path.write_text(json.dumps(given.facts_of()))
    return path


def width(span: dict[str, float]) -> float:
    return span["high"] / span["low"]


def test_a_bench_at_the_same_load_is_the_prediction(tmp_path: Path, facts: Path) -> None:
    slow = given.result(level(1, 60.0, 58.0, 7000.0), level(16, 20.0, 300.0, 900.0))
    row = target(facts, given.written(tmp_path, secret_node=slow))
    speed, effect = row["plan"]["throughput"], row["effect"]
    assert speed["single_tok_s"]["expected"] == pytest.approx(60, rel=0.1)
    assert speed["decode_tok_s"]["expected"] == pytest.approx(20, rel=0.1)
    assert speed["prefill_tok_s"]["expected"] == pytest.approx(7000, rel=0.1)
    for name in ("single_tok_s", "decode_tok_s", "prefill_tok_s"):
        assert width(effect[name]["after"]) < 0.85 * width(effect[name]["before"])
    # All together stay the product of each, also in the cost.
    assert speed["aggregate_tok_s"]["expected"] == pytest.approx(
        16 * speed["decode_tok_s"]["expected"], rel=0.01
    )


def test_another_load_moves_with_the_machine_and_stays_wider(tmp_path: Path, facts: Path) -> None:
    """Half the speed at one request is expected to be about half of it at sixteen."""
    bench = given.written(tmp_path, secret_node=given.result(level(1, 56.0, 55.0, 9000.0)))
    effect = target(facts, bench)["effect"]
    moved = {
        name: effect[name]["after"]["expected"] / effect[name]["before"]["expected"]
        for name in ("single_tok_s", "decode_tok_s")
    }
    assert moved["single_tok_s"] < moved["decode_tok_s"] < 0.8
    assert width(effect["single_tok_s"]["after"]) < width(effect["decode_tok_s"]["after"])
    # Figures are rounded to three digits.
    assert width(effect["decode_tok_s"]["after"]) <= 1.01 * width(effect["decode_tok_s"]["before"])


def test_the_document_names_every_measured_figure_and_what_was_expected(
    tmp_path: Path, facts: Path
) -> None:
    bench = given.written(tmp_path, secret_node=given.result(level(1, 60.0, 58.0, 7000.0)))
    row = target(facts, bench)
    before = row["effect"]["single_tok_s"]["before"]["expected"]
    assert row["measured"] == [
        {
            "what": "decode of 8192 + 1024 tokens, 1 at once",
            "measured": 60.0,
            "instead_of": before,
            "unit": "tokens/s",
        },
        {
            "what": "prefill of 8192 + 1024 tokens, 1 at once",
            "measured": 7000.0,
            "instead_of": row["effect"]["prefill_tok_s"]["before"]["expected"],
            "unit": "tokens/s",
        },
    ]
    page = " ".join(checked(facts, bench, form="text").split())
    assert "decode of 8192 + 1024 tokens, 1 at once 60.0 tokens/s instead of" in page


def test_what_the_file_itself_says_of_a_bench_is_not_believed(tmp_path: Path, facts: Path) -> None:
    bare = target(facts)["plan"]["throughput"]
    claimed = given.facts_of() | {
        "bench": [
            {
                "concurrency": 1,
                "input_tokens": 8192,
                "output_tokens": 1024,
                "decode_tok_s": 999.0,
                "prefill_tok_s": None,
            }
        ]
    }
    facts.write_text(json.dumps(claimed))
    assert target(facts)["plan"]["throughput"] == bare


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"model": "kimi-k2"}, "model: kimi-k2 there, kimi-k2.5 here"),
        (
            {"engine": {"name": "vllm", "variant": "cuda", "version": "0.1"}},
            "engine: vllm cuda 0.1 there",
        ),
        ({"gpus": 4}, "GPUs: 4 x H200 SXM there, 8 x H200 SXM here"),
        ({"sockets": 7}, "sockets: 7 there"),
        ({"stand_ins": ["the model has random weights"]}, "stand-ins are no measurement"),
        ({"machine": None}, "older version"),
    ],
)
def test_a_bench_of_something_else_is_refused_with_what_differs(
    tmp_path: Path, facts: Path, changed: dict[str, Any], said: str
) -> None:
    result = given.result(level(1, 60.0, 58.0, 7000.0))
    for key, value in changed.items():
        if key == "gpus":
            result["machine"]["gpus"][0]["count"] = value
        elif key == "sockets":
            result["machine"]["sockets"] = value
        elif value is None:
            del result[key]
        else:
            result[key] = value
    with pytest.raises(UserError) as refused:
        checked(facts, given.written(tmp_path, secret_node=result))
    assert said in str(refused.value)
    assert "kimi-prov bench" in str(refused.value.fix)


def test_a_single_bench_goes_to_a_single_target_whatever_their_names(
    tmp_path: Path, facts: Path
) -> None:
    bench = given.written(tmp_path, other=given.result(level(1, 60.0, 58.0, 7000.0)))
    assert target(facts, bench)["measured"]


def test_a_bench_of_no_target_is_refused(tmp_path: Path, facts: Path) -> None:
    one = given.result(level(1, 60.0, 58.0, 7000.0))
    bench = given.written(tmp_path, node_a=one, node_b=one)
    with pytest.raises(UserError, match="hosts node-a, node-b; targets secret-node"):
        checked(facts, bench)


def test_a_speed_that_is_none_holds_nothing(tmp_path: Path, facts: Path) -> None:
    row = target(facts, given.written(tmp_path, secret_node=given.result(level(1, 1e-9, 0, 0))))
    assert not row["plan"]["throughput"].get("anchors")


def test_a_speed_below_zero_is_refused(tmp_path: Path, facts: Path) -> None:
    with pytest.raises(UserError, match="below 0"):
        checked(facts, given.written(tmp_path, secret_node=given.result(level(1, -1.0, 0, 0))))


def test_a_sweep_of_chats_holds_a_prediction_and_a_rate_does_not(
    tmp_path: Path, facts: Path
) -> None:
    levels = [given.loaded(level(1, 60.0, 58.0, 7000.0)), given.loaded(level(16, 20.0, 300.0, 9.0))]
    chats = given.result(*levels, asked={"chat": True, "rounds": 3})
    row = target(facts, given.written(tmp_path, secret_node=chats))
    assert row["plan"]["throughput"]["decode_tok_s"]["expected"] == pytest.approx(20, rel=0.1)
    rate = given.result(*levels, asked={"rate_per_s": 20.0})
    with pytest.raises(UserError, match="20 requests a second"):
        checked(facts, given.written(tmp_path, secret_node=rate))
