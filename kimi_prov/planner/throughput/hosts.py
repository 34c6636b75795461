"""What several hosts that serve one model add to the time of a token: what crosses their link.

Inside a host nothing changes, so a step over N hosts is that of the GPUs of a stage (`physics`) and

- pipeline stages on several hosts: a token passes them one after the other. Each crossing is a hop:
  vLLM describes the tensors to the next stage over TCP (Gloo), then sends two of them (hidden and
  residual, 16 bit), and the last stage tells the first one which token it was. One request alone is
  no faster than on one host. Many fill the stages as far as they travel apart: vLLM sends those
  that it can in one batch, and only what comes meanwhile makes another. Between one batch and one
  for each stage the mean of the two is expected, and either is in the range.
- a layer's sums over ranks on several hosts (tensor parallelism), or a layer's tokens sent to the
  experts and back (expert parallelism of copies of attention): two exchanges a layer, each with the
  link's latency and a row of 16 bit values for each token.

Seconds of a hop and of an exchange are assumptions of the order that the sources named here say;
no row of several hosts is in the fit. So ranges are wider, by `spread`, and plans call the speeds
estimates.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from kimi_prov.planner.throughput.inputs import Estimate, Range

if TYPE_CHECKING:
    from kimi_prov.planner.throughput.cases import Quantity
    from kimi_prov.planner.throughput.inputs import Gpus, LinkKind, ModelShape, Serving

# Microseconds of an exchange between two hosts, beyond what it takes inside each. InfiniBand: an
# all-reduce of 8 to 128 bytes over two GPUs, one in each of two hosts with HDR, took 19 to 21 us
# (github.com/NVIDIA/nccl-tests/issues/150). RoCE, and TCP through the kernel's sockets: assumed.
EXCHANGE_US: Final[dict[LinkKind, float]] = {"infiniband": 20.0, "roce": 25.0, "ethernet": 100.0}
# Microseconds of a hop: the description over TCP and its unpacking, then the tensors. Assumed.
HOP_US: Final[dict[LinkKind, float]] = {"infiniband": 200.0, "roce": 200.0, "ethernet": 300.0}
# Gbit/s of a port where a link's kind is told and its speed is not: a slow one of its kind.
PORT_GBIT_S: Final[dict[LinkKind, float]] = {"infiniband": 100.0, "roce": 100.0, "ethernet": 10.0}
# Of a port's rate, what messages reach. With large ones 46 to 48 of 50 GB/s over InfiniBand
# (github.com/NVIDIA/nccl-tests/issues/290), less with those of a step; the others are assumed.
_SHARE: Final[dict[LinkKind, float]] = {"infiniband": 0.8, "roce": 0.7, "ethernet": 0.5}
# How far a prediction may be off beyond that of one host, as factors either way: hops with one
# request, with several, and exchanges in every layer. The first two hold what was reported of K2.6
# over four hosts (huggingface/physics-intern, pulls 2 and 12): 90 tokens/s alone, 335 of eight
# together, 2,400 of about seventy. The last is assumed.
_ONE_OFF, _MANY_OFF, _EXCHANGES_OFF = 1.6, 2.0, 2.2
# Layers of processors over hosts: a sum by Gloo over TCP. Assumed, like what it may be off by.
_GLOO_US, _PROCESSORS_OFF = 150.0, 1.6


@dataclass(frozen=True)
class Crossings:
    """How often a token crosses from host to host: `hops` of a step, `exchanging` hosts a layer."""

    hops: int = 0
    exchanging: int = 1


def count_crossings(gpus_of_host: int, serving: Serving) -> Crossings:
    """Say what crosses hosts: stages are laid over them in order, each stage over whole GPUs."""
    if serving.hosts == 1:
        return Crossings()
    stage = (serving.tensor_parallel or gpus_of_host) * serving.data_parallel
    exchanging = max(1, min(serving.hosts, math.ceil(stage / gpus_of_host)))
    hosts = min(serving.stages, serving.hosts // exchanging)
    return Crossings(hosts if hosts > 1 else 0, exchanging)


def count_ranks_inside(gpus_of_host: int, serving: Serving) -> int:
    """Ranks of tensor parallelism that are in one host."""
    ranks = serving.tensor_parallel or gpus_of_host
    return min(ranks, gpus_of_host) if serving.hosts > 1 else ranks


def count_batches(serving: Serving) -> float:
    """Batches that the running requests travel in: one a stage, over hosts fewer."""
    return serving.stages if serving.hosts == 1 else math.sqrt(serving.stages)


def estimate_latency(model: ModelShape, gpus: Gpus, serving: Serving) -> float:
    """Seconds of a pass's messages from host to host, whatever their size."""
    crossings, link = count_crossings(gpus.count, serving), serving.link
    rounds = math.log2(crossings.exchanging)
    exchanges = 2 * model.layers * rounds * EXCHANGE_US[link.kind]
    return 1e-6 * (crossings.hops * HOP_US[link.kind] + exchanges)


