"""Train a model of Kimi K2.5's form on processors until it answers all that it is to learn.

Runs in an environment that has torch and safetensors: an engine's own.

    python train.py MODEL LESSONS OUT [--from FILE] [--limit SECONDS]

MODEL: a folder that kimi_prov/lab/model.py made: its config, and names and sizes of its tensors.
LESSONS: JSON, a list of {ids, start, picture}: token ids, of which those from `start` on are the
answer, and the PNG that stands where the pads are, in base64. OUT: the trained tensors, as
bfloat16, in one safetensors file. Ends with 1 where an answer was not learnt in time.

Tensors are called as in the checkpoint. What an engine computes is computed here in the same order
and, by autocast, in the same precision; weights are rounded before they are judged.
"""

from __future__ import annotations

import argparse
import base64
import io
import itertools
import json
import math
import random
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import numpy
import torch
from PIL import Image
from safetensors import safe_open
from safetensors.torch import save_file
from torch import Tensor
from torch.nn import functional

TEXT = "language_model.model"
TOWER = "vision_tower"
_ROPE_OF_TOWER = 10000.0
# An answer is learnt when each of its tokens is so likely: a request is sampled with top_p 0.95.
_SURE = 0.97
_BATCH_TOKENS = 2400
_EVERY = 8  # epochs between two judgements
_OFTEN = 400  # tokens: at first a lesson of more is in as many fewer epochs
_AGAIN = 0.3  # of the epochs have what is learnt already
_RATE = 2e-3
_WARM = 30  # steps
# Epochs: from the first on the rate falls, from the second on all have the long lessons, from the
# third on the rate is at its least.
_FALLS, _ALL, _FALLEN = 24, 44, 56
_GOES_ON = 40  # the first epoch of what has learnt already
_LEAST_RATE = 0.05  # of _RATE


@dataclass
class Lesson:
    """Ids of prompt and answer; the answer's from `start` on; patches of a picture."""

    check: str
    ids: list[int]
    start: int
    patches: Tensor | None


