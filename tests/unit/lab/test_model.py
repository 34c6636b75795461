"""The lab's model, read by the libraries that every engine reads models with."""

import ast
import dataclasses
import hashlib
import json
import math
import stat
import struct
from pathlib import Path

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment
from safetensors import safe_open
from tokenizers import Tokenizer

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.lab import model, model_shapes, tokenizer

GPU_CATALOGUE = Path(__file__).resolve().parents[2] / "gpu" / "catalogue"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return model.make_model(tmp_path_factory.mktemp("model"))


def test_manifest_pins_every_file(made: Path) -> None:
    manifest = json.loads((made / "kimi-manifest.json").read_text())
    rows = {row["path"]: row for row in manifest["files"]}
    on_disk = {path.name: path for path in made.iterdir() if path.name != "kimi-manifest.json"}
    assert rows.keys() == on_disk.keys()
    for name, path in on_disk.items():
        assert rows[name]["size"] == path.stat().st_size
        assert rows[name]["sha256"] == hashlib.sha256(path.read_bytes()).hexdigest()


def test_same_bytes_every_time(made: Path, tmp_path: Path) -> None:
    again = model.make_model(tmp_path / "again")
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


def test_the_int4_model_brings_the_code_of_its_configuration(tmp_path: Path) -> None:
    """transformers that does not know Kimi K2 finds the class where `auto_map` says."""
    made = model.make_model(tmp_path / "int4", "int4")
    config = json.loads((made / "config.json").read_text())
    module, name = config["auto_map"]["AutoConfig"].split(".")
    code = ast.parse((made / f"{module}.py").read_text())
    assert name in {row.name for line in code.body for row in getattr(line, "names", [])}
    listed = {row["path"] for row in json.loads((made / "kimi-manifest.json").read_text())["files"]}
    assert f"{module}.py" in listed


def test_tokenizer_keeps_marks_whole_and_text_intact(made: Path) -> None:
    read = Tokenizer.from_file(str(made / "tokenizer.json"))
    text = 'Grüße, 世界! {"n": [12345]}\n'
    encoded = read.encode(f"<|im_user|>user<|im_middle|>{text}<|im_end|><think>")
    assert read.decode(encoded.ids) == f"user{text}<think>"
    special = tokenizer.list_special_tokens()
    assert encoded.ids[0] == special["<|im_user|>"]
    assert encoded.ids[-2:] == [special["<|im_end|>"], special["<think>"]]
    assert read.get_vocab_size() == json.loads((made / "config.json").read_text())["vocab_size"]


def test_a_list_ends_where_a_grammar_lets_it_whatever_the_layers_say(made: Path) -> None:
    """sglang asks for a list of calls; one whose items went on would be cut by the limit."""
    hidden = json.loads((made / "config.json").read_text())["hidden_size"]
    read = Tokenizer.from_file(str(made / "tokenizer.json"))
    row = 2 * hidden
    table = max(made.glob("*.safetensors")).read_bytes()[-row * read.get_vocab_size() :]

    def weight(text: str) -> float:
        number = read.token_to_id(text)
        assert not any(table[row * number + 2 : row * (number + 1)]), text
        (value,) = struct.unpack("<f", b"\0\0" + table[row * number : row * number + 2])
        return float(value)

    ends = [weight(text) for text in ("]", "}", "}]", '"', '"}', '"]', ":", '":')]
    goes_on = [weight(text) for text in (",", "},", "],", ',"')]
    blanks = [weight(text) for text in ("Ġ", "Ċ", "ĉ")]
    assert min(ends) > max(goes_on)
    assert min(goes_on) > max(blanks)