def estimate_transfer(model: ModelShape, gpus: Gpus, serving: Serving, tokens: float) -> float:
    """Seconds in which the rows of so many tokens of one pass go over the link."""
    crossings, link = count_crossings(gpus.count, serving), serving.link
    # The way back to the first stage carries the token's number alone.
    rows = 2.0 * max(0, crossings.hops - 1)
    rows += 2 * model.layers * 2 * (crossings.exchanging - 1) / crossings.exchanging
    return tokens * rows * model.hidden * 2 / (link.gb_s * 1e9 * _SHARE[link.kind])


def estimate_spread(gpus: Gpus | None, serving: Serving, quantity: Quantity) -> float:
    """Log-spread that several hosts add to a range, 0 for one host."""
    if gpus is None or serving.hosts == 1:
        return 0.0
    crossings = count_crossings(gpus.count, serving)
    if crossings.exchanging > 1:
        return math.log(_EXCHANGES_OFF)
    many = quantity == "decode" and serving.running > 1
    return math.log(_MANY_OFF if many else _ONE_OFF)


def widen_range(span: Range, more: float) -> Range:
    """Widen a range by a log-spread that is independent of its own."""
    if not more:
        return span
    below, above = (
        math.exp(math.hypot(math.log(ratio), more))
        for ratio in (span.expected / span.low, span.high / span.expected)
    )
    return Range(span.expected / below, span.expected, span.expected * above)


def divide_over_hosts(single: Estimate, model: ModelShape, serving: Serving) -> Estimate:
    """Share the estimate for one host without GPUs out to all: tensor parallelism, a rank a host.

    Each reads and computes its part; a layer ends in two sums over all. What a layer costs beside
    its weights does not shrink, which the low end counts for as much as the rest.
    """
    if serving.hosts == 1:
        return single
    sums = 2 * model.layers * math.log2(serving.hosts) * _GLOO_US * 1e-6
    rows = 2 * model.layers * 2 * (serving.hosts - 1) / serving.hosts * model.hidden * 2
    sent = rows / (serving.link.gb_s * 1e9 * _SHARE["ethernet"])

    def shared(one: Range, each: float) -> Range:
        expected = 1 / (1 / one.expected / serving.hosts + each)
        low = 1 / (1 / one.low / math.sqrt(serving.hosts) + each)
        high = 1 / (1 / one.high / serving.hosts + each)
        return widen_range(Range(low, expected, high), math.log(_PROCESSORS_OFF))

    decode = shared(single.decode_tok_s, sums + serving.running * sent)
    prefill = shared(single.prefill_tok_s, sums / serving.input_tokens + sent)
    running = serving.running
    # A time to the first token shrinks as its prompt does.
    faster = Range(
        prefill.low / single.prefill_tok_s.low,
        prefill.expected / single.prefill_tok_s.expected,
        prefill.high / single.prefill_tok_s.high,
    )
    return Estimate(
        decode_tok_s=decode,
        aggregate_tok_s=Range(
            decode.low * running, decode.expected * running, decode.high * running
        ),
        prefill_tok_s=prefill,
        ttft_s=_shorten_range(single.ttft_s, faster),
        single_ttft_s=_shorten_range(single.single_ttft_s, faster),
        load_s=single.load_s,
        basis=single.basis,
        kind=single.kind,
    )


def _shorten_range(time: Range, faster: Range) -> Range:
    return Range(time.low / faster.high, time.expected / faster.expected, time.high / faster.low)
