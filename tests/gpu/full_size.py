"""Models of Kimi K2's and K2.5's own size, for as many layers as the cards hold.

All of it is there under its own names, shapes and sizes, and all but the routed experts holds
random values: these are zeros that no disk has to hold, in a file system that promises more than
there is. A program reads them as it would real ones; they cost it less power, and no disk its time.
KIMI_PROV_GPU_EXPERTS=random fills them, where their bytes are to be told apart.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import re
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml
from machines import HANGS_S, kimi_prov

from kimi_prov.catalog import model_bytes
from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.contract import paths
from kimi_prov.errors import ExitCode
from kimi_prov.lab import model, model_shapes
from kimi_prov.lab.inventory import identify_lab
from kimi_prov.lab.model_tensors import Tensor
from kimi_prov.lab.state import LabState, find_state_home

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from machines import Host

    from kimi_prov.catalog.models import Architecture

ROOT = Path(__file__).resolve().parents[2]
PLAIN, SEEING = "kimi-k2-hollow", "kimi-k2.5-hollow"
REVISION = "lab-1"
# The same model, for what is estimated: of random weights nothing is.
ESTIMATED = "-estimated"
_OF = {PLAIN: "kimi-k2-thinking", SEEING: "kimi-k2.5"}
_TOWER = model_shapes.Tower(layers=27, hidden=1152, width=4304, heads=16)
_CONTEXT = 65536
# As moonshotai publishes them: 62 to 64 files.
_SHARD_BYTES = 9_600_000_000
# A draft of one layer for it, all zeros: it guesses the same token each time, which is rejected.
DRAFT = "hollow-eagle3"
_DRAFT_REVISION = "local"
_DRAFT_VOCAB = 32000
# The target's layers whose outcome it reads; the smallest model here has four.
_DRAFT_READS = (1, 2, 3)
# Of all cards' memory, with which 8 of 80 GB hold all 61 layers.
_WEIGHTS_SHARE = 0.875
_MIB = 1 << 20
_RANDOM_BYTES = 64 * _MIB
_LOADS = (1, 4, 16, 64)
# Where the cards do not hold a layout another engine would be planned, by another name.
_ENGINE = {"kimi_engine": "vllm"}
# What a plan says of a layout that the cards or the host do not hold.
TOO_SMALL = ("gpu.", "context.", "memory.", "ram_disk.", "disk.")
# Of a question and its answer, where speeds are measured; `kimi-prov bench` keeps some tokens free.
_ASKED_TOKENS = 4096
_ASKED_CONTEXT = 4352
# Tokens of an answer where one request is measured alone: without CUDA graphs each takes up to a
# quarter of a second of all layers, and a machine is lent for minutes.
_ALONE_TOKENS = 128


@dataclass(frozen=True)
class Layout:
    """One way to serve. `wishes`: the inventory's; `loads`: requests at once that are measured."""

    name: str
    model: str
    wishes: dict[str, Any] = field(default_factory=dict)
    loads: tuple[int, ...] = _LOADS


@dataclass(frozen=True)
class Asked:
    """A host, and what its inventory asks for whatever the layout; `ranks` serve with it."""

    host: Host
    always: dict[str, Any]
    models: Models
    ranks: tuple[Host, ...] = ()

    @classmethod
    def of(cls, host: Host, models: Models, ranks: tuple[Host, ...] = ()) -> Asked:
        """Take what the host's inventory asks for now, but for the model."""
        now: dict[str, Any] = yaml.safe_load(_variables(host).read_text())
        chosen = ("kimi_model", "kimi_weights_source")
        always = {key: value for key, value in now.items() if key not in chosen}
        return cls(host, always, models, ranks)

    def ask(self, layout: Layout, **over: object) -> None:
        """Write the inventory's variables for a layout; `over` wins over all others."""
        self.models.made(layout.model)
        if "kimi_speculative" in layout.wishes:
            self.models.make_draft()
        wishes = {"kimi_model": layout.model, "kimi_weights_source": source(layout.model)}
        asked = {**wishes, **layout.wishes, **self.always, **over}
        _variables(self.host).write_text(yaml.safe_dump(asked))

    def estimate(self, layout: Layout) -> dict[str, Any]:
        """The plan's `throughput` for the layout's largest load, were the weights real."""
        file = _variables(self.host)
        applied = file.read_text()
        context = min(int(layout.wishes["kimi_context"]), _ASKED_TOKENS)
        named = layout.model + ESTIMATED
        most = max(layout.loads)
        self.ask(layout, kimi_model=named, kimi_context=context, kimi_concurrency=most)
        plan, blockers = planned(self.host)
        file.write_text(applied)
        assert blockers == []
        return dict(plan["throughput"])


