"""Every check of the full suite is seen to pass, to fail, and not to run, against a scripted model.

The model and its engine are scripts over a real port with TLS; systemd is a stand-in. What a real
engine makes of a made model is in tests/lab/test_full_suite_served.py.
"""

from __future__ import annotations

import hashlib
import io
import json
import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from kimi_prov.acceptance import suite
from kimi_prov.contract.errors import HostError
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.acceptance import catalogue, knowledge, needles, output_forms, run
from kimi_prov.on_host.endpoint import checks

if TYPE_CHECKING:
    from scripted_machine import Served

# Each fault of a model, engine or tokenizer: the check that finds it, and words of what it says.
FAULTS = [
    ("ignorant", "facts", "11 of 12 facts right", "Ottawa", "Toronto"),
    ("names-all", "facts", "11 of 12 facts right", "directory", "directory, date, or user"),
    ("names-all", "image", "2 of 5 images recognised", "red", "red, green or blue"),
    ("compares", "tool-rounds", "not what the tools gave", "Oslo", "Rome is warmer than Oslo."),
    ("few-results", "code", "2 of 3", "5 results", "0: []"),
    ("ones", "code", "2 of 3", "true", "1"),
    ("dull", "problems", "4 of 6 problems solved", "9", "I cannot say."),
    ("blind", "image", "2 of 5 images recognised", "green", "red"),
    ("wrong-tool", "tool-single", "questions with the right call", "get_temperature", "get_time"),
    ("broken-arguments", "tool-single", "1 of 4", "get_temperature", "{city: "),
    ("deep-arguments", "tool-single", "1 of 4", "get_temperature", '{"city":{"city":'),
    ("deep-answer", "facts", "0 of 12", "Ag", "HTTP 200: [[["),
    ("no-object", "parallel-requests", "8 of 16", "basalt", "no JSON object: [1]"),
    ("null-piece", "parallel-requests", "8 of 16", "basalt", "no JSON object: null"),
    ("deep-piece", "parallel-requests", "8 of 16", "basalt", "no JSON object: [[["),
    ("calls-for-nothing", "tool-single", "3 of 4", "no call", "get_temperature"),
    ("one-call", "tool-parallel", "not the three calls", "Lima", "Oslo"),
    ("same-ids", "tool-parallel", "without an id of their own", "three different ids", "c0, c0"),
    ("lost-call", "tool-in-reasoning", "0 of 6", "get_temperature", "lost in the reasoning"),
    ("lost-in-stream", "tool-in-reasoning", "3 of 6", "get_temperature", "lost in the reasoning"),
    ("ignores-results", "tool-rounds", "not what the tools gave", "Oslo", "Rome"),
    ("guesses", "tool-rounds", "without both calls", "calls for Oslo and Rome", "none"),
    ("asks-forever", "tool-rounds", "no answer after 6 rounds", "Oslo", "get_temperature"),
    ("no-grammar", "structured-output", "0 of 2", '"city": "Lima"', "Sure!"),
    ("wrong-form", "structured-output", "0 of 2", '"warm": true', '"warm": false'),
    ("always-thinks", "instant", "it thought", "no reasoning", "Let me think."),
    ("marks-in-instant", "instant", "marks of thinking", "no reasoning", "</think>42"),
    ("mixes", "parallel-requests", "answers got mixed", "amber", "basalt"),
    ("deaf", "parallel-requests", "15 of 16", "ember", "something"),
    ("wrong-code", "code", "2 of 3", '"IV"', "IIII"),
    ("endless-code", "code", "2 of 3", "results", "wrote more than 65536 bytes"),
    ("steering-code", "code", "2 of 3", "results", "exit status 7; \\x1b]0;t\\x07MARK"),
    ("no-code", "code", "0 of 3", "a block of Python code", "I would rather not."),
    ("split-think", "special-tokens", "3 of 4", "token 1814", "tokens 27, 963, 29"),
    ("marks-in-answers", "special-tokens", "marks of special tokens", "<|im_", "Hello.<|im_end|>"),
    ("other-template", "chat-template", "writes a chat differently", "<think>", "<|im_end|>"),
    ("no-drafts", "speculative-decoding", "guessed nothing", "drafts_total", "0.0"),
    ("bad-drafts", "speculative-decoding", "no guess", "accepted_tokens_total", "0 of 30"),
    ("no-cache", "prefix-cache", "not found in the prefix cache", "hits_total", "0 of"),
    ("forgetful", "needles-22k", "1 of 3 words found", "lantern", "copper"),
    ("truncates", "needles-22k", "were intended", "tokens", "9000 tokens"),
    ("short-context", "needles-22k", "no answer", "an answer", "HTTP 400"),
]


