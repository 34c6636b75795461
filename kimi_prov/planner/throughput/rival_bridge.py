"""Asks aiconfigurator for its estimates; run by the interpreter that it is installed for.

Questions come as a JSON list on standard input, each with `row`, `model`, `weights` and `cache`
(formats; null: as published), `system`, `backend`, `tensor_parallel`, `batch`, `input_tokens` and
`output_tokens`. Each answer is written at once, as a line of JSON on standard output: first `name`
(or `missing`, where aiconfigurator is not installed), then for each question its `row` with
`tpot_ms`, `ttft_ms` and `mode`, or with `why` there is no answer. Only the program's own interface
is called. This file imports nothing of kimi_prov, which the other interpreter does not have.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import json
import os
import sys
from typing import Any

# The default mode reads only measured kernels; HYBRID, which it advises for new models, fills gaps.
_MODES = ("SILICON", "HYBRID")
_MAX_LENGTH = 300


def main() -> int:
    """Answer the questions on standard input. Returns 0, or 1 where the program is missing."""
    # The program's own output is kept out of the answers.
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as answers:
        os.dup2(2, 1)

        def say(**answer: object) -> None:
            answers.write(json.dumps(answer) + "\n")
            answers.flush()

        questions = json.load(sys.stdin)
        try:
            estimate = importlib.import_module("aiconfigurator.cli.api").cli_estimate
            version = importlib.metadata.version("aiconfigurator")
        except ImportError as error:
            say(missing=str(error)[:_MAX_LENGTH])
            return 1
        say(name=f"aiconfigurator {version}")
        for question in questions:
            say(row=question["row"], **_answer_question(estimate, question))
    return 0


def _answer_question(estimate: Any, question: dict[str, Any]) -> dict[str, object]:  # noqa: ANN401
    """Ask in each mode until one answers; otherwise return the reason of the last."""
    reason = ""
    for mode in _MODES:
        try:
            estimated = estimate(
                question["model"],
                question["system"],
                backend_name=question["backend"],
                database_mode=mode,
                tp_size=question["tensor_parallel"],
                moe_tp_size=question["tensor_parallel"],
                moe_ep_size=1,
                gemm_quant_mode=question["weights"],
                moe_quant_mode=question["weights"],
                kvcache_quant_mode=question["cache"],
                batch_size=question["batch"],
                isl=question["input_tokens"],
                osl=question["output_tokens"],
            )
        except (Exception, SystemExit) as error:  # noqa: BLE001  (whatever it raises is an answer)
            reason = " ".join(f"{type(error).__name__}: {error}".split())[:_MAX_LENGTH]
            continue
        return {"tpot_ms": float(estimated.tpot), "ttft_ms": float(estimated.ttft), "mode": mode}
    return {"why": reason}


if __name__ == "__main__":
    sys.exit(main())
