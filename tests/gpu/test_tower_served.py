"""A model that sees, on all GPUs: each has the whole vision tower, and images are shared out.

In order: each test goes on from what the one before has left.
"""

from __future__ import annotations

import base64
import itertools
import math
import re
import statistics
import time
from typing import TYPE_CHECKING, Any

import card_metrics
import engine_unit as unit
import pytest
from groups import API_PORT
from pictures import noise

from kimi_prov.on_host.endpoint import api_client

if TYPE_CHECKING:
    from conftest import Clock
    from gpu_report import Report
    from machines import Host

pytestmark = pytest.mark.gpu

TOKENS = 16
# Pixels of an edge that make one token.
TOKEN = 28
# Over many words behind the images one that rounds otherwise counts little.
TEXT = {
    "type": "text",
    "text": "Say of each of these images in turn what it shows, which colours it has, where the "
    "light comes from and how many things there are in it, and then which two are most alike.",
}
# Tokens of images across and down: more images than two GPUs have turns for alike, and none so
# small beside the others that a change of it is lost in rounding (seen with one of 5 tokens in 86).
SIZES = ((6, 4), (8, 4), (3, 9), (5, 5), (6, 6))


@pytest.fixture(scope="module")
def plan(tower_host: Host) -> dict[str, Any]:
    """The plan for the host; none is refused."""
    return unit.planned(tower_host)


@pytest.fixture(scope="module")
def door(tower_host: Host) -> tuple[str, str]:
    """A key of the opened port and the fingerprint of its certificate."""
    return tower_host.door()


@pytest.fixture(scope="module")
def seen() -> list[list[float]]:
    """What each question of `questions` made likely, for a later test to compare."""
    return []


def image(across: int, down: int, seed: int) -> dict[str, Any]:
    """A part of a message: an image of so many tokens each way."""
    data = base64.b64encode(noise(TOKEN * across, TOKEN * down, seed)).decode()
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,{data}"}}


def questions() -> list[list[dict[str, Any]]]:
    """Messages of several images; each but the first has another image in one place."""
    first = [image(*size, seed=1) for size in SIZES]
    changed = [image(*size, seed=2) for size in SIZES]
    places = range(len(SIZES))
    return [first, *([*first[:at], changed[at], *first[at + 1 :]] for at in places)]


def answer(host: Host, door: tuple[str, str], *parts: dict[str, Any]) -> dict[str, Any]:
    """The whole answer to one message, of TOKENS tokens, and how likely the question was."""
    key, pin = door
    body = {"messages": [{"role": "user", "content": [*parts, TEXT]}], "max_tokens": TOKENS}
    body |= {"min_tokens": TOKENS, "ignore_eos": True, "temperature": 0, "prompt_logprobs": 0}
    reply = api_client.request_chat(
        api_client.Endpoint(host.address, API_PORT, pin, 120), key, body
    )
    assert reply.status == 200, reply
    return reply.json()


def likelihoods(told: dict[str, Any]) -> list[float]:
    """Logarithms of how likely each token after the last image was, by all that stands before."""
    rows = [next(iter(row.values())) for row in told["prompt_logprobs"] if row]
    ends = [at for at, row in enumerate(rows) if row["decoded_token"] == "<|media_end|>"]
    return [row["logprob"] for row in rows[ends[-1] + 1 :]]


def distance(one: list[float], other: list[float]) -> float:
    """How far two answers are apart."""
    return statistics.mean(abs(a - b) for a, b in zip(one, other, strict=True))


def prompt_tokens(told: dict[str, Any]) -> int:
    """The length of the question; the answer is of the length that was asked for."""
    assert told["usage"]["completion_tokens"] == TOKENS, told["usage"]
    return int(told["usage"]["prompt_tokens"])


def test_the_plan_has_the_whole_tower_on_each_gpu(plan: dict[str, Any], report: Report) -> None:
    """The plan shares layers out over the GPUs, has the vision tower whole on each, and serves."""
    words = dict(itertools.pairwise(plan["instances"][0]["argv"]))
    report.figure(
        engine=f"{plan['engine']['name']} {plan['engine']['version']}",
        torch=plan["engine"].get("torch"),
        python=plan["engine"].get("python_version"),
        command=plan["instances"][0]["argv"][1:],
    )
    assert int(words["--tensor-parallel-size"]) > 1
    assert words["--mm-encoder-tp-mode"] == "data"


