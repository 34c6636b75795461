"""Each check of the full suite passes on a whole model and fails on a damaged one, served by vLLM.

The model is a stand-in: of Kimi K2.5's form, tiny, and trained here on the suite's own questions.
What passes shows that a check can be passed through a real engine, its template, tokenizer, parsers
and vision tower; how real weights answer it does not show. Not run on processors: speculative
decoding, which vLLM has no draft for there. A prefix cache is not to be had there with this
attention, so that its check is seen to fail alone. Both pass on scripted answers, in
tests/unit/on_host/acceptance.
"""

from __future__ import annotations

import json
import shlex
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trained
from full_suite import full, restart
from machines import make_lab

from kimi_prov.lab import model
from kimi_prov.on_host.acceptance import catalogue, needles

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from machines import Host

pytestmark = [pytest.mark.lab, pytest.mark.slow]

MODEL = "kimi-k2.5-lab"
WHOLE, WRONG = f"/opt/models/{MODEL}", f"/opt/models/{MODEL}-wrong"
# Not to be had on processors.
NOT_RUN = {"speculative-decoding", "prefix-cache"}
NEEDLES = {catalogue.needle_name(length) for length in needles.lengths(model.SEEING.context)}
ASKED = {*catalogue.NAMES, *NEEDLES} - {catalogue.NEEDLES}
# Writes zeros over tensors of a checkpoint, by their names.
ZERO = """
import json, sys
folder, *names = sys.argv[1:]
held = json.load(open(folder + "/model.safetensors.index.json"))["weight_map"]
for name in names:
    with open(folder + "/" + held[name], "r+b") as file:
        length = int.from_bytes(file.read(8), "little")
        begin, end = json.loads(file.read(length))[name]["data_offsets"]
        file.seek(8 + length + begin)
        file.write(bytes(end - begin))
"""
REPLACE = """
import pathlib, sys
file, old, new = sys.argv[1:]
text = pathlib.Path(file).read_text()
assert text.count(old) == 1, text
pathlib.Path(file).write_text(text.replace(old, new))
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The whole model, and one that went on to learn wrong answers."""
    whole = trained.train(tmp_path_factory.mktemp("whole"))
    wrong = trained.train(tmp_path_factory.mktemp("wrong"), *trained.WRONG, after=whole)
    return {WHOLE: whole, WRONG: wrong}


