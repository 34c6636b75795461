"""The suite's queries to the served machine itself, beside the port: `ANSWERS`, by name.

Each returns a JSON object; its `reason` says why there is no answer.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable, Literal

from kimi_prov.contract import clean_text
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.acceptance import code_unit
from kimi_prov.on_host.engine import metrics, ready
from kimi_prov.on_host.system import sandbox
from kimi_prov.on_host.system.files import read_json
from kimi_prov.on_host.weights import manifest

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.contract.paths import Paths

Found = dict[str, Any]
# Of the tokenizer's special tokens, those of which a chat is made.
_CHAT = (
    "<think>", "</think>", "[BOS]", "[EOS]", "<|im_end|>", "<|im_user|>", "<|im_assistant|>",
    "<|im_system|>", "<|im_middle|>", "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>",
    "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>", "<|media_begin|>",
    "<|media_content|>", "<|media_end|>", "<|media_pad|>",
)  # fmt: skip
_TEMPLATE, _TOKENIZER = "chat_template.jinja", "tokenizer_config.json"
_FLAG = "--chat-template"
# How a template asks whether to think.
_SWITCH = re.compile(r"\bthinking is (?:not )?(?:defined|true|false|none)\b")
_LIMIT_S = 120.0
# The model's template is code of its own: it runs in the engine's sandbox, as the engine runs it.
_RENDER = """
import json, sys
from jinja2.ext import loopcontrols
from jinja2.sandbox import ImmutableSandboxedEnvironment
given = json.load(sys.stdin)
def refuse(message):
    raise ValueError(message)
made = ImmutableSandboxedEnvironment(
    trim_blocks=True, lstrip_blocks=True, extensions=[loopcontrols])
made.filters["tojson"] = lambda value, **more: json.dumps(value, ensure_ascii=False, **more)
made.globals["raise_exception"] = refuse
text = made.from_string(given["template"]).render(
    messages=given["messages"], add_generation_prompt=True, **given["special"])
print(json.dumps({"text": text}))
"""


_Folder = Literal["dir", "serve_dir"]


@dataclass(frozen=True)
class MachineFiles:
    """The machine's files and its plan."""

    paths: Paths
    plan: MachinePlan

    def model(self, key: _Folder, name: str) -> Path:
        """Return a file of the model's directory: `dir`, as verified, or `serve_dir`, as served."""
        return self.paths.locate(self.plan["model"][key]) / name


def answer(place: MachineFiles, question: Mapping[str, Any]) -> Found:
    """Answer one query. Raises HostError for an unknown one."""
    what = question.get("what")
    known = ANSWERS.get(what) if isinstance(what, str) else None
    if known is None:
        raise HostError(f"{what!r} is not a question of the suite: {', '.join(ANSWERS)}")
    return known(place, question)


def read_counts(place: MachineFiles, question: Mapping[str, Any]) -> Found:
    """Return the counters of each instance's engine."""
    del question
    rows = []
    for port in _list_ports(place):
        reason, text = ready.send_request(port, "GET", "/metrics")
        if reason:
            return {"reason": f"{reason} (port {port})"}
        rows.append(metrics.sum_counts(text))
    return {"instances": rows}


def tokenize(place: MachineFiles, question: Mapping[str, Any]) -> Found:
    """Return the token ids of each text, by the first instance's engine."""
    found = []
    for text in question.get("texts") or ():
        asked = {"prompt": str(text), "add_special_tokens": False}
        reason, ids = _tokenize_one(place, asked)
        if reason:
            return {"reason": reason}
        found.append(ids)
    return {"ids": found}


def _tokenize_one(place: MachineFiles, asked: Mapping[str, Any]) -> tuple[str, list[int]]:
    value = _post(place, "/tokenize", asked)
    if isinstance(value, str):
        return f"the engine has no /tokenize ({value})", []
    ids = value.get("tokens")
    if not isinstance(ids, list) or not all(isinstance(number, int) for number in ids):
        return "the engine's /tokenize returns no tokens", []
    return "", ids


def _post(place: MachineFiles, path: str, body: Mapping[str, Any]) -> Any:  # noqa: ANN401
    """Return the object that the first instance answers with, or why there is none."""
    asked = json.dumps({"model": place.plan["model"]["served_names"][0], **body})
    reason, text = ready.send_request(_list_ports(place)[0], "POST", path, asked)
    if reason:
        return clean_text.clean_line(reason)[:200]
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = None
    return value if isinstance(value, dict) else f"{path} answers no JSON"


def _list_ports(place: MachineFiles) -> list[int]:
    ports = [port for item in place.plan["instances"] if (port := item.get("port"))]
    if not ports:
        raise HostError("no engine of this machine has a port: the head of its group serves")
    return ports


def describe_files(place: MachineFiles, question: Mapping[str, Any]) -> Found:
    """Return the tokens and the template in the weights' files."""
    del question
    template, text = _describe_template(place)
    known = list_special_tokens(place)
    return {
        "special": known,
        # A mark that the template writes must be a token of its own.
        "unknown": [mark for mark in _CHAT if mark in text and mark not in known],
        "template": template,
        "instant": _SWITCH.search(text) is not None,
    }


