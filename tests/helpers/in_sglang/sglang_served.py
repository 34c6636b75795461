"""sglang-kt's whole server behind our gate, in its own python: only its scheduler is a stand-in.

`sglang_served.py PROGRAM KEY_FILE SOCKET MODEL PORT`. Web server, tokenizer manager and
detokenizer are sglang's. What computes on GPUs gives tokens in its place: two a step, as many as a
request wants, until it is aborted.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Any

import sglang_without_gpus  # noqa: F401
import zmq
from sglang.srt.managers import io_struct
from sglang.srt.server_args import prepare_server_args

STEP_S = 0.05
_A_STEP = 2
_FIRST_TOKEN = 300
_MAX_TOKENS = 4096


class _Request:
    def __init__(self, asked: Any) -> None:
        self.rid, self.prompt = asked.rid, list(asked.input_ids)
        self.wanted = asked.sampling_params.max_new_tokens
        self.done = 0

    def step(self, ended: dict[str, Any] | None = None) -> Any:
        """The next tokens; those of the prompt come with the first, as the detokenizer wants it."""
        more = 0 if ended else min(_A_STEP, self.wanted - self.done)
        own = [_FIRST_TOKEN + self.done + at for at in range(more)]
        ids = own if self.done else [*self.prompt, *own]
        self.done += more
        if self.done == self.wanted:
            ended = {"type": "length", "length": self.done}
        known: dict[str, Any] = {
            "rids": [self.rid],
            "http_worker_ipcs": None,
            "finished_reasons": [ended],
            "decoded_texts": [""],
            "decode_ids": [ids],
            "read_offsets": [len(self.prompt)],
            "output_ids": [own],
            "skip_special_tokens": [True],
            "spaces_between_special_tokens": [True],
            "no_stop_trim": [False],
            "prompt_tokens": [len(self.prompt)],
            "completion_tokens": [self.done],
            "cached_tokens": [1],
            "retraction_counts": [0],
            "spec_verify_ct": [0],
            "spec_accepted_tokens": [0],
        }
        whole = ("token_steps", "load", "customized_info", "cached_tokens_details", "dp_ranks")
        whole += ("time_stats", "output_hidden_states", "routed_experts", "indexer_topk")
        fields = io_struct.BatchTokenIDOutput.__dataclass_fields__
        rest = {name: None if name in whole else [[]] for name in fields}
        return io_struct.BatchTokenIDOutput(**{**rest, **known})


def scheduler(_: Any, ports: Any, *more: Any) -> None:
    """Stand where sglang starts its scheduler: requests in, tokens out."""
    context = zmq.Context()
    asked = context.socket(zmq.PULL)
    asked.connect(ports.scheduler_input_ipc_name)
    out = context.socket(zmq.PUSH)
    out.connect(ports.detokenizer_ipc_name)
    size = {"max_total_num_tokens": _MAX_TOKENS, "max_req_input_len": _MAX_TOKENS - 1}
    more[-1].send({"status": "ready", **size})
    active: dict[str, _Request] = {}
    while True:
        while asked.poll(STEP_S * 1000 if active else None):
            got = asked.recv_pyobj()
            if isinstance(got, io_struct.AbortReq):
                for rid in [rid for rid in active if rid.startswith(got.rid)]:
                    out.send_pyobj(active.pop(rid).step({"type": "abort", "message": "gone"}))
            elif isinstance(got, io_struct.TokenizedGenerateReqInput):
                active[got.rid] = _Request(got)
            else:
                active |= {one.rid: _Request(one) for one in getattr(got, "batch", ())}
            if not asked.poll(0):
                break
        for request in list(active.values()):
            out.send_pyobj(request.step())
            if request.done == request.wanted:
                del active[request.rid]


def main(program: str, key_file: str, socket: str, model: str, port: str) -> None:
    """Serve as `engine -m sglang.launch_server` does, with the flags that the plan gives."""
    sys.path.append(program)
    paths: Any = import_module("kimi_prov.contract.paths")
    # Before what takes them as defaults is imported.
    paths.MACHINE_KEY, paths.USAGE_SOCKET = key_file, socket
    machine_key: Any = import_module("kimi_prov.on_host.system.machine_key")
    launch: Any = import_module("kimi_prov.on_host.engine.launch")
    launch.guard_sglang(machine_key.read(Path(key_file)))
    # Its own processes have no use for it.
    http_server: Any = import_module("sglang.srt.entrypoints.http_server")
    words = ["--model-path", model, "--served-model-name", "kimi", "--port", port]
    words += ["--reasoning-parser", "kimi_k2", "--tool-call-parser", "kimi_k2"]
    words += ["--enable-metrics", "--device", "cpu", "--attention-backend", "triton"]
    server = prepare_server_args([*words, "--skip-server-warmup"])
    http_server.launch_server(server, run_scheduler_process_func=scheduler)


# sglang's own processes import this file as well.
if __name__ == "__main__":
    main(*sys.argv[1:])
