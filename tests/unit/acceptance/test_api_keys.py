from __future__ import annotations

import pytest

from kimi_prov.acceptance import api_keys
from kimi_prov.errors import UserError
from kimi_prov.on_host.keys.publish import hash_key

SECRET = "a-long-enough-secret"


def load(tmp_path, text):
    file = tmp_path / "keys"
    file.write_text(text)
    return api_keys.load_keys(file)


def test_hashes_and_keys_are_read_and_only_hashes_come_out(tmp_path):
    found = load(tmp_path, f"# team\nalice:sha256:{'A' * 64}\n\nbob:{SECRET}\n")
    assert found == {"alice": "a" * 64, "bob": hash_key(SECRET)}


def test_a_rule_may_stand_behind_a_key_and_a_key_may_end_in_what_it_is_made_of(tmp_path):
    found = load(
        tmp_path,
        f"alice:{SECRET}==\nbob:{SECRET} expires=2027-01-31 tokens_per_day=9 "
        "requests_per_minute=3 parallel=2",
    )
    limits = {"requests_per_minute": 3, "tokens_per_day": 9, "parallel": 2}
    assert found == {
        "alice": hash_key(f"{SECRET}=="),
        "bob": {"sha256": hash_key(SECRET), "ends": 1801353600, "limits": limits},
    }


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("alice", "expected `name:sha256:<hex>`"),
        ("al ice:" + SECRET, "expected"),
        ("alice:sha256:12", "64 hexadecimal digits"),
        ("alice:short", "shorter than 16"),
        # A hash without its word: whoever reads it could use it as the key.
        (f"alice:{'a' * 64}", "like a hash"),
        (f"alice:{SECRET}\nalice:{SECRET}", "given twice"),
        ("operator:" + SECRET, "kept for the key"),
        (f"alice:{SECRET} expires=tomorrow", "no rule"),
        (f"alice:{SECRET} tokens_per_hour=5", "no rule"),
        (f"alice:{SECRET} tokens_per_day=0", "no rule"),
        (f"alice:{SECRET} tokens_per_day=5 tokens_per_day=6", "no rule"),
        (f"alice:{SECRET} a=b c", "no rule"),
    ],
)
def test_a_bad_line_is_refused_by_file_and_line_without_showing_the_key(tmp_path, text, words):
    with pytest.raises(UserError, match=words) as caught:
        load(tmp_path, text)
    assert f"keys:{text.count(chr(10)) + 1}" in str(caught.value)
    assert SECRET not in str(caught.value)
    assert caught.value.fix


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(UserError, match=r"kimi_api_keys_file.*nowhere"):
        api_keys.load_keys(tmp_path / "nowhere")
