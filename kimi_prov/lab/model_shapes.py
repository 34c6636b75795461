"""What the lab's models measure: layers, widths, experts, and the tower of those that see."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from kimi_prov.lab import tokenizer

# vLLM's CPU kernel for MLA is compiled only for these two.
KV_RANK = 512
ROPE_WIDTH = 64
NOPE_WIDTH = 128
VALUE_WIDTH = 128
DENSE_LAYERS = 1
# Kimi's native INT4: 32 weights share a scale; weights of about 1/16, like those of bfloat16.
GROUP_SIZE = 32

Experts = Literal["bf16", "int4", "dequantised", "hollow"]
# Both are written in Kimi's native format.
NATIVE = ("int4", "hollow")


@dataclass(frozen=True)
class Tower:
    """Sizes of a vision tower. `side`: patches of an image's edge that have a position.

    `patches`: the most patches of an image after the processor.
    """

    layers: int
    hidden: int
    width: int
    heads: int
    side: int = 64
    patches: int = 16384


@dataclass(frozen=True)
class Shape:
    """Sizes of a model. `logits`, `projection`: the upper byte of such weights.

    Logits spread by 4 to 6, so that some tokens are clearly likelier; a projection's output has
    about the size of its input: weights of about 1/sqrt(hidden). `bias`: factor of the biases of
    special tokens, because the layers make the constant channel smaller and spread logits wider.
    `scale_step`: that of an INT4 group's scale. `vocab`: rows of the tables; those beyond the
    tokenizer's are never answered. `context`: tokens. `yarn`: positions
    go through the code that Kimi's do, stretched by nothing.
    """

    hidden: int
    layers: int
    dense_width: int
    experts: int
    experts_per_token: int
    expert_width: int
    heads: int
    q_rank: int
    shard_bytes: int
    logits: int
    bias: float
    projection: int
    scale_step: float
    vocab: int = tokenizer.VOCAB_SIZE
    context: int = 4096
    tower: Tower | None = None
    yarn: bool = False


TINY = Shape(
    hidden=256,
    layers=3,
    dense_width=512,
    experts=8,
    experts_per_token=2,
    expert_width=128,
    heads=4,
    q_rank=128,
    shard_bytes=3 << 20,
    logits=0x3E,  # below 1/2
    bias=1.0,
    projection=0x3D,  # below 1/8
    scale_step=2.0**-10,
)
# The tiny model with a tiny vision tower. An image has 256 tokens at most, so that an engine
# needs no more context for it; an answer may have 4096 beside its prompt.
SEEING = replace(
    TINY,
    layers=2,
    heads=2,
    context=5120,
    tower=Tower(layers=2, hidden=64, width=128, heads=2, patches=1024),
    # Without it vLLM's CPU build (0.32.0) rotates the queries of latent attention wrongly: its
    # kernel expects them to be contiguous.
    yarn=True,
)
# The tiny model in sizes that two, three and six ranks share evenly; vLLM pads a vocabulary to 64.
THIRDS = replace(TINY, dense_width=768, expert_width=192, heads=6, vocab=33 * 64)
# Kimi K2's layers, one dense and one of experts, with the lab's own tokenizer.
CUT = Shape(
    hidden=7168,
    layers=2,
    dense_width=18432,
    experts=384,
    experts_per_token=8,
    expert_width=2048,
    heads=64,
    q_rank=1536,
    shard_bytes=1 << 30,
    logits=0x3D,
    bias=1.4,
    projection=0x3C,
    scale_step=2.0**-12,
    yarn=True,
)
# The same layers with two of the 27 layers of Kimi K2.5's vision tower, and its projector. The
# largest image after its processor has 4225 tokens, with which an engine measures its memory.
CUT_SEEING = replace(CUT, context=16384, tower=Tower(layers=2, hidden=1152, width=4304, heads=16))

# As in moonshotai/Kimi-K2.5: patches of 14 x 14 pixels, 2 x 2 of them a token.
PATCH_PIXELS = 14
MERGED_PATCHES = 2
FRAMES = 4
