"""The inventory's flags over the plan's."""

from __future__ import annotations

import pytest
from plan_inputs import (
    argument,
    blocked_by,
    found,
    plan,
)


def test_engine_args_win_and_say_so() -> None:
    document = plan(
        engine_args={
            "max_model_len": 2048,
            "enforce-eager": None,
            "--enable-prefix-caching": False,
            "limit-mm-per-prompt": {"image": 1},
            "seed": 7,
        }
    )
    line = document["instances"][0]["argv"]
    assert argument(document, "--max-model-len") == "2048"
    assert "--enforce-eager" not in line
    assert "--no-enable-prefix-caching" in line
    assert argument(document, "--limit-mm-per-prompt") == '{"image": 1}'
    assert len(found(document, "engine_args.override")) == 2


@pytest.mark.parametrize("flag", ["host", "port", "api-key", "model"])
def test_engine_args_cannot_open_another_door(flag: str) -> None:
    document = plan(engine_args={flag: "x"})
    assert "engine_args.reserved" in blocked_by(document)
    assert "x" not in document["instances"][0]["argv"]