def list_special_tokens(place: MachineFiles) -> dict[str, int]:
    """Return the special tokens that a chat uses, by their text, from the tokenizer's files."""
    found: dict[str, int] = {}
    by_number = read_json(str(place.model("serve_dir", _TOKENIZER))).get("added_tokens_decoder")
    for number, row in by_number.items() if isinstance(by_number, dict) else ():
        if isinstance(row, dict) and str(number).isdigit():
            found[str(row.get("content"))] = int(number)
    listed = read_json(str(place.model("serve_dir", "tokenizer.json"))).get("added_tokens")
    for row in listed if isinstance(listed, list) else ():
        if isinstance(row, dict) and isinstance(row.get("id"), int):
            found.setdefault(str(row.get("content")), row["id"])
    return {text: found[text] for text in _CHAT if text in found}


def _describe_template(place: MachineFiles) -> tuple[Found, str]:
    """Return the hashes of the template in use and of the verified one, and its text."""
    name, used = _read_own_template(place, "serve_dir")
    told: Found = {"file": name, "verified": _read_verified_digest(place)}
    given = _find_flag([word for item in place.plan["instances"] for word in item["argv"]])
    if given:
        told["given"] = f"{_FLAG} {given}"
        used = _read_bytes(place.paths.locate(given)) if os.path.isabs(given) else given.encode()
    return {**told, "used": _hash_content(used)}, used.decode(errors="replace")


def _read_own_template(place: MachineFiles, key: _Folder) -> tuple[str, bytes]:
    """Return the file that holds the model's template, and the template."""
    content = _read_bytes(place.model(key, _TEMPLATE))
    if content:
        return _TEMPLATE, content
    inside = read_json(str(place.model(key, _TOKENIZER))).get("chat_template")
    if isinstance(inside, list):  # Several templates, each with a name.
        inside = {str(row.get("name")): row.get("template") for row in inside}.get("default")
    return _TOKENIZER, inside.encode("utf-8", "replace") if isinstance(inside, str) else b""


def _read_verified_digest(place: MachineFiles) -> str:
    """Return the SHA-256 of the template as it was when the weights were verified.

    The verification recorded that of each file. A template inside another file counts as verified
    as long as that file does. Empty where there is no record.
    """
    name, content = _read_own_template(place, "dir")
    mark = read_json(str(place.model("dir", manifest.MARK)))
    record = manifest.parse_records(mark).get(name)
    if record is None:
        return ""
    whole = _hash_content(_read_bytes(place.model("dir", name)))
    return _hash_content(content) if whole == record.sha256 else record.sha256


def _read_bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError, IsADirectoryError):
        return b""


def _hash_content(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest() if content else ""


def _find_flag(argv: list[str]) -> str:
    for number, word in enumerate(argv):
        if word.startswith(f"{_FLAG}="):
            return word.partition("=")[2]
        if word == _FLAG and number + 1 < len(argv):
            return argv[number + 1]
    return ""


def render_conversation(place: MachineFiles, question: Mapping[str, Any]) -> Found:
    """Return a conversation as the engine writes it, and as the model's own template does."""
    messages = question.get("messages")
    cut = _post(place, "/tokenize", {"messages": messages, "add_special_tokens": False})
    if isinstance(cut, str) or not isinstance(cut.get("tokens"), list):
        return {"reason": "not known, the engine has no /tokenize for a chat"}
    engine = _post(place, "/detokenize", {"tokens": cut["tokens"]})
    if isinstance(engine, str) or not isinstance(engine.get("prompt"), str):
        return {"reason": "not known, the engine has no /detokenize"}
    _, content = _read_own_template(place, "dir")
    named = read_json(str(place.model("dir", _TOKENIZER)))
    marks = {k: v for k, v in named.items() if k.endswith("_token") and isinstance(v, str)}
    own = content.decode(errors="replace")
    given = json.dumps({"template": own, "messages": messages, "special": marks})
    python = f"{place.plan['engine']['env_dir']}/bin/python"
    done = sandbox.run(python, "-I", "-c", _RENDER, env={}, stdin=given, timeout=_LIMIT_S)
    try:
        own = json.loads(done.stdout)["text"]
    except (ValueError, KeyError, TypeError, RecursionError):
        last = (done.stderr or "").strip().splitlines()[-1:]
        return {"reason": f"not known, the template fails: {' '.join(last)[:200]}"}
    return {"own": str(own), "engine": engine["prompt"]}


def run_code(place: MachineFiles, question: Mapping[str, Any]) -> Found:
    """Run a program in the unit for code that a model wrote."""
    del place
    return code_unit.run(str(question.get("source") or ""))


ANSWERS: dict[str, Callable[[MachineFiles, Mapping[str, Any]], Found]] = {
    "metrics": read_counts,
    "tokens": tokenize,
    "files": describe_files,
    "rendered": render_conversation,
    "code": run_code,
}