def _variables(host: Host) -> Path:
    return host.inventory / "group_vars" / "kimi.yml"


def layouts(cards: int) -> list[Layout]:
    """Two shipped inventories as they are, then what each other layout brings at 64 requests."""
    at_64 = {
        "kimi_context": _ASKED_CONTEXT,
        "kimi_concurrency": 64,
        "kimi_kv_dtype": "bf16",
        **_ENGINE,
    }

    def other(name: str, loads: tuple[int, ...] = (64,), **wishes: Any) -> Layout:
        return Layout(name, PLAIN, {**at_64, **wishes}, loads)

    return [
        Layout("h100x8", PLAIN, shipped("h100x8", cards), (1,)),
        Layout("dgx-h200", SEEING, shipped("dgx-h200", cards)),
        other("tensor parallel", _LOADS, kimi_engine_args={"enable-expert-parallel": False}),
        other("expert parallel", kimi_engine_args={"enable-expert-parallel": True}),
        other("8-bit cache", kimi_kv_dtype="fp8"),
        other("cache shared out", kimi_engine_args={"decode-context-parallel-size": cards}),
        other(
            "data-parallel attention",
            kimi_engine_args={"data-parallel-size": cards, "enable-expert-parallel": True},
        ),
        other("an engine on each card", _LOADS, kimi_instances=cards),
        other(
            "a draft that is always rejected",
            _LOADS,
            kimi_engine_args={"enable-expert-parallel": False},
            kimi_speculative=DRAFT,
            kimi_speculative_tokens=3,
            kimi_draft_weights_source=f"file://{paths.MODELS}/{DRAFT}/{_DRAFT_REVISION}",
        ),
    ]


def shipped(name: str, cards: int) -> dict[str, Any]:
    """The wishes of a shipped inventory, but for weights, and a draft, that cannot be made."""
    file = ROOT / "inventories" / name / "group_vars" / "kimi.yml"
    wishes: dict[str, Any] = yaml.safe_load(file.read_text())
    # Its cards are eight; memory of the host is asked for each.
    args = wishes.get("kimi_engine_args", {})
    if "kv-offloading-size" in args:
        args["kv-offloading-size"] = args["kv-offloading-size"] * cards // 8
    left_out = ("kimi_model", "kimi_allowed_networks", "kimi_weights", "kimi_speculative")
    kept = {key: value for key, value in wishes.items() if not key.startswith(left_out)}
    return {**kept, **_ENGINE}


