"""The format of the weights: by its setting, by the repository that is named, else the native."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import fuzzing
import pytest

if TYPE_CHECKING:
    from pathlib import Path

NODE = "cpu: 2x Xeon Platinum 8480+\nmemory: 32x 64 GB\ngpus: 8x B200\ndisks: 4x 3.84 TB NVMe\n"


@pytest.fixture(autouse=True)
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))


def check(tmp_path: Path, *words: str) -> fuzzing.Ended:
    (tmp_path / "node.yml").write_text(NODE, encoding="utf-8")
    command = ["check", str(tmp_path / "node.yml"), "--format", "json", *words]
    return fuzzing.run(command, tmp_path / "state")


def planned(ended: fuzzing.Ended) -> tuple[Any, list[str]]:
    assert ended.code in (0, 3), ended.err
    [target] = json.loads(ended.out)["targets"]
    blockers = [row["id"] for row in target["findings"] if row["severity"] == "blocker"]
    return target["plan"], blockers


@pytest.mark.parametrize(
    ("model", "source"),
    [
        ("kimi-k2.6", "hf://moonshotai/Kimi-K2.6@main"),
        ("moonshotai/Kimi-K2.6", "hf://moonshotai/Kimi-K2.6@main"),
        ("nvidia/Kimi-K2.6-NVFP4", "hf://nvidia/Kimi-K2.6-NVFP4@main"),
        ("nvidia/Kimi-K2-Thinking-NVFP4", "hf://nvidia/Kimi-K2-Thinking-NVFP4@main"),
    ],
)
def test_a_repository_says_model_and_format(tmp_path: Path, model: str, source: str) -> None:
    plan, blockers = planned(check(tmp_path, "--model", model))
    assert plan["weights"]["source"].partition("@")[0] == source.partition("@")[0]
    assert not [finding for finding in blockers if finding.startswith("weights.")]


def test_a_repository_and_a_format_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    words = ("--model", "nvidia/Kimi-K2.6-NVFP4", "--weights-format", "int4")
    _, blockers = planned(check(tmp_path, *words))
    assert "weights.format_contradicted" in blockers


def test_silence_of_the_catalogue_is_no_fact_about_the_world(tmp_path: Path) -> None:
    ended = check(tmp_path, "--model", "kimi-k2-instruct", "--weights-format", "int4")
    _, blockers = planned(ended)
    assert "weights.format_unpublished" in blockers
    assert "The catalogue has no repository of kimi-k2-instruct in int4" in ended.out
    assert "kimi_weights_source" in ended.out


@pytest.mark.parametrize(
    ("model", "says"),
    [
        ("kimi-k2-base", "did you mean kimi-k2-instruct?"),
        ("os", "none has a name like it"),
        ("K2.6", "did you mean kimi-k2.6?"),
        ("kimi-k2.7", "did you mean kimi-k2.7-code?"),
        ("accounts/fireworks/models/kimi-k2p5", "did you mean kimi-k2.5?"),
        ("kimi-k2-turbo-preview", "did you mean kimi-k2-"),
        ("amd/Kimi-K2-Thinking-MXFP4", "--weights-format mxfp4;"),
        ("RedHatAI/Kimi-K2-Instruct-quantized.w4a16", "that of kimi-k2-instruct in another form"),
    ],
)
def test_an_unknown_model_gets_what_is_near_and_nothing_else(
    tmp_path: Path, model: str, says: str
) -> None:
    ended = check(tmp_path, "--model", model)
    assert ended.code == 2
    assert says in ended.err
    assert "kimi-k2-lab" not in ended.err