def test_a_good_model_passes_every_check(served: Served) -> None:
    rows = served.rows()
    assert {name: row["status"] for name, row in rows.items()} == dict.fromkeys(rows, "ok"), rows
    lengths = [catalogue.name_needle(n) for n in needles.list_lengths(24_000)]
    assert [*catalogue.PORT[:-1], *catalogue.NAMES[:-1], *lengths] == list(rows)
    # What is told meanwhile names the checks.
    assert any("facts" in line for line in served.told)
    assert any("needles-22k" in line for line in served.told)


@pytest.mark.parametrize(
    ("fault", "check", "detail", "expected", "came"), FAULTS, ids=[row[0] for row in FAULTS]
)
def test_a_fault_is_found_and_told(
    served: Served, fault: str, check: str, detail: str, expected: str, came: str
) -> None:
    served.model.faults = {fault}
    rows = served.rows(check.partition("-2")[0])
    row = rows[check]
    assert row["status"] == "fail", row
    assert detail in row["detail"]
    assert expected in row["expected"]
    assert came in row["observed"]
    assert "\x1b" not in json.dumps(row, ensure_ascii=False)


def test_every_check_has_a_fault_that_it_finds() -> None:
    named = {check.partition("-2")[0] for _, check, *_ in FAULTS}
    assert named == set(catalogue.NAMES)


def test_of_hard_problems_one_may_be_missed(served: Served) -> None:
    served.model.faults = {"tired"}
    row = served.rows("problems")["problems"]
    assert row["status"] == "ok"
    assert "5 of 6 problems solved; A snail" in row["detail"]


def test_answers_in_latex_and_code_among_other_blocks_are_right(served: Served) -> None:
    served.model.faults = {"latex", "chatty-code"}
    rows = served.rows("facts", "problems", "code")
    assert {row["status"] for row in rows.values()} == {"ok"}, rows


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (r"$\boxed{155}$", "155"),
        (r"\boxed{\text{Bob}}", "Bob"),
        (r"$\mathrm{H_2O}$", "H2O"),
        (r"\[\text{H}_2\text{O}\]", "H2O"),
        (r"$2{,}500$", "2500"),
        (r"$2\,500$", "2500"),
    ],
)
def test_what_latex_sets_is_read(text: str, expected: str) -> None:
    assert knowledge.has_word(text, expected)
    assert not knowledge.has_word(
        text.replace("5", "6").replace("O", "X").replace("B", "R"), expected
    )


def test_a_call_while_thinking_is_tried_with_several_seeds(served: Served) -> None:
    row = served.rows("tool-in-reasoning")["tool-in-reasoning"]
    assert "6 of 6 answers with the call" in row["detail"]
    assert "6 of them with reasoning; whether calls were written inside" in row["detail"]
    seeds = {(body["seed"], bool(body["stream"])) for body in served.model.asked}
    assert seeds == {(seed, way) for seed in (1, 2, 3) for way in (False, True)}


def test_a_city_is_one_of_a_list(served: Served) -> None:
    served.rows("tool-single")
    tool = served.model.asked[0]["tools"][0]["function"]["parameters"]
    assert "Oslo" in tool["properties"]["city"]["enum"]


def test_requests_that_may_mix_are_all_there_at_once_whatever_the_engine_takes(
    served: Served,
) -> None:
    served.plan["throughput"]["concurrency"] = 1
    served.model.meeting = threading.Barrier(len(output_forms.MARKERS))
    assert served.rows("parallel-requests")["parallel-requests"]["status"] == "ok"


def test_a_prompt_fits_into_a_long_context_however_many_lines_it_has(served: Served) -> None:
    served.plan["model"]["context"] = 130_000
    rows = served.rows("needles")
    assert [row["status"] for row in rows.values()] == ["ok"] * 5, rows


def test_a_model_that_nothing_keeps_from_thinking_has_room_for_it(served: Served) -> None:
    served.model.faults = {"no-switch"}
    rows = served.rows("structured-output", "parallel-requests")
    assert {row["status"] for row in rows.values()} == {"ok"}, rows