class Models:
    """The models below a folder, each made when it is first asked for."""

    def __init__(self, folder: Path, cards: Iterable[dict[str, str]], most: int) -> None:
        """`cards`: as nvidia-smi tells of them; `most`: layers, however many they hold."""
        room = sum(int(card["memory.total"].split()[0]) * _MIB for card in cards)
        self.folder = folder
        self.layers = {name: min(most, layers_held(name, room)) for name in _OF}

    def whole(self, name: str) -> bool:
        """Whether a model has all of Kimi's layers."""
        return self.layers[name] == load_catalogue().model(_OF[name]).architecture.layers

    def made(self, name: str) -> Path:
        """The folder of a model, as a host has it below its folder of models."""
        made = self.folder / name / REVISION
        if not made.exists():
            made.parent.mkdir()
            shape = dataclasses.replace(
                model_shapes.CUT,
                layers=self.layers[name],
                vocab=load_catalogue().model(_OF[name]).architecture.vocab,
                context=_CONTEXT,
                shard_bytes=_SHARD_BYTES,
                tower=_TOWER if name == SEEING else None,
            )
            model.make_model(made, "hollow", shape)
            if os.environ.get("KIMI_PROV_GPU_EXPERTS") == "random":
                for file in sorted(made.glob("*.safetensors")):
                    fill_experts(file)
        return made

    def make_draft(self) -> Path:
        """Make the draft of `PLAIN` below the folder, unless it is there; returns its folder."""
        made = self.folder / DRAFT / _DRAFT_REVISION
        if not made.exists():
            made.mkdir(parents=True)
            write_draft(made, _cut(PLAIN, self.layers[PLAIN]))
        return made

    def add_rows(self, file: Path) -> None:
        """Add rows of the models, their estimates and the draft to those of a catalogue."""
        document: dict[str, Any] = yaml.safe_load(file.read_text())
        target = _cut(PLAIN, self.layers[PLAIN])
        document["drafts"] = [
            {
                "name": DRAFT,
                "repo": f"lab/{DRAFT}",
                "models": [PLAIN, PLAIN + ESTIMATED],
                "method": "eagle3",
                "size_bytes": sum(tensor.size for tensor in list_draft_tensors(target)),
                "kv_values": target.kv_lora_rank + target.qk_rope_head_dim,
                "least": "0.18.0",
                "source": "tests/gpu/full_size.py",
                "confidence": "high",
            }
        ]
        for name, of in _OF.items():
            cut = dataclasses.asdict(_cut(name, self.layers[name]))
            document["architectures"][name] = {k: v for k, v in cut.items() if v is not None}
            whole = load_catalogue().model(of)
            row = {
                "repo": None,
                "revision": REVISION,
                "architecture": name,
                "context": _CONTEXT,
                "native_format": "int4",
                "other_bytes": 131072,
                "tool_call_parser": whole.tool_call_parser,
                "reasoning_parser": whole.reasoning_parser,
                "trust_remote_code": False,
                "source": "kimi_prov/lab/model.py",
                "confidence": "high",
            }
            document["models"] += [
                {**row, "name": name, "random_weights": True},
                {**row, "name": name + ESTIMATED},
            ]
        file.write_text(yaml.safe_dump(document, sort_keys=False))


def list_draft_tensors(of: Architecture) -> list[Tensor]:
    """List a draft's tensors, all zeros. Read by vLLM's `deepseek_eagle3`, one layer."""
    hidden, heads = of.hidden, of.heads
    key = of.qk_nope_head_dim + of.qk_rope_head_dim
    sizes: dict[str, tuple[int, ...]] = {
        "fc": (hidden, len(_DRAFT_READS) * hidden),
        "lm_head": (_DRAFT_VOCAB, hidden),
        "norm": (hidden,),
        "midlayer.input_layernorm": (hidden,),
        "midlayer.post_attention_layernorm": (hidden,),
        "midlayer.hidden_norm": (hidden,),
        # The layer reads the embedding beside the hidden state.
        "midlayer.self_attn.q_a_proj": (of.q_lora_rank, 2 * hidden),
        "midlayer.self_attn.q_a_layernorm": (of.q_lora_rank,),
        "midlayer.self_attn.q_b_proj": (heads * key, of.q_lora_rank),
        "midlayer.self_attn.kv_a_proj_with_mqa": (
            of.kv_lora_rank + of.qk_rope_head_dim,
            2 * hidden,
        ),
        "midlayer.self_attn.kv_a_layernorm": (of.kv_lora_rank,),
        "midlayer.self_attn.kv_b_proj": (
            heads * (of.qk_nope_head_dim + of.v_head_dim),
            of.kv_lora_rank,
        ),
        "midlayer.self_attn.o_proj": (hidden, heads * of.v_head_dim),
        "midlayer.mlp.gate_proj": (of.dense_width, hidden),
        "midlayer.mlp.up_proj": (of.dense_width, hidden),
        "midlayer.mlp.down_proj": (hidden, of.dense_width),
    }
    weights = [
        Tensor(f"{name}.weight", shape, "BF16", b"", 2 * math.prod(shape))
        for name, shape in sizes.items()
    ]
    return [*weights, Tensor("d2t", (_DRAFT_VOCAB,), "I64", b"", 8 * _DRAFT_VOCAB)]