@pytest.fixture(scope="module")
def seer(models: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A host that serves the whole model."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("KIMI_PROV_CATALOG", str(Path(__file__).parent / "catalogue"))
        lab = make_lab(
            tmp_path_factory.mktemp("trained") / "inv",
            "10.93.103",
            nodes=["seer"],
            settings={
                "lab_files": [{"src": str(src), "dest": dest} for dest, src in models.items()]
            },
            kimi_model=MODEL,
            kimi_weights_source=f"file://{WHOLE}",
            kimi_allowed_networks=["{{ lab_gateway }}/32", "{{ lab_gateway6 }}/128"],
        )
        lab.up()
        try:
            applied(lab.hosts["seer"])
            yield lab.hosts["seer"]
        finally:
            lab.down()


def applied(host: Host, **settings: object) -> None:
    done = host.apply("-e", json.dumps(settings))
    assert done.returncode == 0, done.stdout + done.stderr


def served(host: Host) -> str:
    """The folder that the engine reads."""
    return str(json.loads(host.ssh("cat /etc/kimi/plan.json"))["model"]["serve_dir"])


def statuses(document: dict[str, Any]) -> dict[str, str]:
    """The status of each check of the full suite that was not left out."""
    return {
        row["name"]: row["status"]
        for row in document["checks"]
        if row["name"] in ASKED and row["detail"] != catalogue.LEFT_OUT
    }


def failed(document: dict[str, Any]) -> set[str]:
    return {name for name, status in statuses(document).items() if status == "fail"}


def test_the_whole_model_passes_every_check_that_can_be_run(seer: Host) -> None:
    document = full(seer, 0)
    found = statuses(document)
    assert found.keys() == ASKED
    assert {name for name, status in found.items() if status != "ok"} == NOT_RUN, document
    assert {found[name] for name in NOT_RUN} == {"skip"}


def test_no_report_takes_it_for_real_weights(seer: Host) -> None:
    document = full(seer, 0, "--only", "facts")
    assert any("trained on the suite's own questions" in told for told in document["stand_ins"])
    assert document["unproven"]


@contextmanager
def damaged(host: Host, *commands: str) -> Iterator[None]:
    """Serve what shell commands make of the folder that the engine reads; then put it back."""
    host.ssh(f"cp -a {served(host)} /root/whole")
    try:
        for command in commands:
            host.ssh(command)
        restart(host)
        yield
    finally:
        host.ssh(f"cp -a /root/whole/. {served(host)} && rm -r /root/whole")


def zero(folder: str, *names: str) -> str:
    """A command that writes zeros over tensors."""
    return program(ZERO, folder, *names)


def replace(file: str, old: str, new: str) -> str:
    """A command that replaces a text that stands once in a file."""
    return program(REPLACE, file, old, new)


def program(source: str, *words: str) -> str:
    return shlex.join(["python3", "-c", source, *words])


def projector_lost(folder: str) -> list[str]:
    return [zero(folder, "mm_projector.proj.2.weight")]


def experts_lost(folder: str) -> list[str]:
    """A hole in a shard: what the experts of the last layer give is zero."""
    experts = range(model.SEEING.experts)
    prefix = "language_model.model.layers.1.mlp.experts"
    return [zero(folder, *(f"{prefix}.{number}.down_proj.weight" for number in experts))]


def results_lost(folder: str) -> list[str]:
    """A template by which what a tool gave does not reach the model."""
    old = "{{ message.tool_call_id }}\n{{ text(message.content) }}"
    return [replace(f"{folder}/chat_template.jinja", old, "{{ message.tool_call_id }}")]


def think_cut(folder: str) -> list[str]:
    """A tokenizer that does not know the mark of a thought as one token."""
    old, new = '"content": "<think>"', '"content": "<thinq>"'
    return [replace(f"{folder}/tokenizer.json", old, new)]


def wrong_answers(folder: str) -> list[str]:
    return [f"cp {WRONG}/*.safetensors {folder}"]


# What is damaged, the checks that are asked then (all without any), and those that fail.
DAMAGES: dict[Callable[[str], list[str]], tuple[set[str], set[str]]] = {
    projector_lost: (set(), {"image"}),
    results_lost: (set(), {"tool-rounds", "chat-template"}),
    wrong_answers: (
        set(),
        {
            "facts",
            "problems",
            "structured-output",
            "instant",
            "parallel-requests",
            "code",
            *NEEDLES,
        },
    ),
    # Without ends: an answer of such a model goes on up to the limit.
    think_cut: ({"special-tokens"}, {"special-tokens"}),
    experts_lost: ({"facts", "instant", "tool-single"}, {"facts", "instant", "tool-single"}),
}


@pytest.mark.parametrize("damage", DAMAGES, ids=[damage.__name__ for damage in DAMAGES])
def test_a_damaged_copy_fails_the_checks_that_look_for_it(
    seer: Host, damage: Callable[[str], list[str]]
) -> None:
    asked, expected = DAMAGES[damage]
    with damaged(seer, *damage(served(seer))):
        document = full(seer, 1, *(word for name in sorted(asked) for word in ("--only", name)))
    assert failed(document) == expected, document


# Settings of a site, and the checks that fail with them: the engine takes each without a word.
SETTINGS: list[tuple[dict[str, object], set[str]]] = [
    (
        {"reasoning-parser": "deepseek_r1", "enable-prefix-caching": True},
        {"tool-in-reasoning", "prefix-cache"},
    ),
    (
        {"tool-call-parser": "hermes"},
        {"tool-single", "tool-parallel", "tool-in-reasoning", "tool-rounds"},
    ),
]


@pytest.mark.parametrize(("flags", "expected"), SETTINGS, ids=["reasoning", "tools"])
def test_flags_that_do_not_fit_the_model_are_found(
    seer: Host, flags: dict[str, object], expected: set[str]
) -> None:
    applied(seer, kimi_engine_args=flags)
    assert failed(full(seer, 1)) == expected


def test_every_check_but_of_what_processors_cannot_is_seen_to_fail() -> None:
    seen = {name for _, expected in [*DAMAGES.values(), *SETTINGS] for name in expected}
    assert seen == ASKED - {"speculative-decoding"}
