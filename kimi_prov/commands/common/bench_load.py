"""The load of a bench: options over a profile or a load file, and the file sent to machines.

Decides: what load a bench puts on a machine, and what it refuses (options and profiles).
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kimi_prov.commands.common.option_types import FiniteRange, ImageSize, Numbers
from kimi_prov.commands.common.options import PATH, add_options
from kimi_prov.errors import UserError
from kimi_prov.packaging import resources

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kimi_prov.acceptance.bench_prompts import Prompts

_PROFILES = "inventories/loads"
_OPTIONS = {
    "requests": "--requests",
    "rate_per_s": "--rate",
    "concurrency": "--concurrency",
    "input_tokens": "--prompt-tokens",
    "output_tokens": "--answer-tokens",
    "rounds": "--rounds",
    "warm_up": "--warm-up",
    "chat": "--chat",
    "images": "--images",
}


# Gives a command the options of a load.
add_load_options = add_options(
    click.option(
        "--profile",
        metavar="NAME",
        help="The load of a shipped inventory, by its name; options win over it.",
    ),
    click.option(
        "--load",
        "load_file",
        type=PATH,
        metavar="FILE",
        help="The same from a file of the schema kimi-prov/load/v1; options win over it.",
    ),
    click.option(
        "--requests",
        type=click.IntRange(1, 100_000),
        metavar="N",
        help="Requests of each load.  [default: two for each at once, 3 for one]",
    ),
    click.option(
        "--rate",
        "rate_per_s",
        type=FiniteRange(0.001, 100_000),
        metavar="R",
        help="Requests a second.  [default: all at once]",
    ),
    click.option(
        "--concurrency",
        type=Numbers(),
        metavar="N[,N...]",
        help="Requests in flight at most, a load for each.  [default: 1, 4, 16, ... to "
        "kimi_concurrency; with --rate no bound]",
    ),
    click.option(
        "--prompt-tokens",
        "input_tokens",
        type=click.IntRange(1, 10_000_000),
        metavar="N",
        help="Tokens of each prompt.  [default: as predicted]",
    ),
    click.option(
        "--answer-tokens",
        "output_tokens",
        type=click.IntRange(1, 10_000_000),
        metavar="N",
        help="Tokens of each answer.  [default: as predicted, or as in the file]",
    ),
    click.option(
        "--rounds",
        type=click.IntRange(1, 20),
        metavar="N",
        help="Number of rounds: medians, and their spread.  [default: 1]",
    ),
    click.option(
        "--warm-up",
        type=click.IntRange(0, 1000),
        metavar="N",
        help="Requests before the measurement.  [default: 1]",
    ),
    click.option(
        "--chat/--completions",
        default=None,
        help="The endpoint.  [default: completions; with images chat]",
    ),
    click.option(
        "--images",
        type=click.IntRange(0, 16),
        metavar="N",
        help="Images of random pixels with each request; uses the chat endpoint.",
    ),
    click.option(
        "--image-size",
        type=ImageSize(),
        metavar="WxH",
        help="Size of these images in pixels.  [default: 1024x1024]",
    ),
    click.option(
        "--prompts",
        type=PATH,
        metavar="FILE",
        help="Prompts in ShareGPT's or VisionArena's form, instead of random words.",
    ),
)


@dataclass(frozen=True)
class BenchLoad:
    """A load in the machine's form, and the prompts of a file."""

    request: Mapping[str, Any]
    prompts: Prompts | None = None

    @contextlib.contextmanager
    def file(self) -> Iterator[Path]:
        """Write the load to a file that only this user can read, and remove it at the end."""
        with tempfile.TemporaryDirectory(prefix="kimi-prov-bench-") as folder:
            path = Path(folder) / "load.json"
            rows = list(self.prompts.rows) if self.prompts else []
            path.write_text(json.dumps({"load": self.request, "prompts": rows}), encoding="utf-8")
            yield path


def list_profiles() -> list[str]:
    """Return the names of the bundled loads: those of the shipped inventories."""
    return sorted(path.stem for path in (resources.find_root() / _PROFILES).glob("*.yml"))


def parse_load(options: Mapping[str, Any]) -> BenchLoad:
    """Sort the options of a load. Raises UserError for an invalid load and for conflicts."""
    given = {name: value for name, value in options.items() if value is not None}
    profile, load_file = given.pop("profile", None), given.pop("load_file", None)
    prompts_file, size = given.pop("prompts", None), given.pop("image_size", None)
    if profile and load_file:
        raise UserError("--profile and --load exclude each other", fix="give one of them")
    base = _read_profile(profile) if profile else _read_file(load_file) if load_file else {}
    request = {**base, **given, "profile": profile}
    if size:
        request["image_width"], request["image_height"] = size
        if not request.get("images"):
            raise UserError("--image-size needs --images", fix="give --images N with it")
    if given.get("chat") is False and request.get("images") and prompts_file is None:
        raise UserError(
            "--completions and --images exclude each other: only a chat has images",
            fix="give --images 0 with --completions",
        )
    if prompts_file is None:
        return BenchLoad(request)
    for name in ("images", "input_tokens"):
        if given.get(name):
            raise UserError(
                f"--prompts and {_OPTIONS[name]} exclude each other: the file has the prompts",
                fix=f"leave out {_OPTIONS[name]}",
            )
        request.pop(name, None)
    from kimi_prov.acceptance import bench_prompts  # noqa: PLC0415

    prompts = bench_prompts.read_prompts(prompts_file)
    request |= {"form": prompts.form, "prompts": len(prompts.rows), "pictures": prompts.pictures}
    if prompts.left_out:
        request["unanswered"] = prompts.left_out
    return BenchLoad(request, prompts)


def _read_profile(name: str) -> dict[str, Any]:
    if name not in list_profiles():
        raise UserError(
            f"--profile: there is no load {name!r}", fix=f"one of: {', '.join(list_profiles())}"
        )
    return _read_file(resources.find_root() / _PROFILES / f"{name}.yml")


def _read_file(path: Path) -> dict[str, Any]:
    from kimi_prov.sizing import load_file  # noqa: PLC0415

    return load_file.read_bench(path)
