"""Commands in a machine's messages get the inventory's path, which no machine knows."""

import pytest

from kimi_prov.runner.pasteable import fill_document, fill_inventory


@pytest.mark.parametrize(
    ("text", "filled"),
    [
        ("run `kimi-prov apply` first", "run `kimi-prov apply /i` first"),
        ("kimi-prov key --set alice", "kimi-prov key /i --set alice"),
        ("kimi-prov key INVENTORY --rotate makes one", "kimi-prov key /i --rotate makes one"),
        ("kimi-prov restore INVENTORY FILE", "kimi-prov restore /i FILE"),
        ("kimi-prov start", "kimi-prov start /i"),
        ("kimi-prov apply /other", "kimi-prov apply /other"),
        ("kimi-prov catalog gpus", "kimi-prov catalog gpus"),
        ("run `kimi-prov`, or read the log", "run `kimi-prov`, or read the log"),
    ],
)
def test_a_command_names_the_inventory(text: str, filled: str) -> None:
    assert fill_inventory(text, "/i") == filled


def test_a_path_is_one_word_and_numbers_stay() -> None:
    document = {"a": [{"fix": "kimi-prov status INVENTORY"}], "n": 3, "none": None}
    filled = fill_document(document, "/my server")
    assert filled == {"a": [{"fix": "kimi-prov status '/my server'"}], "n": 3, "none": None}
