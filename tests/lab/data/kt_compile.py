"""Compile the attention kernel as the server does at its first start; no GPU is there for it."""

import sys

import torch
from flashinfer.mla import gen_batch_mla_module

kernel = gen_batch_mla_module(
    "fa2", torch.bfloat16, torch.bfloat16, torch.bfloat16, torch.int32, 512, 64, False
)
kernel.build(verbose=False)
sys.stdout.write(f"compiled into {kernel.jit_library_path}\n")