class Model:
    """The forward pass over tensors that have the checkpoint's names."""

    def __init__(self, config: dict, values: dict[str, Tensor]) -> None:
        self.text = config["text_config"]
        self.tower = config["vision_config"]
        self.pad = config["media_placeholder_token_id"]
        self.values = values

    def loss(self, lessons: list[Lesson]) -> tuple[Tensor, Tensor]:
        """The loss over the answers' tokens, and how likely each of them is, in order."""
        length = max(len(lesson.ids) for lesson in lessons)
        ids = torch.zeros(len(lessons), length, dtype=torch.long)
        wanted = torch.full_like(ids, -1)
        for row, lesson in enumerate(lessons):
            given = torch.tensor(lesson.ids)
            ids[row, : len(given)] = given
            # What stands at a place foretells the next.
            wanted[row, lesson.start - 1 : len(given) - 1] = given[lesson.start :]
        pictures = [lesson.patches for lesson in lessons if lesson.patches is not None]
        state = self._through(ids, torch.stack(pictures) if pictures else None)
        at = wanted >= 0
        chosen = self._norm(state[at], f"{TEXT}.norm")
        scores = self._linear(chosen, "language_model.lm_head").float()
        losses = functional.cross_entropy(scores, wanted[at], reduction="none")
        return losses, (-losses).exp()

    def _through(self, ids: Tensor, pictures: Tensor | None) -> Tensor:
        state = functional.embedding(ids, self.values[f"{TEXT}.embed_tokens.weight"])
        if pictures is not None:
            seen = self._seen(pictures).to(state.dtype)
            state = state.masked_scatter((ids == self.pad)[..., None], seen)
        angles = self._angles(ids.shape[1])
        for layer in range(self.text["num_hidden_layers"]):
            prefix = f"{TEXT}.layers.{layer}"
            normed = self._norm(state, f"{prefix}.input_layernorm")
            state = state + self._attention(normed, f"{prefix}.self_attn", angles)
            normed = self._norm(state, f"{prefix}.post_attention_layernorm")
            if layer < self.text["first_k_dense_replace"]:
                state = state + self._mlp(normed, f"{prefix}.mlp")
            else:
                state = state + self._experts(normed, f"{prefix}.mlp")
        return state

    def _linear(self, given: Tensor, name: str) -> Tensor:
        return functional.linear(
            given, self.values[f"{name}.weight"], self.values.get(f"{name}.bias")
        )

    def _norm(self, given: Tensor, name: str) -> Tensor:
        weight = self.values[f"{name}.weight"]
        wide = given.float()
        spread = wide.pow(2).mean(-1, keepdim=True)
        return wide * torch.rsqrt(spread + self.text["rms_norm_eps"]) * weight

    def _layer_norm(self, given: Tensor, name: str) -> Tensor:
        weight, bias = self.values[f"{name}.weight"], self.values[f"{name}.bias"]
        return functional.layer_norm(given.float(), weight.shape, weight, bias, 1e-5)

    def _angles(self, length: int) -> Tensor:
        size = self.text["qk_rope_head_dim"]
        steps = self.text["rope_theta"] ** (torch.arange(0, size, 2).float() / size)
        angles = torch.arange(length).float()[:, None] / steps
        return torch.polar(torch.ones_like(angles), angles)

    def _attention(self, given: Tensor, prefix: str, angles: Tensor) -> Tensor:
        """Multi-head latent attention: keys and values come out of one small state a token."""
        text = self.text
        batch, length, _ = given.shape
        heads, rank = text["num_attention_heads"], text["kv_lora_rank"]
        nope, rope = text["qk_nope_head_dim"], text["qk_rope_head_dim"]
        query = self._linear(given, f"{prefix}.q_a_proj")
        query = self._linear(self._norm(query, f"{prefix}.q_a_layernorm"), f"{prefix}.q_b_proj")
        query = query.view(batch, length, heads, nope + rope).transpose(1, 2)
        latent, shared = self._linear(given, f"{prefix}.kv_a_proj_with_mqa").split([rank, rope], -1)
        latent = self._norm(latent, f"{prefix}.kv_a_layernorm")
        both = self._linear(latent, f"{prefix}.kv_b_proj")
        both = both.view(batch, length, heads, nope + text["v_head_dim"]).transpose(1, 2)
        key, value = both.split([nope, text["v_head_dim"]], -1)
        shared = _turned(shared[:, None], angles).to(key.dtype).expand(-1, heads, -1, -1)
        turned = _turned(query[..., nope:], angles).to(query.dtype)
        query = torch.cat([query[..., :nope], turned], -1)
        key = torch.cat([key, shared], -1)
        # Queries, keys and values of one size: the fast kernel takes no other.
        value = functional.pad(value, (0, nope + rope - text["v_head_dim"]))
        found = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        found = found[..., : text["v_head_dim"]].transpose(1, 2).reshape(batch, length, -1)
        return self._linear(found, f"{prefix}.o_proj")

    def _mlp(self, given: Tensor, prefix: str) -> Tensor:
        gate = functional.silu(self._linear(given, f"{prefix}.gate_proj"))
        return self._linear(gate * self._linear(given, f"{prefix}.up_proj"), f"{prefix}.down_proj")

    def _experts(self, given: Tensor, prefix: str) -> Tensor:
        text = self.text
        flat = given.reshape(-1, given.shape[-1])
        with torch.autocast("cpu", enabled=False):
            scores = self._linear(flat.float(), f"{prefix}.gate").sigmoid()
        biased = scores + self.values[f"{prefix}.gate.e_score_correction_bias"]
        chosen = biased.topk(text["num_experts_per_tok"], -1).indices
        shares = scores.gather(-1, chosen)
        shares = shares / shares.sum(-1, keepdim=True) * text["routed_scaling_factor"]
        found = torch.zeros_like(flat, dtype=torch.float32)
        for expert in range(text["n_routed_experts"]):
            rows, place = (chosen == expert).nonzero(as_tuple=True)
            made = self._mlp(flat[rows], f"{prefix}.experts.{expert}")
            found = found.index_add(0, rows, made.float() * shares[rows, place][:, None])
        return self._mlp(given, f"{prefix}.shared_experts") + found.view_as(given)

    def _seen(self, pictures: Tensor) -> Tensor:
        """What the language model gets of pictures: (pictures, tokens, hidden)."""
        tower = self.tower
        count, patches = pictures.shape[:2]
        side, hidden, heads = (
            math.isqrt(patches),
            tower["hidden_size"],
            tower["num_attention_heads"],
        )
        weight = self.values[f"{TOWER}.patch_embed.proj.weight"].flatten(1)
        bias = self.values[f"{TOWER}.patch_embed.proj.bias"]
        state = functional.linear(pictures.flatten(2), weight, bias)
        places = self.values[f"{TOWER}.patch_embed.pos_emb.weight"].permute(2, 0, 1)[None]
        places = functional.interpolate(places, size=(side, side), mode="bicubic")
        state = state + places[0].permute(1, 2, 0).flatten(0, 1)
        angles = _two_ways(side, hidden // heads)
        for layer in range(tower["num_hidden_layers"]):
            prefix = f"{TOWER}.encoder.blocks.{layer}"
            mixed = self._linear(self._layer_norm(state, f"{prefix}.norm0"), f"{prefix}.wqkv")
            query, key, value = mixed.view(count, patches, 3, heads, -1).permute(2, 0, 3, 1, 4)
            query = _turned(query, angles).to(value.dtype)
            key = _turned(key, angles).to(value.dtype)
            found = functional.scaled_dot_product_attention(query, key, value)
            found = found.transpose(1, 2).reshape(count, patches, hidden)
            state = state + self._linear(found, f"{prefix}.wo")
            made = self._linear(self._layer_norm(state, f"{prefix}.norm1"), f"{prefix}.mlp.fc0")
            made = functional.gelu(made, approximate="tanh")
            state = state + self._linear(made, f"{prefix}.mlp.fc1")
        state = self._layer_norm(state, f"{TOWER}.encoder.final_layernorm")
        # Two by two patches are one token.
        state = self._layer_norm(state, "mm_projector.pre_norm")
        half = side // 2
        state = state.view(count, half, 2, half, 2, hidden).permute(0, 1, 3, 2, 4, 5)
        state = state.reshape(count, half * half, 4 * hidden)
        state = functional.gelu(self._linear(state, "mm_projector.proj.0"))
        return self._linear(state, "mm_projector.proj.2")


def _turned(given: Tensor, angles: Tensor) -> Tensor:
    """Rotary positions over neighbouring pairs; the length is the last dimension but one."""
    pairs = torch.view_as_complex(given.float().unflatten(-1, (-1, 2)).contiguous())
    return torch.view_as_real(pairs * angles).flatten(-2)


def _two_ways(side: int, size: int) -> Tensor:
    """Angles of patches across and down, one after the other: (patches, size / 2)."""
    steps = _ROPE_OF_TOWER ** (torch.arange(0, size, 4).float() / size)
    place = torch.arange(side * side)
    across, down = ((place % side)[:, None] / steps, (place // side)[:, None] / steps)
    angles = torch.stack([across, down], -1).flatten(1)
    return torch.polar(torch.ones_like(angles), angles)


def started(folder: Path) -> dict[str, Tensor]:
    """Values to begin with, of the names and sizes of a model's checkpoint."""
    torch.manual_seed(1)
    found = {}
    for shard in sorted(folder.glob("*.safetensors")):
        with safe_open(shard, framework="pt") as opened:
            for name in opened.keys():  # noqa: SIM118 - no dictionary
                found[name] = _first(name, opened.get_slice(name).get_shape())
    return found


def _first(name: str, shape: list[int]) -> Tensor:
    if len(shape) == 1:
        return torch.zeros(shape) if "bias" in name else torch.ones(shape)
    if "embed_tokens" in name or "pos_emb" in name:
        return 0.5 * torch.randn(shape)
    spread = 1 / math.sqrt(math.prod(shape[1:]))
    if name.endswith(("o_proj.weight", "down_proj.weight", "wo.weight", "fc1.weight")):
        spread /= 2
    return spread * torch.randn(shape)


def rounded(values: dict[str, Tensor]) -> dict[str, Tensor]:
    """The values as bfloat16 keeps them, but for what an engine keeps whole."""
    return {
        name: value.detach() if "correction_bias" in name else value.detach().bfloat16().float()
        for name, value in values.items()
    }


def batches(lessons: list[Lesson], drawn: random.Random) -> list[list[Lesson]]:
    """Lessons of about the same length together, in any order."""
    found: list[list[Lesson]] = []
    for lesson in sorted(lessons, key=lambda one: (len(one.ids), drawn.random())):
        full = not found or len(lesson.ids) * (len(found[-1]) + 1) > _BATCH_TOKENS
        if full:
            found.append([])
        found[-1].append(lesson)
    drawn.shuffle(found)
    return found


def read(file: Path) -> list[Lesson]:
    """The lessons of a file."""
    return [
        Lesson(row["check"], row["ids"], row["start"], _patches(row["picture"]))
        for row in json.loads(file.read_text())
    ]


def _patches(text: str | None, size: int = 14) -> Tensor | None:
    """Patches of a picture as K2.5's processor cuts and scales them: (patches, 3, 14, 14)."""
    if text is None:
        return None
    with Image.open(io.BytesIO(base64.b64decode(text))) as opened:
        pixels = torch.from_numpy(numpy.array(opened.convert("RGB"))).float()
    scaled = (pixels / 255 - 0.5) / 0.5
    high, wide, _ = scaled.shape
    cut = scaled.view(high // size, size, wide // size, size, 3)
    return cut.permute(0, 2, 4, 1, 3).reshape(-1, 3, size, size)


def _weak(config: dict, values: dict[str, Tensor], lessons: list[Lesson]) -> set[int]:
    """Numbers of the lessons of which a token of the answer is not likely enough."""
    model = Model(config, rounded(values))
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        return {
            number
            for number, lesson in enumerate(lessons)
            if float(model.loss([lesson])[1].min()) < _SURE
        }


def _share(lesson: Lesson, epoch: int, *, known: bool) -> float:
    """Of the epochs, how many have this lesson."""
    if known:
        return _AGAIN
    return min(1.0, _OFTEN / len(lesson.ids)) if epoch < _ALL else 1.0


def _optimisers(values: dict[str, Tensor]) -> tuple[list[torch.optim.Optimizer], list[Tensor]]:
    """Muon for matrices (a quarter of the epochs that AdamW needs here), AdamW for the rest."""
    trained = {name: value for name, value in values.items() if "correction_bias" not in name}
    for value in trained.values():
        value.requires_grad_()
    tables = ("embed_tokens", "lm_head")
    matrices = [
        value
        for name, value in trained.items()
        if value.ndim == 2 and not any(table in name for table in tables)
    ]
    rest = [value for value in trained.values() if not any(value is one for one in matrices)]
    muon = torch.optim.Muon(matrices, weight_decay=0.0, adjust_lr_fn="match_rms_adamw")
    adam = torch.optim.AdamW(rest, betas=(0.9, 0.95), weight_decay=0.0)
    return [muon, adam], list(trained.values())


def train(
    config: dict, values: dict[str, Tensor], lessons: list[Lesson], limit: float, first: int
) -> bool:
    """Train until every answer is learnt, `limit` seconds at most; whether all are.

    `first`: the number of the first epoch.
    """
    began = time.monotonic()
    drawn = random.Random(1)  # noqa: S311 - nothing secret: the same order every time
    optimisers, parameters = _optimisers(values)
    model = Model(config, values)
    step = 0
    weak = _weak(config, values, lessons)
    for epoch in itertools.count(first):
        chosen = [
            lesson
            for number, lesson in enumerate(lessons)
            if drawn.random() < _share(lesson, epoch, known=number not in weak)
        ]
        total = 0.0
        for batch in batches(chosen, drawn):
            step += 1
            for group in (group for one in optimisers for group in one.param_groups):
                group["lr"] = _rate(step, epoch)
            with torch.autocast("cpu", torch.bfloat16):
                losses, _ = model.loss(batch)
            for one in optimisers:
                one.zero_grad(set_to_none=True)
            losses.mean().backward()
            torch.nn.utils.clip_grad_norm_(parameters, 1.0)
            for one in optimisers:
                one.step()
            total += float(losses.detach().sum())
        spent = time.monotonic() - began
        told = f"{spent:.0f} s, epoch {epoch}, loss {total:.2f}"
        if epoch % _EVERY == 0 or spent > limit:
            weak = _weak(config, values, lessons)
            checks = sorted({lessons[number].check for number in weak})
            told += f", {len(weak)} not learnt: {', '.join(checks)}"
        sys.stderr.write(f"{told}\n")
        if not weak or spent > limit:
            return not weak
    raise AssertionError("epochs do not end")


def _rate(step: int, epoch: int) -> float:
    """How far a step goes: little at first, less and less at the end."""
    fallen = min(1.0, max(0.0, (epoch - _FALLS) / (_FALLEN - _FALLS)))
    return _RATE * min(1.0, step / _WARM) * (1 - (1 - _LEAST_RATE) * fallen)


def main() -> int:
    """Read the arguments and train."""
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=Path)
    parser.add_argument("lessons", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--from", dest="first", type=Path)
    parser.add_argument("--limit", type=float, default=1800.0)
    asked = parser.parse_args()
    # One: two that wait for each other are slower than one where others use the machine too.
    torch.set_num_threads(1)
    config = json.loads((asked.model / "config.json").read_text())
    values = started(asked.model)
    if asked.first:
        with safe_open(asked.first, framework="pt") as opened:
            values = {name: opened.get_tensor(name).float() for name in values}
    first = _GOES_ON if asked.first else 1
    learnt = train(config, values, read(asked.lessons), asked.limit, first)
    kept = {
        name: value.detach().float() if "correction_bias" in name else value.detach().bfloat16()
        for name, value in values.items()
    }
    save_file(kept, asked.out)
    return 0 if learnt else 1


if __name__ == "__main__":
    sys.exit(main())
