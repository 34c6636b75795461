"""Kimi's routed experts by kt-kernel inside vLLM's CPU backend.

vLLM loads `register` in each of its processes. What happens there is decided by KIMI_EXPERTS:
`kt` (the default) hands the routed experts to kt-kernel, `vllm` opens the gates of vLLM's own
INT4 experts, `off` leaves vLLM as it is.
"""

from __future__ import annotations

import os

__version__ = "0.1.0"


def register() -> None:
    """Take a place in vLLM, which stays as it is where the experts are not to be touched."""
    from kimi_kt_experts import settings  # noqa: PLC0415 - vLLM imports this in every process

    mode = settings.mode(os.environ)
    if mode == "off":
        return
    from kimi_kt_experts import hooks  # noqa: PLC0415 - imports vLLM

    hooks.install(mode)
