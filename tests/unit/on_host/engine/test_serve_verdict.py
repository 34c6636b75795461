"""What is done with an engine's unit, by what runs."""

from pathlib import Path

import pytest

from kimi_prov.on_host.engine import serve

ACTIVE = {"ActiveState": "active", "SubState": "running"}


@pytest.mark.parametrize(
    ("state", "differs", "word"),
    [
        ({}, True, "start"),
        ({"ActiveState": "inactive", "SubState": "dead"}, True, "start"),
        ({"ActiveState": "failed", "SubState": "failed"}, True, "start"),
        (ACTIVE, False, "leave"),
        (ACTIVE, True, "restart"),
        ({"ActiveState": "activating", "SubState": "start-post"}, False, "leave"),
        ({"ActiveState": "activating", "SubState": "start-post"}, True, "restart"),
        ({"ActiveState": "activating", "SubState": "auto-restart"}, True, "leave"),
        ({"ActiveState": "inactive", "SubState": "dead", "Job": "12"}, True, "leave"),
    ],
)
def test_verdict(state: dict[str, str], differs: bool, word: str) -> None:
    assert serve.decide_action(state, differs=differs) == word


def test_instances_are_known_by_their_drop_ins(tmp_path: Path) -> None:
    for name in ("kimi-serve@0.service.d", "kimi-serve@12.service.d", "kimi-serve@x.service.d"):
        (tmp_path / name).mkdir()
    assert serve.list_installed(tmp_path) == ["kimi-serve@0.service", "kimi-serve@12.service"]
    (tmp_path / "kimi-rank.service.d").mkdir()
    assert serve.list_installed(tmp_path)[-1] == "kimi-rank.service"
