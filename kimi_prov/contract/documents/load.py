"""`kimi-prov/load/v1`: the load that machines are sized for or measured with."""

from __future__ import annotations

from typing import Annotated, Literal, TypedDict

from kimi_prov.contract.documents.form import Required, Rule


class Load(TypedDict, total=False):
    """A load: `check --load FILE` sizes machines for it, `bench --load FILE` measures with it.

    Written in YAML or JSON. Options of the command line take precedence. `check` ignores `bench`;
    `bench` ignores the days and the limits.
    """

    schema: Required[Literal["kimi-prov/load/v1"]]
    name: Annotated[str, Rule(min_length=1, max_length=200)]
    note: Annotated[str, Rule(max_length=2000)] | None
    users: Annotated[int, Rule(minimum=1, maximum=1000000)]
    """Requests in flight at peak."""
    tokens_per_day: Annotated[float, Rule(minimum=1, maximum=1000000000000000)]
    """Output tokens of all requests, spread evenly over the day."""
    input_tokens: Annotated[int, Rule(minimum=1, maximum=100000000)]
    """Of a typical prompt."""
    output_tokens: Annotated[int, Rule(minimum=1, maximum=100000000)]
    """Of a typical answer, reasoning included."""
    ttft_s: Annotated[float, Rule(minimum=0.001, maximum=86400)]
    """The longest time to the first token, in seconds."""
    tpot_ms: Annotated[float, Rule(minimum=0.001, maximum=3600000)]
    """The longest time between two tokens of a request, in milliseconds."""
    bench: BenchLoad


class BenchLoad(TypedDict, total=False):
    """How the load is put on a machine that serves.

    input_tokens and output_tokens are beside it.
    """

    requests: Annotated[int, Rule(minimum=1, maximum=100000)]
    """Of each load of the sweep, in each round."""
    rate_per_s: Annotated[float, Rule(minimum=0.001, maximum=100000)]
    """Requests a second, at times of a Poisson process; absent: all at once."""
    concurrency: Annotated[
        list[Annotated[int, Rule(minimum=1, maximum=10000)]],
        Rule(min_items=1, max_items=16, unique_items=True),
    ]
    """Requests in flight at most, a load for each."""
    rounds: Annotated[int, Rule(minimum=1, maximum=20)]
    """How often the sweep is run; figures are medians over the rounds."""
    warm_up: Annotated[int, Rule(minimum=0, maximum=1000)]
    """Requests before all measurements."""
    chat: bool
    """The chat endpoint instead of completions."""
    images: Annotated[int, Rule(minimum=0, maximum=16)]
    """Images of random pixels, with each request."""
    image_width: Annotated[int, Rule(minimum=16, maximum=8192)]
    """Pixels."""
    image_height: Annotated[int, Rule(minimum=16, maximum=8192)]
    """Pixels."""
