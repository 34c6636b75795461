import json
from pathlib import Path

import pytest

from kimi_prov.runner import redaction
from kimi_prov.runner.redaction import Masker
from kimi_prov.runner.run_folder import RunFolder


@pytest.mark.parametrize(
    "secret",
    [
        "sk-kimi-Ab_c-9",
        "hf_abcDEF123456",
        "Authorization: Bearer abc.def",
        'authorization": "Bearer abc.def"',
        "https://user:abc.def@index.example/simple",
        "-----BEGIN PRIVATE KEY-----\nabc.def\n-----END PRIVATE KEY-----",
        "-----BEGIN EC PRIVATE KEY-----\nabc.def",
    ],
)
def test_what_looks_like_a_secret_is_masked(secret):
    masked = Masker().mask(f"before {secret} after")
    assert redaction.MASK in masked
    assert "abc.def" not in masked
    assert "Ab_c-9" not in masked
    assert "abcDEF" not in masked
    assert masked.startswith("before ")


def test_ordinary_words_stay():
    text = "half_done hf_x https://index.example/simple user@host bearer of news"
    assert Masker().mask(text) == text


def test_the_contents_of_secret_files_are_masked(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# people\nana:canary-ana-1\nbob:canary-bob-2\n")
    pem = tmp_path / "server.key"
    pem.write_text("-----BEGIN PRIVATE KEY-----\nTUlJRXZR-canary\n-----END PRIVATE KEY-----\n")
    found = redaction.find_variable_secrets(
        {"kimi_api_keys_file": "keys", "ansible_ssh_pass": "canary-pass", "kimi_model": "canary-m"},
        tmp_path,
    ) | redaction.find_plan_secrets(
        {"control": {"hf_token_file": None}, "proxy": {"tls": {"key_file": str(pem)}}}
    )
    masker = Masker(found)
    for word in ("canary-ana-1", "canary-bob-2", "canary-pass", "TUlJRXZR-canary"):
        assert word not in masker.mask(f"x {word} y")
    assert "canary-m" in masker.mask("canary-m")


def test_a_secret_file_that_is_not_there_hides_nothing(tmp_path):
    assert redaction.find_file_secrets(tmp_path / "nosuch") == set()


@pytest.mark.parametrize(
    "secret", ['can"ary-1', "can\\ary-2", "canärÿ\u200b-3", "can\tary\u200b-4"]
)
def test_a_secret_is_masked_however_it_is_written(secret, state):
    folder = RunFolder.create("apply", Path("hosts.yml"), Masker([secret]))
    folder.write_document("result.json", {"failures": [{"cause": f"wrong: {secret}"}]})
    folder.write(f"said {secret}\n{json.dumps(secret)}")
    folder.close()
    kept = json.loads((folder.path / "result.json").read_text())
    assert kept == {"failures": [{"cause": f"wrong: {redaction.MASK}"}]}
    assert folder.log.read_text() == f'said {redaction.MASK}\n"{redaction.MASK}"\n'
