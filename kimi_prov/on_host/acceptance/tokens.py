"""Special tokens of the tokenizer, and the chat template that the engine uses."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.on_host.acceptance.verdicts import (
    Verdict,
    Wrong,
    judge_answers,
    make_failure,
    make_pass,
    make_skip,
)

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kimi_prov.on_host.acceptance.answers import Asker
    from kimi_prov.on_host.acceptance.target import MachineTarget

# A conversation that every template can write.
MESSAGES: list[dict[str, str]] = [
    {"role": "system", "content": "You are a storekeeper."},
    {"role": "user", "content": "How many lamps are there?"},
]
_HELLO = "Say hello."
_TOKENS = 4096


def check_special_tokens(asker: Asker, target: MachineTarget) -> Verdict:
    """Ask the engine how it cuts the special tokens, and search for them in an answer."""
    files = target.request("files")
    known: dict[str, int] = files.get("special") or {}
    fault = judge_files(known, files.get("unknown") or [], str(files["reason"]))
    if fault:
        return fault
    cut = target.request("tokens", texts=list(known))
    if cut["reason"]:
        whole = f"the files have {len(known)} special tokens with an id of their own"
        return make_skip(f"{cut['reason']}; {whole}, and how the engine cuts them is not known")
    verdict = judge_tokens(known, cut.get("ids") or [])
    if verdict.status != "ok" or asker.subject.random_weights:
        return verdict
    answer = asker.ask(_HELLO, _TOKENS)
    if answer.marks():
        return make_failure(
            "marks of special tokens are in an answer",
            f"none of {', '.join(answer.marks())}",
            answer.text or answer.thought,
        )
    return make_pass(f"{verdict.detail}, none in an answer")


def judge_files(known: Mapping[str, int], unknown: Sequence[str], reason: str) -> Verdict | None:
    """Check the tokenizer's files; None where they have every mark that the template writes."""
    if reason:
        return make_skip(f"the tokenizer's files cannot be read: {reason}")
    if unknown:
        return make_failure(
            "the chat template writes marks that the tokenizer's files do not know",
            f"special tokens {', '.join(unknown)}",
            f"the files have {', '.join(known) or 'none'}",
        )
    if not known:
        return make_skip("the tokenizer's files name no special tokens that a chat uses")
    return None


def judge_tokens(known: Mapping[str, int], ids: Sequence[Sequence[int]]) -> Verdict:
    """Check how texts of special tokens were cut: each must be the one id of the files."""
    wrong = [
        Wrong(text, f"token {number}", f"tokens {', '.join(map(str, found)) or 'none'}")
        for (text, number), found in zip(known.items(), [*ids, *[[]] * len(known)])
        if list(found) != [number]
    ]
    return judge_answers(len(known), wrong, "special tokens are single tokens, as in the files")


def check_chat_template(target: MachineTarget) -> Verdict:
    """Compare the template that the engine uses with the one in the verified weights."""
    files = target.request("files")
    if files["reason"]:
        return make_skip(f"the template's file cannot be read: {files['reason']}")
    verdict = judge_template(files.get("template") or {})
    if verdict.status != "ok":
        return verdict
    written = target.request("rendered", messages=MESSAGES)
    if written["reason"]:
        return make_pass(f"{verdict.detail}; its use by the engine: {written['reason']}")
    return judge_rendered(verdict, str(written.get("own")), str(written.get("engine")))


def judge_template(found: Mapping[str, Any]) -> Verdict:
    """Check the files: `used` and `verified` are their SHA-256, `given` what a flag names."""
    used, verified = _as_text(found.get("used")), _as_text(found.get("verified"))
    if used is None:
        name = found.get("given") or "chat_template.jinja or tokenizer_config.json"
        return make_failure("the engine has no chat template", f"a template in {name}", "none")
    if verified is None:
        return make_skip("the template in the verified weights is not known")
    if used != verified:
        where = found.get("given") or found.get("file")
        return make_failure(
            f"the engine's template, {where}, is not the one of the verified weights",
            f"sha256 {verified[:16]}",
            f"sha256 {used[:16]}",
        )
    return make_pass(f"{found.get('file')}, sha256 {used[:16]}, as verified")


def judge_rendered(files: Verdict, own: str, engine: str) -> Verdict:
    """Compare the engine's text of a conversation with that of the model's template."""
    if own != engine:
        return make_failure(
            "the engine writes a chat differently from the model's template", own, engine
        )
    return make_pass(f"{files.detail}; the engine writes a chat as it does")


def _as_text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None
