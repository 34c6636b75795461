import json
import re
from pathlib import Path

import pytest

from kimi_prov.packaging import role_specs
from kimi_prov.planner.settings import definitions
from kimi_prov.runner import redaction
from kimi_prov.runner.redaction import Masker
from kimi_prov.runner.run_folder import RunFolder

ROOT = Path(__file__).resolve().parents[3]


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
        "x-api-key: abc.def-999999",
        '"x-goog-api-key": "abc.def-999999"',
        "password=abc.def-2",
        "AWS_SECRET_ACCESS_KEY=abc.def/k7MDENG",
        'client_secret": "abc.def-3"',
        "--access-token=abc.def-4",
        "AKIAIOSFODNN7EXAMPLE",
        "https://b.example/x?X-Amz-Signature=abc.def&X-Amz-Credential=AKIAIOSFODNN7EXAMPLE",
        "https://b.example/x?GoogleAccessId=abc.def&Signature=abc.def%2B9",
        "https://b.example/x?sv=2024&sig=abc.def%2B9",
        "ghp_abcDEF123456abcDEF123456",
        "github_pat_abcDEF123456_abcDEF123456",
        "glpat-abcDEF123456abcDEF12",
        "xoxb-abcDEF123456-abcDEF123456",
        "AIzaabcDEF123456abcDEF123456abcDEF1234567",
        "eyJabcDEF123456.eyJzdWIiOiIxIn0.c2ln",
        "sk-proj-abcDEF123456abcDEF123456",
        "AGE-SECRET-KEY-1ABCDEF123456abcDEF123456",
    ],
)
def test_what_looks_like_a_secret_is_masked(secret):
    masked = Masker().mask(f"before {secret} after")
    assert redaction.MASK in masked
    assert "abc.def" not in masked
    assert "Ab_c-9" not in masked
    assert "abcDEF" not in masked
    assert "AKIA" not in masked
    assert masked.startswith("before ")


def test_ordinary_words_stay():
    text = (
        "half_done hf_x https://index.example/simple user@host bearer of news sk-learn task-done "
        "eos_token: '<|im_end|>' max_tokens=100000 kimi_api_keys_file: secrets/api-keys "
        "https://b.example/x?design=abcdef&signatures=abcdef api_key=None AKIA eyJ.x"
    )
    assert Masker().mask(text) == text


# A setting with such a name holds a secret; what only sounds so is named here with the reason.
SECRET_NAMES = re.compile(
    r"key|passw|passphrase|token|secret|credential|admin|webhook|https?_proxy"
)
SOUNDS_SECRET = {
    "kimi_speculative_tokens": "a number",
    "kimi_kubernetes_image_pull_secret": "the name of an object",
    "kimi_nvidia_repo_key_url": "a public key",
    "kimi_nvidia_repo_key_fingerprint": "a public key",
    "kimi_bundle_key": "the fingerprint of a public key",
}


def list_settings():
    """Each setting of an inventory, and whether its definition marks it as secret."""
    roles = {path.parent.parent.name for path in ROOT.glob("roles/*/meta/argument_specs.yml")}
    options = {
        name: bool(spec.get("no_log"))
        for _, _, found in role_specs.iterate_roles([f"{role}_" for role in roles])
        for name, spec in found.items()
    }
    return {row.name: bool(row.hides) for row in definitions.VARIABLES} | options


def test_each_setting_whose_name_is_a_secrets_is_marked():
    settings = list_settings()
    assert SOUNDS_SECRET.keys() < settings.keys()
    unmarked = {name for name, marked in settings.items() if not marked}
    assert {name for name in unmarked if SECRET_NAMES.search(name)} == SOUNDS_SECRET.keys()


@pytest.mark.parametrize("name", [name for name, marked in list_settings().items() if marked])
def test_what_a_marked_setting_holds_is_masked(name, tmp_path):
    (tmp_path / "file").write_text("canary-1.of:it\nana@example.com:canary-2.of:it\n")
    value = "http://user:canary-3%21of@p:1" if name.endswith("proxy") else "file"
    masker = redaction.make_masker({"host": {name: value}}, tmp_path, [])
    told = (
        {"canary-3%21of", "canary-3!of"}
        if name.endswith("proxy")
        else {"canary-1.of:it", "canary-2.of:it"}
    )
    for text in told:
        assert masker.mask(f"said {text} twice") == f"said {redaction.MASK} twice"
    if name.startswith("kimi_") and not name.endswith(("proxy", "tls_key_file")):
        # A plan has it too, which a run reads from its own events.
        plan = {"control": {name.removeprefix("kimi_"): str(tmp_path / "file")}}
        assert "canary-1.of:it" in redaction.find_plan_secrets(plan)


def test_the_contents_of_secret_files_are_masked(tmp_path):
    keys = tmp_path / "keys"
    keys.write_text("# people\nana:canary-ana-1\nbob:canary-bob-2 expires=2027-01-31 x_y=1\n")
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