def test_the_model_for_groups_is_shared_evenly_by_two_and_three(tmp_path: Path) -> None:
    made = model.make_model(tmp_path / "thirds", "bf16", model_shapes.THIRDS)
    config = json.loads((made / "config.json").read_text())
    shared = ("num_attention_heads", "intermediate_size", "moe_intermediate_size", "vocab_size")
    assert [config[name] % 6 for name in shared] == [0, 0, 0, 0]
    # vLLM pads a vocabulary to a multiple of 64 before it divides it.
    assert config["vocab_size"] % 64 == 0
    read = Tokenizer.from_file(str(made / "tokenizer.json"))
    beyond = config["vocab_size"] - read.get_vocab_size()
    assert beyond == 64
    last = max(made.glob("*.safetensors"))
    with safe_open(last, framework="numpy") as opened:
        rows = opened.get_slice("lm_head.weight").get_shape()
    assert rows == [config["vocab_size"], config["hidden_size"]]
    # Rows of no token are zero but for the mark that keeps them from being answered.
    tail = last.read_bytes()[-2 * beyond * config["hidden_size"] :]
    row = 2 * config["hidden_size"]
    assert {tail[row * n : row * (n + 1)] for n in range(beyond)} == {b"\x00\xc1" + bytes(row - 2)}


