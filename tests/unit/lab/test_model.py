"""The lab's model, read by the libraries that every engine reads models with."""

import hashlib
import json
import stat
from pathlib import Path

import pytest
from safetensors import safe_open
from tokenizers import Tokenizer

from kimi_prov.lab import model, tokenizer


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model.make(tmp_path_factory.mktemp("model"))


def test_manifest_pins_every_file(made: Path) -> None:
    manifest = json.loads((made / "kimi-manifest.json").read_text())
    rows = {row["path"]: row for row in manifest["files"]}
    on_disk = {path.name: path for path in made.iterdir() if path.name != "kimi-manifest.json"}
    assert rows.keys() == on_disk.keys()
    for name, path in on_disk.items():
        assert rows[name]["size"] == path.stat().st_size
        assert rows[name]["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()


def test_same_bytes_every_time(made: Path, tmp_path: Path) -> None:
    again = model.make(tmp_path / "again")
    assert (again / "kimi-manifest.json").read_bytes() == (made / "kimi-manifest.json").read_bytes()


def test_a_service_user_may_read_it(made: Path) -> None:
    assert {stat.S_IMODE(path.stat().st_mode) for path in made.iterdir()} == {0o644}


def test_index_names_the_shard_of_each_tensor(made: Path) -> None:
    index = json.loads((made / "model.safetensors.index.json").read_text())["weight_map"]
    held = {}
    for shard in sorted(made.glob("*.safetensors")):
        with safe_open(shard, framework="numpy") as opened:
            held |= dict.fromkeys(opened.keys(), shard.name)
    assert held == index
    assert len(set(index.values())) > 1


def test_architecture_is_kimi_k2(made: Path) -> None:
    config = json.loads((made / "config.json").read_text())
    assert config["model_type"] == "kimi_k2"
    assert (config["kv_lora_rank"], config["qk_rope_head_dim"]) == (512, 64)
    assert "auto_map" not in config
    with safe_open(made / "model-00001-of-00004.safetensors", framework="numpy") as opened:
        shape = opened.get_slice("model.layers.0.self_attn.kv_a_proj_with_mqa.weight").get_shape()
    assert shape == [512 + 64, config["hidden_size"]]


def test_tokenizer_keeps_marks_whole_and_text_intact(made: Path) -> None:
    read = Tokenizer.from_file(str(made / "tokenizer.json"))
    text = 'Grüße, 世界! {"n": [12345]}\n'
    encoded = read.encode(f"<|im_user|>user<|im_middle|>{text}<|im_end|><think>")
    assert read.decode(encoded.ids) == f"user{text}<think>"
    special = tokenizer.special_tokens()
    assert encoded.ids[0] == special["<|im_user|>"]
    assert encoded.ids[-2:] == [special["<|im_end|>"], special["<think>"]]
    assert read.get_vocab_size() == json.loads((made / "config.json").read_text())["vocab_size"]
