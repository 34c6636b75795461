"""Rules about GPUs: what they are, how they are linked, how the model is shared out over them."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING

from kimi_prov.planner.findings import human
from kimi_prov.planner.memory import architecture, gpu
from kimi_prov.planner.rules.context import Case, Hit, rule
from kimi_prov.planner.throughput import prediction

if TYPE_CHECKING:
    from collections.abc import Iterator

_SPAN = 0.02
_HELD = 2 << 30


@rule(
    "gpu.mixed",
    "GPUs of different kinds: tensor parallelism is as slow, and as small, as the least of them",
    "every rank holds an equal share",
)
def _mixed(case: Case) -> Iterator[Hit]:
    kinds = {str(card.get("model") or card.get("name_raw")) for card in case.cards}
    sizes = [size for size in case.host.gpu_bytes if size]
    spread = sizes and max(sizes) - min(sizes) > max(sizes) * _SPAN
    if len(kinds) > 1 or spread:
        yield Hit(
            "warning",
            observed=", ".join(sorted(kinds)),
            required="equal GPUs",
            fix="use equal GPUs for one model",
        )


@rule(
    "gpu.unknown",
    "The catalogue does not know these GPUs",
    "kimi_prov/catalog/gpus.yaml",
)
def _unknown(case: Case) -> Iterator[Hit]:
    if case.cards and case.host.gpu is None:
        yield Hit(
            "info",
            observed=str(case.cards[0].get("model") or case.cards[0].get("name_raw")),
            required="a card of the catalogue, for speed and power",
            fix="add it to gpus.yaml of your own catalogue",
        )


@rule(
    "gpu.mig",
    "A GPU is cut into instances (MIG): the engine needs it whole",
    "NVIDIA MIG user guide: instances have no peer-to-peer",
)
def _mig(case: Case) -> Iterator[Hit]:
    cut = [str(card["index"]) for card in case.cards if card.get("mig")]
    if cut:
        yield Hit(
            "blocker",
            observed=f"MIG on GPU {', '.join(cut)}",
            required="MIG off",
            fix="nvidia-smi -mig 0, then restart the machine",
        )


@rule(
    "gpu.pcie",
    "A GPU's PCIe link is narrower or slower than it can be",
    "nvidia-smi -q: a link that trained down under load; idle links save power and show less",
)
def _pcie(case: Case) -> Iterator[Hit]:
    for card in case.cards:
        link = card.get("pcie") or {}
        width, most = link.get("width"), link.get("width_max")
        if width and most and width < most:
            yield Hit(
                "warning",
                observed=f"GPU {card['index']}: x{width} of x{most}",
                required=f"x{most}",
                fix="seat the card again, look at the riser and the slot's firmware setting",
            )
            return
        slot, card_most = link.get("gen_max"), link.get("gen_card")
        if card_most is None and case.host.gpu is not None:
            card_most = case.host.gpu.pcie_gen
        # The present generation says nothing: an idle link saves power.
        if slot and card_most and slot < card_most:
            yield Hit(
                "warning" if case.choice.hybrid else "info",
                observed=f"GPU {card['index']}: the slot gives PCIe {slot}",
                required=f"PCIe {card_most}",
                fix="use a slot, or a board, of the card's generation",
            )
            return


@rule(
    "gpu.nvlink",
    "The GPUs of one model are not all linked by NVLink",
    "two all-reduces a layer: without NVLink they go over PCIe",
)
def _nvlink(case: Case) -> Iterator[Hit]:
    ranks = case.budget.tensor_parallel
    if ranks < 2 or case.host.amd:
        return
    links = case.nvidia.get("nvlink")
    row = case.host.gpu
    sold = bool(row and row.nvlink_gb_s)
    matrix = (links or {}).get("matrix")
    if matrix is None:
        if not sold and row is not None:
            yield _without("the card has no NVLink", ranks)
        return
    count = min(ranks, len(matrix))
    pairs = [(a, b) for a in range(count) for b in range(count) if a != b]
    bare = [(a, b) for a, b in pairs if not _links(matrix, a, b)]
    if not bare:
        yield Hit(
            "pass",
            observed=f"all {ranks} GPUs are linked",
            required="NVLink between all GPUs of one model",
            title="Every pair of GPUs is linked by NVLink",
        )
    elif len(bare) == len(pairs):
        yield _without("no NVLink between any two GPUs", ranks)
    else:
        yield Hit(
            "warning",
            observed=f"no NVLink between {len(bare) // 2} of {len(pairs) // 2} pairs",
            required="NVLink between all GPUs of one model",
            fix="bridge every card, or share the model over the linked cards alone",
            title="NVLink joins only some of the GPUs",
        )


def _without(observed: str, ranks: int) -> Hit:
    return Hit(
        "warning" if ranks >= 8 else "info",
        observed=observed,
        required=f"NVLink for tensor parallelism over {ranks} GPUs",
        fix="choose cards with NVLink (SXM, or NVL with bridges); decoding waits for PCIe else",
    )


def _links(matrix: list[list[object]], a: int, b: int) -> bool:
    """Whether two cards are linked: a count of links, or nvidia-smi's own NV18, SYS, PIX."""
    try:
        value = matrix[a][b]
    except (IndexError, TypeError):
        return False
    if isinstance(value, str):
        return value.upper().startswith("NV")
    return bool(value)


