"""The time that the link between several hosts adds to a token of the model that they serve.

Inside a host nothing changes. A step over N hosts is a step of a stage's GPUs (`physics`), plus:

- Pipeline stages on several hosts: a token passes them one after the other. Each crossing is a hop:
  vLLM describes the tensors to the next stage over TCP (Gloo), then sends two of them (hidden and
  residual, 16 bit), and the last stage sends the chosen token to the first. One request alone is no
  faster than on one host. Several requests fill the stages only if they travel in several batches:
  vLLM puts all waiting requests into one batch, and only later ones form another. So the number of
  batches is between one and the number of stages. The geometric mean of both is expected, and the
  range holds both.
- Sums of a layer over ranks on several hosts (tensor parallelism), or tokens of a layer that are
  sent to the experts and back (expert parallelism of copies of attention): two exchanges a layer,
  each with the link's latency and a row of 16 bit values for each token.

The seconds of a hop and of an exchange are assumptions; the sources named here support their order
of magnitude. The fit has no row of several hosts. So ranges are wider, by `spread`, and plans call
the speeds estimates.
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
# Gbit/s of a port where only the kind of a link is known: a slow port of its kind.
PORT_GBIT_S: Final[dict[LinkKind, float]] = {"infiniband": 100.0, "roce": 100.0, "ethernet": 10.0}
# The share of a port's rate that messages reach. Large ones reached 46 to 48 of 50 GB/s over
# InfiniBand (github.com/NVIDIA/nccl-tests/issues/290), those of a step reach less. The other kinds
# are assumed.
_SHARE: Final[dict[LinkKind, float]] = {"infiniband": 0.8, "roce": 0.7, "ethernet": 0.5}
# How far a prediction may be off in addition to that of one host, as factors in both directions:
# hops with one request, hops with several, and exchanges in every layer. The first two hold the
# speeds reported of K2.6 over four hosts (huggingface/physics-intern, pulls 2 and 12): 90 tokens/s
# of one request, 335 of eight together, 2,400 of about seventy. The last is assumed.
_ONE_OFF, _MANY_OFF, _EXCHANGES_OFF = 1.6, 2.0, 2.2
# A layer of processors on several hosts: a sum by Gloo over TCP. The time and the factor by which
# a prediction may be off are assumed.
_GLOO_US, _PROCESSORS_OFF = 150.0, 1.6


@dataclass(frozen=True)
class Crossings:
    """How a token crosses hosts: `hops` in a step, and `exchanging` hosts in a layer."""

    hops: int = 0
    exchanging: int = 1


def count_crossings(gpus_of_host: int, serving: Serving) -> Crossings:
    """Count the crossings of hosts, over which stages are placed in order, each on whole GPUs."""
    if serving.hosts == 1:
        return Crossings()
    stage = (serving.tensor_parallel or gpus_of_host) * serving.data_parallel
    exchanging = max(1, min(serving.hosts, math.ceil(stage / gpus_of_host)))
    hosts = min(serving.stages, serving.hosts // exchanging)
    return Crossings(hosts if hosts > 1 else 0, exchanging)


def count_ranks_inside(gpus_of_host: int, serving: Serving) -> int:
    """Count the ranks of tensor parallelism in one host."""
    ranks = serving.tensor_parallel or gpus_of_host
    return min(ranks, gpus_of_host) if serving.hosts > 1 else ranks


def count_batches(serving: Serving) -> float:
    """Count the batches of the running requests: one for each stage, over several hosts fewer."""
    return serving.stages if serving.hosts == 1 else math.sqrt(serving.stages)


def estimate_latency(model: ModelShape, gpus: Gpus, serving: Serving) -> float:
    """Estimate the latency of a pass's messages between hosts in seconds, whatever their size."""
    crossings, link = count_crossings(gpus.count, serving), serving.link
    rounds = math.log2(crossings.exchanging)
    exchanges = 2 * model.layers * rounds * EXCHANGE_US[link.kind]
    return 1e-6 * (crossings.hops * HOP_US[link.kind] + exchanges)


def estimate_transfer(model: ModelShape, gpus: Gpus, serving: Serving, tokens: float) -> float:
    """Estimate the seconds in which the rows of so many tokens of a pass cross the link."""
    crossings, link = count_crossings(gpus.count, serving), serving.link
    # The way back to the first stage carries only the token's number.
    rows = 2.0 * max(0, crossings.hops - 1)
    rows += 2 * model.layers * 2 * (crossings.exchanging - 1) / crossings.exchanging
    return tokens * rows * model.hidden * 2 / (link.gb_s * 1e9 * _SHARE[link.kind])


def estimate_spread(gpus: Gpus | None, serving: Serving, quantity: Quantity) -> float:
    """Estimate the log-spread that several hosts add to a range, 0 for one host."""
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
    """Divide the estimate for a host without GPUs over all hosts: tensor parallelism, a rank each.

    Each host reads and computes its part, and a layer has two sums over all hosts. A layer's other
    costs do not shrink; the low end of the range counts them as much as the weights.
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
    # The time to the first token shrinks as much as the time of its prompt.
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
