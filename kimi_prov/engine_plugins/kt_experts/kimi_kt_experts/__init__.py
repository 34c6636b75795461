"""Kimi's routed experts inside vLLM's CPU backend, by a kernel of this project's or by kt-kernel.

vLLM loads `register` in each of its processes. What happens there is decided by KIMI_EXPERTS:
`native` (the default) computes the routed experts by the kernel in native/, `kt` hands them to
kt-kernel, `vllm` opens the gates of vLLM's own INT4 experts, `off` leaves vLLM as it is.
KIMI_DENSE=int8 has the dense weights computed by the own kernel too, in int8, and with them whole
decode steps; KIMI_STEP=vllm leaves these to vLLM's layers.
"""

from __future__ import annotations

import os

__version__ = "0.1.0"


def register() -> None:
    """Take a place in vLLM, which stays as it is where the experts are not to be touched."""
    from kimi_kt_experts import settings  # noqa: PLC0415 - vLLM imports this in every process

    mode = settings.mode(os.environ)
    settings.dense(os.environ)
    settings.step(os.environ)
    if mode == "off":
        return
    from kimi_kt_experts import hooks  # noqa: PLC0415 - imports vLLM

    hooks.install(mode)
