r"""Prepared weights: a rank's own slices after a load, kept in a file and copied back later.

vLLM loads `register` in each of its processes. It adds the load format `kimi_prepared`, which does
nothing unless a command line names it:

    vllm serve MODEL --load-format kimi_prepared \
        --model-loader-extra-config '{"folder": "/srv/kimi/prepared", "manifest": "SHA-256"}'

The first start loads in the ordinary way (`load_format` of the extra config, by default `auto`) and
writes. A later start with the same key copies the file. A file that is damaged, or that another
layout wrote, is put aside, and the ordinary way is taken.

Resident weights: `python -m kimi_prepared_weights.hold` is `vllm preload` for Kimi's INT4 too, and
an engine maps what it holds with `--load-format ipc_cache`.
"""

from __future__ import annotations

from importlib.util import find_spec

__version__ = "0.1.0"
LOAD_FORMAT = "kimi_prepared"
# vLLM 0.32.0 and later have it.
_WEIGHT_CACHE = "vllm.model_executor.model_loader.weight_cache"


def register() -> None:
    """Add the load format to vLLM, and to its `ipc_cache` what that lacks for Kimi's INT4."""
    from kimi_prepared_weights import loader  # noqa: PLC0415 - imports vLLM

    loader.register()
    if find_spec(_WEIGHT_CACHE) is not None:
        from kimi_prepared_weights import resident  # noqa: PLC0415

        resident.register()