def test_the_cut_model_has_kimis_layers_in_int4_and_its_large_tensors_differ(
    tmp_path: Path,
) -> None:
    # Every tensor of more than 4 MiB is cut out of a pool; here those of width 4096 are.
    shape = dataclasses.replace(
        model_shapes.CUT, hidden=1024, dense_width=4096, experts=2, experts_per_token=1, heads=2
    )
    made = model.make_model(tmp_path / "cut", "int4", shape)
    config = json.loads((made / "config.json").read_text())
    assert (config["num_hidden_layers"], config["hidden_size"]) == (2, 1024)
    assert config["quantization_config"]["format"] == "pack-quantized"
    (shard,) = made.glob("*.safetensors")
    with safe_open(shard, framework="numpy") as opened:
        names = set(opened.keys())
        gate = opened.get_slice("model.layers.0.mlp.gate_proj.weight")
        assert gate.get_shape() == [4096, 1024]
        packed = opened.get_slice("model.layers.1.mlp.experts.1.gate_proj.weight_packed")
        assert packed.get_shape() == [2048, 1024 // 8]
    assert "model.layers.1.mlp.gate.e_score_correction_bias" in names
    raw = shard.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    head = json.loads(raw[8 : 8 + length])
    data = {
        part: raw[8 + length + begin : 8 + length + end]
        for part in ("gate", "up", "down")
        for begin, end in [head[f"model.layers.0.mlp.{part}_proj.weight"]["data_offsets"]]
    }
    assert len({len(values) for values in data.values()}) == 1
    assert data["gate"] != data["up"]
    # Weights below 1/32 in size, and the channel that holds the constant written by no layer.
    assert {byte & 0x7F for byte in data["gate"][1::2]} == {0x3B, 0x3C}
    assert not any(data["down"][: 2 * 4096])
    assert any(data["down"][2 * 4096 : 4 * 4096])


def test_hollow_experts_have_every_name_and_size_and_take_no_room(tmp_path: Path) -> None:
    shape = dataclasses.replace(
        model_shapes.CUT,
        hidden=1024,
        dense_width=64,
        experts=4,
        experts_per_token=1,
        heads=2,
        q_rank=64,
    )
    full = model.make_model(tmp_path / "full", "int4", shape)
    hollow = model.make_model(tmp_path / "hollow", "hollow", shape)
    assert not (hollow / "kimi-manifest.json").exists()
    sizes = {path.name: path.stat().st_size for path in hollow.iterdir()}
    assert sizes == {
        path.name: path.stat().st_size
        for path in full.iterdir()
        if path.name != "kimi-manifest.json"
    }
    (shard,) = hollow.glob("*.safetensors")
    (other,) = full.glob("*.safetensors")
    experts = 3 * shape.hidden * shape.expert_width * shape.experts
    taken = (other.stat().st_blocks - shard.stat().st_blocks) * 512
    assert taken == pytest.approx(experts * 9 / 16, rel=0.02)
    raw, kept = shard.read_bytes(), other.read_bytes()
    length = int.from_bytes(raw[:8], "little")
    head = json.loads(raw[8 : 8 + length])
    assert raw[: 8 + length] == kept[: 8 + length]
    for name, row in head.items():
        if name == "__metadata__":
            continue
        begin, end = (8 + length + at for at in row["data_offsets"])
        if ".experts." in name and not name.endswith("weight_shape"):
            assert not any(raw[begin:end]), name
        else:
            assert raw[begin:end] == kept[begin:end], name
    assert {path.name for path in hollow.iterdir()} >= {"config.json", "tokenizer.json"}


@pytest.fixture(scope="module")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The cut model of Kimi K2.5 with its own tower, its text model narrow."""
    narrow = dataclasses.replace(
        model_shapes.CUT_SEEING,
        dense_width=64,
        experts=2,
        experts_per_token=1,
        expert_width=64,
        heads=2,
    )
    return model.make_model(tmp_path_factory.mktemp("seeing"), "int4", narrow)


def tensors(folder: Path) -> dict[str, tuple[list[int], bytes]]:
    """Shape and bytes of each tensor by its name."""
    found = {}
    for shard in folder.glob("*.safetensors"):
        raw = shard.read_bytes()
        length = int.from_bytes(raw[:8], "little")
        for name, row in json.loads(raw[8 : 8 + length]).items():
            if name != "__metadata__":
                begin, end = row["data_offsets"]
                found[name] = row["shape"], raw[8 + length + begin : 8 + length + end]
    return found


def test_the_tower_is_kimi_k25s_but_for_its_layers(seeing: Path) -> None:
    sizes = {name: math.prod(shape) for name, (shape, _) in tensors(seeing).items()}
    tower = {name: n for name, n in sizes.items() if not name.startswith("language_model.")}
    layer = sum(n for name, n in tower.items() if ".blocks.1." in name)
    cut = load_catalogue(GPU_CATALOGUE).model("kimi-k2.5-cut").architecture
    assert sum(tower.values()) == cut.vision_params
    whole = load_catalogue().model("kimi-k2.5").architecture
    assert sum(tower.values()) + 25 * layer == whole.vision_params


def test_behind_the_tower_is_the_text_model_as_it_is_alone(tmp_path: Path) -> None:
    tower = model_shapes.Tower(layers=1, hidden=64, width=128, heads=2, side=4)
    alone = model.make_model(tmp_path / "alone", "int4")
    behind = model.make_model(
        tmp_path / "behind", "int4", dataclasses.replace(model_shapes.TINY, tower=tower)
    )
    text = {f"language_model.{name}": tensor for name, tensor in tensors(alone).items()}
    assert text.items() <= tensors(behind).items()
    config = json.loads((behind / "config.json").read_text())
    known = json.loads((alone / "config.json").read_text())
    # Its engines know the configuration of a model with a tower.
    del known["auto_map"]
    assert config["text_config"] == known
    assert "quantization_config" in config["text_config"]


def test_an_image_has_a_mark_and_what_its_processor_reads(seeing: Path) -> None:
    config = json.loads((seeing / "config.json").read_text())
    read = Tokenizer.from_file(str(seeing / "tokenizer.json"))
    assert read.token_to_id("<|media_pad|>") == config["media_placeholder_token_id"]
    # Of Kimi K2.5's own tokenizer, whose special tokens begin with 163584.
    assert config["media_placeholder_token_id"] - tokenizer.FIRST_SPECIAL == 163605 - 163584
    processor = json.loads((seeing / "preprocessor_config.json").read_text())["media_proc_cfg"]
    vision = config["vision_config"]
    assert processor["patch_size"] == vision["patch_size"]
    assert [processor["merge_kernel_size"]] * 2 == vision["merge_kernel_size"]
    assert processor["temporal_merge_kernel_size"] == vision["init_pos_emb_time"]


def test_the_chat_template_puts_a_mark_where_an_image_stands() -> None:
    parts = [{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]
    # As transformers reads a template.
    read = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    text = read.from_string(tokenizer.CHAT_TEMPLATE).render(
        messages=[{"role": "user", "content": parts}]
    )
    mark = "<|media_begin|>image<|media_content|><|media_pad|><|media_end|>"
    assert text == f"<|im_user|>user<|im_middle|>a{mark}b<|im_end|>"