@rule(
    "gpu.fabric",
    "The NVSwitch fabric is not ready: CUDA does not start on these GPUs",
    "nvidia-smi -q: Fabric State; on virtual machines the host owns the fabric manager",
)
def _fabric(case: Case) -> Iterator[Hit]:
    states = {str(card["fabric_state"]) for card in case.cards if card.get("fabric_state")}
    wrong = {s for s in states if s.lower() not in ("completed", "n/a", "not supported")}
    if wrong:
        yield Hit(
            "blocker",
            observed=", ".join(sorted(wrong)),
            required="Completed",
            fix="start nvidia-fabricmanager of exactly the driver's version; on a virtual machine "
            "the host has to",
        )


@rule(
    "gpu.divisible",
    "The model cannot be cut into so many equal parts",
    "tensor parallelism cuts attention heads and expert width",
)
def _divisible(case: Case) -> Iterator[Hit]:
    ranks, shape = case.budget.tensor_parallel, case.model.architecture
    for name, size in (("attention heads", shape.heads), ("expert width", shape.expert_width)):
        if ranks > 0 and size % ranks:
            yield Hit(
                "blocker",
                observed=f"tensor-parallel-size {ranks}",
                required=f"a number that divides {size} ({name})",
                fix="remove tensor-parallel-size from kimi_engine_args",
            )
    card = case.budget.graphics
    if card and card.gpus > len(case.host.gpu_bytes):
        ways = {"tensor": ranks, "pipeline": card.pipeline, "data": card.data}
        named = {name: size for name, size in ways.items() if size > 1 or name == "tensor"}
        yield Hit(
            "blocker",
            observed=", ".join(f"{name}-parallel-size {size}" for name, size in named.items())
            + f", {len(case.host.gpu_bytes)} GPU(s)",
            required="not more ranks than GPUs",
            fix=f"remove {', '.join(f'{name}-parallel-size' for name in named)} from "
            "kimi_engine_args",
        )


@rule(
    "gpu.idle",
    "Some GPUs lie idle: the model is cut into powers of two",
    "heads and expert width are powers of two",
)
def _idle(case: Case) -> Iterator[Hit]:
    count, card = len(case.host.gpu_bytes), case.budget.graphics
    work = card.gpus * case.budget.instances if card else 0
    if 0 < work < count:
        yield Hit(
            "info",
            observed=f"{work} of {count} GPUs work",
            required="1, 2, 4 or 8 GPUs",
        )


@rule(
    "kv.replication",
    "Every tensor-parallel rank holds the whole cache: more GPUs do not make it longer",
    "MLA keeps one latent for all heads; read in vLLM's logs, with and without context parallelism",
)
def _replication(case: Case) -> Iterator[Hit]:
    card, shape = case.budget.graphics, case.model.architecture
    if card is None or card.ranks < 2 or shape.attention != "mla" or case.choice.hybrid:
        return
    kv = max(0, case.budget.kv_bytes)
    eight = architecture.kv_bytes_per_token(shape, 1)
    if card.decode_context > 1 or not kv:
        return
    yield Hit(
        "info",
        observed=f"{human(kv)} on each GPU hold {case.budget.kv_tokens} tokens "
        f"({case.budget.kv_bytes_per_token} bytes each, {case.budget.kv_dtype})",
        required=f"with an 8-bit cache {kv // eight} tokens; with "
        f"decode-context-parallel-size {card.ranks} {card.ranks} times as many",
    )


@rule(
    "parallel.context",
    "Context parallelism was chosen: one rank alone would not hold the context asked for",
    "vLLM: decode-context-parallel-size shares out the cache; K2-Thinking was served so on 8x H200",
)
def _context(case: Case) -> Iterator[Hit]:
    card = case.budget.graphics
    if card and card.decode_context > 1 and _chosen(case, "decode-context-parallel-size"):
        yield Hit(
            "info",
            observed=f"{case.budget.kv_tokens_one // card.decode_context} tokens on one rank",
            required=f"{case.budget.context} tokens; {card.decode_context} ranks hold "
            f"{case.budget.kv_tokens_one}",
            fix="ask for a shorter kimi_context where every token's time counts",
        )


