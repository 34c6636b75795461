r"""Prepared weights: a rank's own slices after a load, kept in a file and copied back later.

vLLM loads `register` in each of its processes. It adds the load format `kimi_prepared`, which does
nothing unless a command line names it:

    vllm serve MODEL --load-format kimi_prepared \
        --model-loader-extra-config '{"folder": "/srv/kimi/prepared", "manifest": "SHA-256"}'

The first start loads in the ordinary way (`load_format` of the extra config, by default `auto`) and
writes. A later start with the same key copies the file. A file that is damaged, or that another
layout wrote, is put aside, and the ordinary way is taken.
"""

from __future__ import annotations

__version__ = "0.1.0"
LOAD_FORMAT = "kimi_prepared"


def register() -> None:
    """Add the load format to vLLM."""
    from kimi_prepared_weights import loader  # noqa: PLC0415 - imports vLLM

    loader.register()
