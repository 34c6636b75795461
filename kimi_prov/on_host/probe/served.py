"""What the plan on the machine chose, for the plan that comes next."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Literal, cast

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kimi_prov.contract.documents.facts.kimi import ServedFacts

_REQUESTS, _ENGINE = "--max-num-seqs", ("name", "version")
# Above any number of GPUs, engines and requests at once.
_MAX_COUNT = 1 << 20


def read_served(document: object) -> ServedFacts | None:
    """Read what a plan chose, each value held to its type; None where it is no plan."""
    model, engine, parallel, memory, speed, prepared = (
        _read_section(document, name)
        for name in ("model", "engine", "parallel", "memory", "throughput", "prepared_weights")
    )
    instances = document.get("instances") if isinstance(document, dict) else None
    experts = _read_section(document, "experts")
    by, nodes = _read_word(experts.get("by")), experts.get("nodes")
    name, kind, version = map(_read_word, (model.get("name"), *map(engine.get, _ENGINE)))
    if not (name and kind and version and isinstance(instances, list) and instances):
        return None
    share = memory.get("gpu_utilization")
    return {
        "model": name,
        "engine": kind,
        "version": version,
        "kv_dtype": _read_word(model.get("kv_dtype")),
        "tensor": _read_count(parallel.get("tensor")),
        "pipeline": _read_count(parallel.get("pipeline")),
        "data": _read_count(parallel.get("data")),
        "decode_context": _read_count(parallel.get("decode_context")),
        "instances": len(instances),
        "concurrency": _read_count(speed.get("concurrency")),
        "requests": _read_requests(instances[0]),
        "prepared": prepared.get("enabled") is True,
        "gpu_share": share if isinstance(share, float) and 0 < share <= 1 else None,
        "experts": "kt" if by == "kt-kernel" else by,
        "nodes": _read_count(len(nodes)) if isinstance(nodes, list) else None,
        "ram_pages": _read_pages(_read_section(document, "ram_disk")),
    }


def _read_pages(ram_disk: Mapping[str, object]) -> Literal["small", "huge"] | None:
    if ram_disk.get("enabled") is not True:
        return None
    return "huge" if "huge=always" in str(ram_disk.get("options")).split(",") else "small"


def _read_section(document: object, name: str) -> Mapping[str, object]:
    section = document.get(name) if isinstance(document, dict) else None
    return section if isinstance(section, dict) else {}


def _read_word(value: object) -> str | None:
    """Return a name as the catalogue has them, None for what cannot be one."""
    is_word = isinstance(value, str) and re.fullmatch(r"[a-z0-9][a-z0-9._-]{0,99}", value)
    return cast("str", value) if is_word else None


def _read_count(value: object) -> int | None:
    is_count = isinstance(value, int) and not isinstance(value, bool) and 0 < value < _MAX_COUNT
    return cast("int", value) if is_count else None


def _read_requests(instance: object) -> int | None:
    """Return the value of vLLM's flag for requests at once."""
    argv = instance.get("argv") if isinstance(instance, dict) else None
    words: Sequence[object] = argv if isinstance(argv, list) else []
    at = words.index(_REQUESTS) + 1 if _REQUESTS in words else len(words)
    text = str(words[at]) if at < len(words) else ""
    return _read_count(int(text)) if re.fullmatch(r"[0-9]{1,9}", text) else None
