"""Which lines the history of `chat` keeps."""

from __future__ import annotations

import pytest

from kimi_prov.runner.redaction import Masker
from kimi_prov.show.live.chat_line import is_kept_in_history

KEY = "sk-kimi-canary-of-the-chat"


@pytest.mark.parametrize(
    ("line", "kept"),
    [
        ("how do I rotate an API key?", True),
        ("explain kimi_prov/commands/access/connect_inventory.py to me", True),
        ("what is https://example.com/a/long/path/of/things-2026/index.html", True),
        ("the internationalization2024 of things", False),
        ("token: x", False),
        ("hf_abcdefgh12", False),
        ("Authorization: Bearer abcdefghijk", False),
        ("AKIAIOSFODNN7EXAMPLE", False),
        ("https://user:secret@host/", False),
        ("Zk3vT9qLr8Yx2Wm5Np7Bd4Hs", False),
    ],
)
def test_which_lines_are_kept(line: str, kept: bool) -> None:
    assert is_kept_in_history(line, Masker([KEY])) is kept