@rule(
    "parallel.pipeline",
    "Stages of layers were chosen: tensor parallelism alone would not use enough GPUs",
    "tensor parallelism takes powers of two; stages take any number, one after the other",
)
def _pipeline(case: Case) -> Iterator[Hit]:
    card = case.budget.graphics
    if card and card.pipeline > 1 and _chosen(case, "pipeline-parallel-size"):
        yield Hit(
            "info",
            observed=f"{len(case.host.gpu_bytes)} GPUs",
            required=f"tensor-parallel-size {card.ranks}, pipeline-parallel-size {card.pipeline}: "
            "one request is no faster than on the GPUs of one stage",
        )


@rule(
    "parallel.instances",
    "The machine runs several instances: each holds the model on GPUs of its own",
    "decoding is latency-bound: ranks beyond one NVSwitch domain make a token no faster",
)
def _instances(case: Case) -> Iterator[Hit]:
    card, many = case.budget.graphics, case.budget.instances
    if card and many > 1:
        yield Hit(
            "info",
            observed=f"{len(case.host.gpu_bytes)} GPUs, {card.gpus} hold the model",
            required=f"{many} instances of tensor-parallel-size {card.ranks}; the proxy shares "
            "requests out",
            fix="set tensor-parallel-size in kimi_engine_args for one instance",
        )


@rule(
    "parallel.data",
    "Data-parallel attention would hold more requests at once",
    "MLA's cache is whole on every tensor-parallel rank; a copy of attention for each has its own",
)
def _data(case: Case) -> Iterator[Hit]:
    card, budget = case.budget.graphics, case.budget
    wanted = int(case.wishes.concurrency) * min(budget.context, prediction.TYPICAL_TOKENS)
    short = budget.kv_tokens * budget.instances < wanted
    if card is None or card.data * card.decode_context > 1 or card.ranks < 2 or not short:
        return
    if case.choice.hybrid or case.model.architecture.attention != "mla":
        return
    ways = {"tensor-parallel-size": 1, "data-parallel-size": card.ranks}
    ways["enable-expert-parallel"] = True
    other = gpu.on_gpus(
        case.host,
        replace(case.wishes, values={**case.wishes.values, "kimi_engine_args": ways}),
        case.model,
        case.catalogue,
        (case.choice.engine, case.choice.weights_format),
    )
    if other.kv_tokens > budget.kv_tokens and other.kv_tokens_one >= budget.context:
        yield Hit(
            "info",
            observed=f"cache for {budget.kv_tokens} tokens, {wanted} wanted by "
            f"{case.wishes.concurrency} requests",
            required=f"{other.kv_tokens} tokens with "
            + ", ".join(f"{flag}: {json.dumps(value)}" for flag, value in ways.items())
            + " in kimi_engine_args; a single request gets slower",
        )


def _chosen(case: Case, flag: str) -> bool:
    return flag not in case.wishes.engine_args


@rule(
    "gpu.nvfp4",
    "These GPUs have no FP4 units: NVFP4 weights are unpacked to 16 bit by Marlin kernels",
    "vLLM 0.19.1: weight-only FP4 where the GPU has no native support; faster only on Blackwell",
)
def _nvfp4(case: Case) -> Iterator[Hit]:
    low = (case.host.capability or "").partition(".")[0] in ("7", "8", "9")
    if case.choice.weights_format == "nvfp4" and low and not case.host.amd:
        yield Hit(
            "info",
            observed=f"nvfp4, compute capability {case.host.capability}",
            required="compute capability 10.0 for FP4 arithmetic; here it saves 4.4 GB, no time",
        )


@rule(
    "gpu.held",
    "Something else holds memory of the GPUs",
    "vLLM may leave memory held after a crash; what it asks for has to be free when it starts",
)
def _held(case: Case) -> Iterator[Hit]:
    units = case.facts["kimi"].get("units") or {}
    ours = any(name.startswith("kimi-serve@") and units[name] == "active" for name in units)
    full = [card for card in case.cards if (card.get("memory_used_bytes") or 0) > _HELD]
    if full and not ours:
        yield Hit(
            "warning",
            observed=", ".join(
                f"GPU {card['index']}: {human(card['memory_used_bytes'])}" for card in full
            ),
            required=f"less than {human(_HELD)} in use before the engine starts",
            fix="end what `nvidia-smi` lists there; where it lists nothing, restart the machine",
        )