def write_draft(folder: Path, target: Architecture) -> None:
    """Write a draft for the model into a folder: a configuration, and zeros that no disk holds."""
    config = {
        "architectures": ["Eagle3DeepseekV2ForCausalLM"],
        "model_type": "deepseek_v3",
        "num_hidden_layers": 1,
        "hidden_size": target.hidden,
        "intermediate_size": target.dense_width,
        "num_attention_heads": target.heads,
        "num_key_value_heads": target.heads,
        "q_lora_rank": target.q_lora_rank,
        "kv_lora_rank": target.kv_lora_rank,
        "qk_nope_head_dim": target.qk_nope_head_dim,
        "qk_rope_head_dim": target.qk_rope_head_dim,
        "v_head_dim": target.v_head_dim,
        "vocab_size": target.vocab,
        "draft_vocab_size": _DRAFT_VOCAB,
        "max_position_embeddings": _CONTEXT,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "torch_dtype": "bfloat16",
        "tie_word_embeddings": False,
        "eagle_config": {
            "eagle_aux_hidden_state_layer_ids": list(_DRAFT_READS),
            "use_aux_hidden_state": True,
        },
    }
    (folder / "config.json").write_text(json.dumps(config, indent=1) + "\n")
    model.write_tensors(folder / "model.safetensors", list_draft_tensors(target))


