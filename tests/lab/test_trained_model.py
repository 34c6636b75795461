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
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
import trained
from full_suite import full, restart
from machines import make_lab

from kimi_prov.lab import model_shapes
from kimi_prov.on_host.acceptance import catalogue, needles

if TYPE_CHECKING:
    from collections.abc import Iterator

    from machines import Host

pytestmark = [pytest.mark.lab, pytest.mark.slow]

MODEL = "kimi-k2.5-lab"
WHOLE, WRONG = f"/opt/models/{MODEL}", f"/opt/models/{MODEL}-wrong"
PLAN = "/etc/kimi/plan.json"
UNIT = "/etc/systemd/system/kimi-serve@0.service.d/10-plan.conf"
# The folder that the engine reads, by a link that the fixture makes.
SERVED = "/root/served"
# Not to be had on processors.
NOT_RUN = {"speculative-decoding", "prefix-cache"}
LENGTHS = needles.list_lengths(model_shapes.SEEING.context)
NEEDLES = {catalogue.name_needle(length) for length in LENGTHS}
ASKED = {*catalogue.NAMES, *NEEDLES} - {catalogue.NEEDLES}
# Writes zeros over tensors of a checkpoint, by their names.
ZERO = """
import json, sys
*names, folder = sys.argv[1:]
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
old, new, file = sys.argv[1:]
text = pathlib.Path(file).read_text()
assert text.count(old) == 1, text
pathlib.Path(file).write_text(text.replace(old, new))
"""
PLAN_CACHE = f"""
import json, pathlib
plan = json.loads(pathlib.Path("{PLAN}").read_text())
plan["instances"][0]["argv"].append("--enable-prefix-caching")
pathlib.Path("{PLAN}").write_text(json.dumps(plan))
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
            host = lab.hosts["seer"]
            done = host.apply()
            assert done.returncode == 0, done.stdout + done.stderr
            served = json.loads(host.ssh(f"cat {PLAN}"))["model"]["serve_dir"]
            host.ssh(f"ln -s {served} {SERVED}")
            yield host
        finally:
            lab.down()


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


@dataclass(frozen=True)
class Damage:
    """What is changed on the host, as shell commands, and the checks that look for it."""

    commands: tuple[str, ...]
    checks: frozenset[str]


def program(source: str, *words: str) -> str:
    return shlex.join(["python3", "-c", source, *words])


def zero(*names: str) -> str:
    """A command that writes zeros over tensors."""
    return f"{program(ZERO, *names)} {SERVED}"


def replace(file: str, old: str, new: str) -> str:
    """A command that replaces a text that stands once in a file."""
    return f"{program(REPLACE, old, new)} {file}"


def flag(name: str, fits: str, does_not: str) -> str:
    """A command that changes what a flag says, as an editor of the unit would."""
    words = f"--{name} {fits}", f"--{name} {does_not}"
    return f"{replace(UNIT, *words)} && systemctl daemon-reload"


PROJECTOR_LOST = Damage((zero("mm_projector.proj.2.weight"),), frozenset({"image"}))
# The template of a revision by which what a tool gave does not reach the model.
RESULTS_LOST = Damage(
    (
        replace(
            f"{SERVED}/chat_template.jinja",
            "{{ message.tool_call_id }}\n{{ text(message.content) }}",
            "{{ message.tool_call_id }}",
        ),
    ),
    frozenset({"tool-rounds", "chat-template"}),
)
# This parser knows no call that begins inside a thought, and takes an answer without one for one.
OTHER_REASONING = Damage(
    (flag("reasoning-parser", "kimi_k2", "deepseek_r1"),),
    frozenset({"tool-in-reasoning", "instant", "structured-output", "parallel-requests"}),
)
# The engine gives the cache up for this attention on processors, whatever it is told.
NO_CACHE = Damage((program(PLAN_CACHE),), frozenset({"prefix-cache"}))
WRONG_ANSWERS = Damage(
    (f"cp {WRONG}/*.safetensors {SERVED}",),
    frozenset(
        {
            *("facts", "problems", "structured-output", "instant", "parallel-requests", "code"),
            *NEEDLES,
        }
    ),
)
OTHER_TOOLS = Damage(
    (flag("tool-call-parser", "kimi_k2", "hermes"),),
    frozenset({"tool-single", "tool-parallel", "tool-in-reasoning", "tool-rounds"}),
)
# A tokenizer that does not know the mark of a thought as one token.
THINK_CUT = Damage(
    (replace(f"{SERVED}/tokenizer.json", '"content": "<think>"', '"content": "<thinq>"'),),
    frozenset({"special-tokens"}),
)
# A hole in a shard: the attention of the first layer gives nothing.
ATTENTION_LOST = Damage(
    (zero("language_model.model.layers.0.self_attn.o_proj.weight"),), frozenset({"instant"})
)
# Each copy is one start of the engine; what its damages look like is told apart by their checks.
# Without end is what a model with a hole answers: of it only what has a low limit is asked.
COPIES = {
    "lost": ((PROJECTOR_LOST, RESULTS_LOST, OTHER_REASONING, NO_CACHE), ()),
    "wrong": ((WRONG_ANSWERS, OTHER_TOOLS), ()),
    "broken": ((THINK_CUT, ATTENTION_LOST), ("special-tokens", "instant")),
}


@contextmanager
def damaged(host: Host, *damages: Damage) -> Iterator[None]:
    """Serve a damaged copy; then put everything back, to be read at the next start."""
    host.ssh(f"tar -cf /root/kept.tar -P $(readlink -f {SERVED}) {UNIT} {PLAN}")
    try:
        for damage in damages:
            for command in damage.commands:
                host.ssh(command)
        restart(host)
        yield
    finally:
        host.ssh("tar -xf /root/kept.tar -P && rm /root/kept.tar && systemctl daemon-reload")


@pytest.mark.parametrize("name", COPIES)
def test_a_damaged_copy_fails_the_checks_that_look_for_its_damage(seer: Host, name: str) -> None:
    damages, asked = COPIES[name]
    with damaged(seer, *damages):
        document = full(seer, 1, *(word for check in asked for word in ("--only", check)))
    expected = {check for damage in damages for check in damage.checks}
    assert failed(document) == expected, document


def test_put_back_it_passes_again(seer: Host) -> None:
    restart(seer)
    assert failed(full(seer, 0, "--skip", "code", "--skip", "needles")) == set()


def test_every_check_but_of_what_processors_cannot_is_seen_to_fail() -> None:
    damages = [damage for row, _ in COPIES.values() for damage in row]
    seen = {check for damage in damages for check in damage.checks}
    assert seen == ASKED - {"speculative-decoding"}