def test_what_a_check_did_not_expect_fails_it_and_not_the_run(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    def judge(*_: object) -> None:
        raise TypeError("what nobody thought of")

    check = catalogue.BY_NAME["facts"]
    monkeypatch.setitem(run.BY_NAME, "facts", replace(check, judge=judge))
    monkeypatch.setattr(checks, "THROUGH_PORT", (("chat", judge),))
    rows = served.rows("chat", "facts", "problems")
    assert "TypeError: what nobody thought of" in rows["chat"]["detail"]
    assert (rows["chat"]["status"], rows["facts"]["status"]) == ("fail", "fail")
    assert rows["facts"]["observed"] == "TypeError: what nobody thought of"
    assert rows["problems"]["status"] == "ok"


def of_text_alone(plan: dict[str, Any]) -> None:
    plan["model"]["architecture"] = "DeepseekV3ForCausalLM"


def without_parsers(plan: dict[str, Any]) -> None:
    plan["instances"][0]["argv"] = []


@pytest.mark.parametrize(
    ("change", "check", "reason"),
    [
        (of_text_alone, "image", "takes no images"),
        (lambda plan: plan.update(speculative=None), "speculative-decoding", "is planned"),
        (without_parsers, "prefix-cache", "no prefix cache is planned"),
        (without_parsers, "tool-single", "without a tool call parser"),
        (without_parsers, "tool-in-reasoning", "without a reasoning parser"),
    ],
)
def test_what_the_plan_does_not_have_is_not_run(
    served: Served, change: Any, check: str, reason: str
) -> None:
    change(served.plan)
    row = served.rows(check)[check]
    assert row["status"] == "skip"
    assert reason in row["detail"]
    assert not [body for body in served.model.asked if body["max_tokens"] > 512]


def test_random_weights_are_asked_for_form_alone(served: Served) -> None:
    served.plan["model"]["random_weights"] = True
    served.model.faults = {"wrong-form", "bad-drafts", "marks-in-answers"}
    rows = served.rows(*catalogue.NAMES)
    passed = {name for name, row in rows.items() if row["status"] == "ok"}
    assert passed == {
        *("structured-output", "special-tokens", "chat-template"),
        *("speculative-decoding", "prefix-cache"),
    }
    told = suite.list_unproven(list(rows.values()), [])
    assert len(told) == 1
    assert "facts, problems, image" in told[0]
    assert "needles-22k" in told[0]


def test_without_tokenize_the_engine_s_tokens_are_not_judged(served: Served) -> None:
    served.model.faults = {"no-tokenize"}
    rows = served.rows("special-tokens", "chat-template")
    assert rows["special-tokens"]["status"] == "skip"
    assert "no /tokenize" in rows["special-tokens"]["detail"]
    assert rows["chat-template"]["status"] == "ok"
    assert "not known" in rows["chat-template"]["detail"]


def test_a_mark_of_the_template_that_is_no_special_token_is_found(served: Served) -> None:
    file = served.weights / "tokenizer_config.json"
    config = json.loads(file.read_text())
    del config["added_tokens_decoder"]["1814"]
    file.write_text(json.dumps(config))
    row = served.rows("special-tokens")["special-tokens"]
    assert row["status"] == "fail"
    assert row["expected"] == "special tokens <think>"


def test_a_template_that_was_changed_since_is_found(served: Served) -> None:
    file = served.weights / "chat_template.jinja"
    file.write_text(file.read_text().replace("user", "human"))
    row = served.rows("chat-template")["chat-template"]
    assert row["status"] == "fail"
    assert "not the one of the verified weights" in row["detail"]
    assert row["expected"] != row["observed"]


def test_a_template_that_a_flag_gives_is_held_against_the_model_s(served: Served) -> None:
    other = served.root / "other.jinja"
    served.plan["instances"][0]["argv"] += ["--chat-template", "/other.jinja"]
    other.write_text("{{ messages }}")
    row = served.rows("chat-template")["chat-template"]
    assert row["status"] == "fail"
    assert "--chat-template /other.jinja" in row["detail"]
    other.write_text((served.weights / "chat_template.jinja").read_text())
    assert served.rows("chat-template")["chat-template"]["status"] == "ok"


def test_a_template_inside_the_tokenizer_s_configuration_is_found_there(served: Served) -> None:
    template = served.weights / "chat_template.jinja"
    text = template.read_text()
    template.unlink()
    row = served.rows("chat-template")["chat-template"]
    assert (row["status"], row["observed"]) == ("fail", "none")
    file, mark = (served.weights / name for name in ("tokenizer_config.json", ".kimi-verified"))
    file.write_text(json.dumps({**json.loads(file.read_text()), "chat_template": text}))
    row = served.rows("chat-template")["chat-template"]
    assert "not the one of the verified weights" in row["detail"]
    seen = json.loads(mark.read_text())
    seen["verified"][file.name]["sha256"] = hashlib.sha256(file.read_bytes()).hexdigest()
    mark.write_text(json.dumps(seen))
    row = served.rows("chat-template")["chat-template"]
    assert row["status"] == "ok", row
    assert row["detail"].startswith("tokenizer_config.json")


def test_a_length_that_the_plan_expects_to_take_hours_is_not_tried(served: Served) -> None:
    served.plan["throughput"]["prefill_tok_s"]["expected"] = 8.0
    rows = served.rows("needles")
    assert rows["needles-10k"]["status"] == "ok"
    assert rows["needles-22k"]["status"] == "skip"
    assert "the plan expects 2744 s" in rows["needles-22k"]["detail"]


@pytest.mark.parametrize(
    ("only", "leave", "run_"),
    [
        (("needles-10k", "needles-40k"), (), ["10k", "40k"]),
        (("needles",), ("needles-[24]*",), ["10k", "58k"]),
        (("needles-*",), ("needles",), []),
    ],
)
def test_lengths_of_needles_are_chosen(
    served: Served, only: tuple[str, ...], leave: tuple[str, ...], run_: list[str]
) -> None:
    served.plan["model"]["context"] = 60_000
    rows = served.rows(*only, leave=leave)
    assert {name: row["status"] for name, row in rows.items()} == {
        f"needles-{length}": "ok" for length in run_
    }


def test_no_more_requests_at_once_than_the_plan_has(served: Served) -> None:
    served.plan["throughput"]["concurrency"] = 2
    served.model.faults = {"slow"}
    rows = served.rows("facts", "problems", "tool-*", "structured-output")
    assert {row["status"] for row in rows.values()} == {"ok"}, rows
    assert served.model.most == 2


def test_hits_that_may_be_others_prove_no_cache(served: Served) -> None:
    served.model.faults = {"others-ask", "no-cache"}
    row = served.rows("prefix-cache")["prefix-cache"]
    assert row["status"] == "skip"
    assert "others asked meanwhile" in row["detail"]
    served.model.faults = {"others-ask", "tells-cached"}
    row = served.rows("prefix-cache")["prefix-cache"]
    assert row["status"] == "ok"
    assert "by the answer" in row["detail"]


def test_a_prompt_is_sent_once_more_than_there_are_caches(served: Served) -> None:
    served.plan["parallel"] = {"data": 20}
    assert served.rows("prefix-cache")["prefix-cache"]["status"] == "ok"
    assert len(served.model.asked) == 21


def test_the_machine_says_that_it_has_no_plan(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(run, "Paths", lambda: Paths(served.root / "nowhere"))
    monkeypatch.setattr("sys.stdin", io.StringIO('{"what": "files"}'))
    with pytest.raises(HostError, match="nothing is applied on this machine"):
        run.main(["ask"])


def test_a_length_after_one_without_an_answer_is_not_tried(served: Served) -> None:
    served.plan["model"]["context"] = 60_000
    served.model.faults = {"short-context"}
    rows = served.rows("needles")
    assert [row["status"] for row in rows.values()] == ["ok", "fail", "skip", "skip"]
    assert rows["needles-40k"]["detail"] == "needles-20k was not answered"


def test_an_answer_that_does_not_come_ends_with_the_check_s_time(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    check = catalogue.BY_NAME["tool-parallel"]
    monkeypatch.setitem(run.BY_NAME, "tool-parallel", replace(check, limit_s=1.0))
    served.model.faults = {"silent"}
    row = served.rows("tool-parallel")["tool-parallel"]
    assert row["status"] == "fail"
    assert row["observed"] == "no answer within the check's 1 s"
    # By the plan's own speed an answer takes longer.
    served.plan["throughput"]["decode_tok_s"] = {"expected": 256.0}
    assert served.rows("tool-parallel")["tool-parallel"]["status"] == "ok"


def test_the_limit_follows_the_planned_speed_and_the_answers(served: Served) -> None:
    served.plan["throughput"].update(concurrency=4, decode_tok_s={"expected": 4.0})
    promised, names = served.exam().promise, catalogue.BY_NAME
    answer_s = 1.5 * 4096 / 4
    assert catalogue.compute_limit_s(names["tool-parallel"], promised) == answer_s
    assert catalogue.compute_limit_s(names["facts"], promised) == 3 * answer_s
    assert catalogue.compute_limit_s(names["tool-rounds"], promised) == 6 * answer_s
    assert catalogue.compute_limit_s(names["facts"], replace(promised, decode_tok_s=None)) == 900