def fill_experts(file: Path) -> None:
    """Write random bytes into the holes of a file's packed experts, another part for each.

    Their scales stay zero, so the model answers as it did; their bytes are told apart.
    """
    random = memoryview(os.urandom(_RANDOM_BYTES))
    with file.open("r+b") as out:
        header = int.from_bytes(out.read(8), "little")
        rows = json.loads(out.read(header))
        for at, (name, row) in enumerate(rows.items()):
            if not name.endswith(".weight_packed"):
                continue
            begin, end = row["data_offsets"]
            out.seek(8 + header + begin)
            shift = at * 4096 % (_RANDOM_BYTES // 2)
            while begin < end:
                begin += out.write(random[shift : shift + end - begin])


def layers_held(name: str, gpu_bytes: int) -> int:
    """Return how many of a model's layers cards of so much memory hold beside a cache."""
    all_layers = load_catalogue().model(_OF[name]).architecture.layers
    fitting = (
        layers
        for layers in range(all_layers, 1, -1)
        if counted_bytes(name, layers) <= _WEIGHTS_SHARE * gpu_bytes
    )
    return next(fitting, 2)


def counted_bytes(name: str, layers: int) -> int:
    """Return the bytes that the planner counts for so many of a model's layers."""
    return model_bytes.count_checkpoint_bytes(_cut(name, layers), "int4")


def expert_bytes(name: str, layers: int) -> int:
    """Return the bytes of them that are routed experts."""
    cut = _cut(name, layers)
    return round(cut.experts * model_bytes.count_expert_bytes(cut, "int4"))


def _cut(name: str, layers: int) -> Architecture:
    return dataclasses.replace(load_catalogue().model(_OF[name]).architecture, layers=layers)


def source(name: str) -> str:
    """Where a host has the files already: below its folder of models, where they are to be."""
    return f"file://{paths.MODELS}/{name}/{REVISION}"


def room(folder: Path) -> None:
    """Lay a file system of 2 TB over an empty folder, whatever room there is; `leave` ends it."""
    image = folder.with_name(f"{folder.name}.ext4")
    with image.open("wb") as file:
        file.truncate(2 * 10**12)
    try:
        _run("mkfs.ext4", "-q", "-m", "0", "-T", "largefile4", str(image))
        _run("mount", "-o", "loop", str(image), str(folder))
    finally:
        # The mount keeps what it has of it.
        image.unlink()


def leave(folder: Path) -> None:
    """Take it away from here; hosts that have it keep it until they end."""
    _run("umount", "--lazy", str(folder))


def _run(*command: str) -> None:
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"


@contextmanager
def lent(inventory: Path, models: Path | None) -> Iterator[None]:
    """Have the folder of models that a lab's hosts share be this one while they start.

    They keep it until they end; what takes the lab away finds nothing in it.
    """
    if models is None:
        yield
        return
    shared = LabState(find_state_home() / identify_lab(inventory)[0]).shared(paths.MODELS)
    shared.mkdir(parents=True)
    _run("mount", "--bind", str(models), str(shared))
    try:
        yield
    finally:
        leave(shared)


def told(log: str) -> dict[str, list[str]]:
    """What vLLM says of a start: memory, cache and the seconds of each phase, the last of each."""
    patterns = {
        "weights_gib": r"Model loading took ([\d.]+) GiB",
        "weights_s": r"Loading weights took ([\d.]+) s",
        "loading_s": r"Model loading took [\d.]+ GiB memory and ([\d.]+) s",
        "compiling_s": r"torch\.compile took ([\d.]+) s",
        "graphs_s": r"Graph capturing finished in ([\d.]+) s",
        "graphs_gib": r"Graph capturing .* took ([\d.]+) GiB",
        "profiling_s": r"init engine .* took ([\d.]+) s",
        "cache_gib": r"Available KV cache memory: ([\d.]+) GiB",
        "cache_tokens": r"cache size: ([\d,]+) tok",
        "attention": r"Using (\S+) attention backend",
    }
    return {key: re.findall(pattern, log)[-1:] for key, pattern in patterns.items()}


def planned(host: Host) -> tuple[dict[str, Any], list[str]]:
    """The plan for the host, and what refuses it."""
    done = kimi_prov("plan", host.inventory, "--format", "json")
    plan = json.loads(done.stdout)["hosts"][host.name]
    refusing = [row for row in plan["findings"] if row["severity"] == "blocker"]
    assert done.returncode == (ExitCode.BLOCKED if refusing else 0), done.stderr
    return dict(plan), [f"{row['id']}: {row['observed']}" for row in refusing]


def lengths(load: int, estimate: dict[str, Any]) -> tuple[int, int]:
    """Tokens of a prompt and of its answer under so many requests: the estimate's, or fewer."""
    answer = estimate["output_tokens"]
    return estimate["input_tokens"], min(answer, _ALONE_TOKENS) if load == 1 else answer


def measured(host: Host, load: int, estimate: dict[str, Any], most_s: float) -> dict[str, Any]:
    """The level of `kimi-prov bench` for so many requests at once, in so many seconds at most."""
    prompt, answer = lengths(load, estimate)
    asked = ("--prompt-tokens", prompt, "--answer-tokens", answer, "--concurrency", load)
    words = [str(word) for word in asked]
    done = kimi_prov(
        "bench", host.inventory, *words, "--format", "json", timeout=min(most_s, HANGS_S)
    )
    # A report keeps one line of it.
    why = done.stderr.rpartition("failed: ")[2] or done.stdout
    assert done.returncode == 0, " ".join(why.split())
    (level,) = json.loads(done.stdout)["hosts"][host.name]["serve"]["levels"]
    return dict(level)


def outside(level: dict[str, Any], ranges: dict[str, Any], load: int) -> list[str]:
    """Say which of a level's speeds are outside their ranges: of a token, alone of prefill too."""
    found = {"decode_tok_s": 1 / level["tpot_s"]["median"]}
    if load == 1:
        found["prefill_tok_s"] = level["prefill_tok_s"]
    return [
        f"{load} at once: {name} {speed:.1f}, estimated {row['low']} to {row['high']}"
        for name, speed in found.items()
        for row in [ranges[name]]
        if not row["low"] <= speed <= row["high"]
    ]
