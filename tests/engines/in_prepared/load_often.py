"""Run by the python of vLLM's CPU build: loads one model ordinarily and from prepared weights.

Prints a line of JSON for each load, with what the rank then held, and two for what it answered.
"""

from __future__ import annotations

import copy
import dataclasses
import gc
import hashlib
import json
import os
import sys
from pathlib import Path

import torch
from kimi_prepared_weights import holdings
from vllm import LLM, SamplingParams
from vllm.config import set_current_vllm_config
from vllm.model_executor.model_loader import get_model_loader

PROMPTS = [[5, 9, 77, 300, 12], list(range(20, 60))]


def digest(tensor: torch.Tensor) -> str:
    data = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
    return hashlib.sha256(data).hexdigest()


def describe(model: torch.nn.Module) -> dict[str, str]:
    """The SHA-256 of every parameter, buffer and other tensor, and the numbers beside them.

    The cache of keys and values is no weight: an engine makes it after its load.
    """
    found = {f"parameter {n}": digest(t) for n, t in model.named_parameters() if t.numel()}
    found |= {f"buffer {n}": digest(t) for n, t in model.named_buffers() if t.numel()}
    found |= {f"held {h.path}": digest(h.tensor) for h in holdings.list_tensors(model)}
    found = {name: value for name, value in found.items() if not name.endswith(".kv_cache")}
    return found | {"values": json.dumps(holdings.read_values(model), sort_keys=True)}


def answer(llm: LLM) -> list[object]:
    wanted = SamplingParams(max_tokens=6, temperature=0, logprobs=5)
    outputs = llm.generate([{"prompt_token_ids": p} for p in PROMPTS], wanted, use_tqdm=False)
    return [
        [
            sorted((token, one.logprob) for token, one in step.items())
            for step in o.outputs[0].logprobs
        ]
        for o in outputs
    ]


def tell(name: str, **more: object) -> None:
    sys.stdout.write(f"\nTOLD {json.dumps({'name': name, **more})}\n")
    sys.stdout.flush()


def load(config: object, extra: dict[str, object] | None) -> torch.nn.Module:
    """Load once more with a configuration, as a worker of a new engine does."""
    config = copy.copy(config)
    config.compilation_config = copy.copy(config.compilation_config)
    config.compilation_config.static_forward_context = {}
    config.compilation_config.static_all_moe_layers = []
    form = "auto" if extra is None else "kimi_prepared"
    config.load_config = dataclasses.replace(
        config.load_config, load_format=form, model_loader_extra_config=extra or {}
    )
    with set_current_vllm_config(config):
        loader = get_model_loader(config.load_config)
        return loader.load_model(vllm_config=config, model_config=config.model_config)


def flip_byte(path: Path, where: int) -> None:
    with path.open("r+b") as file:
        file.seek(where)
        byte = file.read(1)[0]
        file.seek(where)
        file.write(bytes([byte ^ 1]))


def main() -> None:
    model, folder = sys.argv[1], Path(sys.argv[2])
    options = {"model": model, "enforce_eager": True, "max_model_len": 512, "dtype": "bfloat16"}
    options |= {"trust_remote_code": True, "disable_log_stats": True}
    llm = LLM(**options)
    config = llm.llm_engine.vllm_config
    (held,) = llm.apply_model(describe)
    tell("engine, ordinary", held=held, answers=answer(llm))
    extra = {"folder": str(folder), "manifest": "one"}
    tell("ordinary", held=describe(load(config, None)))
    tell("first", held=describe(load(config, extra)))
    (path,) = folder.glob("*.prepared")
    tell("second", held=describe(load(config, extra)), file=path.name, size=path.stat().st_size)
    flip_byte(path, path.stat().st_size // 2 // 4096 * 4096)
    tell("flipped", held=describe(load(config, extra)))
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 1000)
    tell("truncated", held=describe(load(config, extra)))
    tell("another manifest", held=describe(load(config, {**extra, "manifest": "two"})))
    tell("files", files=sorted(p.name for p in folder.iterdir()))
    del llm
    answer_by_engines(options, extra, folder)


def answer_by_engines(options: dict[str, object], extra: dict[str, object], folder: Path) -> None:
    """Two engines agree on the key, and one of other sizes of requests and threads as well."""
    more = {"max_num_seqs": 3, "max_num_batched_tokens": 700, "max_model_len": 640}
    more |= {"enable_prefix_caching": False, "disable_log_stats": False}
    for name, sizes in (("first", {}), ("prepared", {}), ("of other sizes", more)):
        if sizes:
            os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "2", "VLLM_CPU_OMP_THREADS_BIND": "0"}
        gc.collect()
        llm = LLM(
            **{**options, **sizes},
            load_format="kimi_prepared",
            model_loader_extra_config=extra,
        )
        held, answers = llm.apply_model(describe)[0], answer(llm)
        files = {
            p.name: hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.glob("*.prepared")
        }
        tell(f"engine, {name}", held=held, answers=answers, sums=files)
        del llm


if __name__ == "__main__":
    main()
