"""Runs inside an engine's environment: prompt logprobs of a model, as one line of JSON."""

import json
import os
import sys

os.environ |= {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
os.environ |= {"TORCHDYNAMO_DISABLE": "1", "HF_HUB_OFFLINE": "1"}


def main() -> None:
    """Ask for four prompts of 1 to 200 tokens."""
    from vllm import LLM, SamplingParams  # noqa: PLC0415 - after the environment

    engine = LLM(sys.argv[1], enforce_eager=True, dtype="bfloat16", max_model_len=512)
    prompts = [
        {"prompt_token_ids": [(7 * i * i + 13 * i + 31 * n) % 1900 + 20 for i in range(length)]}
        for n, length in enumerate((1, 5, 40, 200))
    ]
    asked = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=1)
    found = []
    for answer in engine.generate(prompts, asked, use_tqdm=False):
        pairs = zip(answer.prompt_token_ids, answer.prompt_logprobs, strict=True)
        found += [row[token].logprob for token, row in list(pairs)[1:]]
    # The engine's log is on the same stream, also after this.
    print("\nLOGPROBS " + json.dumps(found), flush=True)  # noqa: T201 - what it is for


if __name__ == "__main__":
    main()