def test_apply_serves_a_model_that_sees(
    tower_host: Host, plan: dict[str, Any], report: Report
) -> None:
    """`kimi-prov apply` brings the host to a model with a vision tower, by the planned command."""
    began = time.monotonic()
    done = tower_host.apply()
    log = unit.said(tower_host, 3000)
    assert done.returncode == 0, f"{done.stdout[-3000:]}\n{done.stderr[-2000:]}\n{log[-6000:]}"
    report.figure(
        apply_s=round(time.monotonic() - began),
        first_start_s=unit.start_seconds(tower_host),
        memory_used_mib=unit.memory_used(),
    )
    report.figure(
        weights_gib={
            "plan": round(plan["memory"]["weights_bytes_per_gpu"] / 2**30, 2),
            "log": re.findall(r"Model loading took ([\d.]+) GiB", log)[-1:],
        },
        cache_tokens={
            "plan": plan["memory"]["kv_tokens_max"],
            "log": re.findall(r"cache size: ([\d,]+) tok", log)[-1:],
        },
        # How it prepares images, and by which attention the tower looks at them.
        told_of_images=sorted({*re.findall(r"\] ([^\n]*(?i:vision|multi-?modal)[^\n]*)", log)}),
    )
    assert all(mib > 1000 for mib in unit.memory_used())
    assert "--mm-encoder-tp-mode data" in tower_host.ssh("pgrep -af vllm.entrypoints")
    assert "Falling back to `--mm-encoder-tp-mode" not in log


def test_a_chat_with_an_image_is_answered_and_counted(
    served: Host, door: tuple[str, str], report: Report
) -> None:
    """A chat with an image is answered through the opened port, and the image's tokens counted."""
    text = prompt_tokens(answer(served, door))
    began = time.monotonic()
    small = prompt_tokens(answer(served, door, image(2, 2, 1)))
    first_image_s = time.monotonic() - began
    large = prompt_tokens(answer(served, door, image(8, 4, 2)))
    report.figure(
        prompt_tokens={"text": text, "image of 4": small, "image of 32": large},
        first_image_s=round(first_image_s, 2),
    )
    assert large - small == 8 * 4 - 2 * 2
    # Besides its tokens, what stands before and after them.
    assert small - text > 2 * 2


def test_several_images_are_counted_and_each_is_seen(
    served: Host, door: tuple[str, str], seen: list[list[float]], report: Report
) -> None:
    """Images of several sizes come in one chat; another one in any place changes the answer."""
    began = time.monotonic()
    several = answer(served, door, *questions()[0])
    report.figure(several_images_s=round(time.monotonic() - began, 2))
    text, one = answer(served, door), answer(served, door, image(*SIZES[0], seed=1))
    marks = prompt_tokens(one) - prompt_tokens(text) - math.prod(SIZES[0])
    tokens = sum(math.prod(size) + marks for size in SIZES)
    assert prompt_tokens(several) - prompt_tokens(text) == tokens
    seen += [likelihoods(answer(served, door, *parts)) for parts in questions()]
    again = distance(likelihoods(several), seen[0])
    changed = [distance(seen[0], other) for other in seen[1:]]
    report.figure(asked_again=round(again, 4), with_another_image=[round(d, 3) for d in changed])
    assert min(changed) > 2 * again


def test_verify_passes_with_a_tower(served: Host) -> None:
    """`kimi-prov verify` finds all as it should be."""
    unit.verified(served)


def test_a_second_apply_with_a_tower_changes_nothing(served: Host, report: Report) -> None:
    """`apply` again changes nothing and leaves the engine running."""
    report.figure(second_apply_s=unit.applied_again(served))


def test_the_metrics_tell_each_card(served: Host, report: Report) -> None:
    """The collector, in its unit, tells each card's memory and use as the driver's tool does."""
    assert card_metrics.wrong_under_load(served, report) == []


def test_the_tower_in_slices_answers_the_same(
    served: Host, door: tuple[str, str], seen: list[list[float]], clock: Clock, report: Report
) -> None:
    """With the tower cut over the GPUs instead, each question has the answer that it had."""
    assert seen, "no answer was kept"
    unit.wish(
        served,
        kimi_engine_args={"mm-encoder-tp-mode": "weights"},
        kimi_start_timeout_s=int(max(60.0, clock.left_s)),
    )
    began = time.monotonic()
    done = served.apply()
    report.figure(in_slices_apply_s=round(time.monotonic() - began))
    assert done.returncode == 0, f"{done.stdout[-2000:]}\n{unit.said(served)}"
    assert "--mm-encoder-tp-mode weights" in served.ssh("pgrep -af vllm.entrypoints")
    found = [likelihoods(answer(served, door, *parts)) for parts in questions()]
    apart = [[distance(one, other) for other in seen] for one in found]
    report.figure(
        in_slices_start_s=unit.start_seconds(served),
        distance_to_the_same=[round(row[at], 4) for at, row in enumerate(apart)],
        distance_to_the_next=[
            round(min(d for place, d in enumerate(row) if place != at), 4)
            for at, row in enumerate(apart)
        ],
    )
    assert [min(range(len(row)), key=row.__getitem__) for row in apart] == [*range(len(apart))]


def test_destroy_of_the_tower_frees_the_gpus(served: Host, report: Report) -> None:
    """`kimi-prov destroy` leaves no unit, file or user, and no memory of a card in use."""
    report.figure(destroy_s=unit.destroyed(served), memory_after_mib=unit.memory_used())
