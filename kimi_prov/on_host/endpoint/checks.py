"""The checks through the opened port: each has a name, a status, and a sentence.

`ok` and `fail` are results; `skip` says why the check did not run, and never counts as a pass.

Decides: what `verify` checks (the checks).
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Callable

from kimi_prov.contract import gateways
from kimi_prov.on_host.endpoint import api_client
from kimi_prov.on_host.endpoint.api_client import ApiError, Endpoint

if TYPE_CHECKING:
    from collections.abc import Collection

    from kimi_prov.contract.documents.plan import Plan
    from kimi_prov.contract.documents.plan.gateway import WebUiElsewhere
    from kimi_prov.contract.documents.plan.service import WebUiPlan

Check = dict[str, Any]
Outcome = tuple[str, str]

CITIES = ["Oslo", "Rome", "Lima", "Cairo"]
# "strict" and the enumeration force the engine to follow the schema, so that even random weights
# write a complete call, in Kimi's own tokens and read by the engine's parser.
TOOL: dict[str, Any] = {
    "type": "function",
    "function": {
        "name": "get_temperature",
        "description": "Temperature of the air in a city, now.",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string", "enum": CITIES}},
            "required": ["city"],
            "additionalProperties": False,
        },
    },
}
SEEDS = (1, 2, 3)

# Facts that no revision of a model may get wrong; the answer is searched in the final text.
KNOWN = (
    ("What is 17 times 23? Answer with the number alone.", "391"),
    ("Which chemical element has the symbol Au? Answer with one English word.", "gold"),
    ("What is the capital of Australia? Answer with one word.", "canberra"),
    ("Write the word 'stressed' backwards. Answer with one word.", "desserts"),
    ("How many days has a leap year? Answer with the number alone.", "366"),
)


@dataclass(frozen=True)
class Subject:
    """What is tested and what is expected of it.

    `gateway`: whether a gateway answers; the engines behind it are tested on their machines.
    """

    endpoint: Endpoint
    key: str
    model: str
    names: tuple[str, ...]
    random_weights: bool
    reasons: bool
    tools: bool
    page: Endpoint | None = None
    gateway: bool = False

    def ask(self, text: str, tokens: int, **more: object) -> dict[str, Any]:
        """Return the body of a chat request with one question."""
        message = {"role": "user", "content": text}
        return {
            "model": self.model,
            "messages": [message],
            "max_tokens": tokens,
            "temperature": 0,
            **more,
        }


def build_subject(plan: Plan, host: str, fingerprint: str | None, key: str) -> Subject:
    """Return what a plan says to expect, as seen from `host`."""
    argv = [word for instance in plan["instances"] for word in instance["argv"]]
    model = plan["model"]
    web: WebUiPlan | WebUiElsewhere | None = plan.get("web")
    # A gateway that passes its clients on to the web UI of another gateway is tested for that web
    # UI too.
    if not web and gateways.is_gateway(plan):
        web = plan["gateway"].get("page")
    return Subject(
        endpoint=Endpoint(host, plan["proxy"]["port"], fingerprint),
        key=key,
        model=model["served_names"][0],
        names=tuple(model["served_names"]),
        random_weights=bool(model.get("random_weights")),
        reasons=any(word.startswith("--reasoning-parser") for word in argv),
        tools=any(word.startswith("--tool-call-parser") for word in argv),
        page=Endpoint(host, web["port"], fingerprint) if web else None,
        gateway=gateways.is_gateway(plan),
    )


def _get_message(reply: api_client.Reply) -> dict[str, Any]:
    choices = reply.json().get("choices") or [{}]
    message = choices[0].get("message")
    if reply.status != 200 or not isinstance(message, dict):
        raise ApiError(
            "HTTP {}: {}".format(reply.status, reply.body[:300].decode(errors="replace"))
        )
    return message


def _get_text(message: dict[str, Any]) -> str:
    return str(message.get("content") or "")


def _get_reasoning(message: dict[str, Any]) -> str:
    return str(message.get("reasoning") or message.get("reasoning_content") or "")


def check_tls(subject: Subject) -> Outcome:
    """Check that the certificate is the installed one and the TLS version is current."""
    if subject.endpoint.fingerprint is None:
        return "skip", "the address has no TLS: a load balancer before it does"
    facts = api_client.read_tls_facts(subject.endpoint)
    good = facts["version"] in ("TLSv1.2", "TLSv1.3")
    pin = subject.endpoint.fingerprint[:16]
    return (
        "ok" if good else "fail",
        "{}, certificate sha256 {}… as installed".format(facts["version"], pin),
    )


def _check_refused(subject: Subject, key: str | None, what: str) -> Outcome:
    reply = api_client.request_chat(subject.endpoint, key, subject.ask("Hello", 1))
    error = reply.json().get("error")
    if reply.status != 401:
        return "fail", f"{what} got HTTP {reply.status}, not 401"
    if not (isinstance(error, dict) and error.get("code") == "invalid_api_key"):
        return "fail", "401, but not with the error object that OpenAI clients read"
    return "ok", f"{what}: 401 invalid_api_key"


def check_no_key(subject: Subject) -> Outcome:
    """Check that a request without a key is refused."""
    return _check_refused(subject, None, "no key")


def check_wrong_key(subject: Subject) -> Outcome:
    """Check that a request with an unknown key is refused."""
    return _check_refused(subject, "sk-kimi-" + "x" * 43, "a wrong key")


def check_metrics_closed(subject: Subject) -> Outcome:
    """Check that the engine's own pages are not reachable through the port, key or not."""
    open_pages = [
        path
        for path in ("/metrics", "/v1/../metrics", "/version", "/docs", "/openapi.json")
        for key in (None, subject.key)
        if api_client.call(subject.endpoint, "GET", path, key).status == 200
    ]
    if open_pages:
        return "fail", "reachable through the port: " + ", ".join(dict.fromkeys(open_pages))
    return "ok", "/metrics, /version, /docs are not reachable"


def check_models(subject: Subject) -> Outcome:
    """Check that the list of models has every served name."""
    reply = api_client.call(subject.endpoint, "GET", "/v1/models", subject.key)
    have = {entry.get("id") for entry in reply.json().get("data", [])}
    missing = [name for name in subject.names if name not in have]
    if reply.status != 200 or missing:
        return "fail", "HTTP {}, missing: {}".format(reply.status, ", ".join(missing) or "all")
    return "ok", ", ".join(subject.names)


def check_chat(subject: Subject) -> Outcome:
    """Check that the model answers a chat."""
    reply = api_client.request_chat(subject.endpoint, subject.key, subject.ask("Say hello.", 16))
    message = _get_message(reply)
    tokens = (reply.json().get("usage") or {}).get("completion_tokens", 0)
    if tokens < 1 or not (_get_text(message) or _get_reasoning(message)):
        return "fail", "an answer without a token"
    return "ok", f"{tokens} tokens: {_shorten(_get_text(message) or _get_reasoning(message))}"


def check_streaming(subject: Subject) -> Outcome:
    """Check that a streamed answer comes in pieces and ends with [DONE]."""
    times, ended = [], False
    for since, piece in api_client.stream(
        subject.endpoint, subject.key, subject.ask("Count to ten.", 24)
    ):
        if piece is None:
            ended = True
        elif piece.get("choices"):
            times.append(since)
    if not ended or len(times) < 3:
        return "fail", "{} pieces, {}".format(
            len(times), "ended" if ended else "no [DONE] at the end"
        )
    return "ok", f"{len(times)} pieces, first after {times[0]:.2f} s, last after {times[-1]:.2f} s"


def check_tool_call(subject: Subject) -> Outcome:
    """Check that a required tool is called with arguments that match its schema."""
    if not subject.tools:
        return "skip", "the engine runs without a tool call parser"
    body = subject.ask(
        "How warm is it in Oslo? Use the tool.",
        512 if subject.random_weights else 2048,
        tools=[TOOL],
        tool_choice="required",
        chat_template_kwargs={"thinking": False},
    )
    calls = (
        _get_message(api_client.request_chat(subject.endpoint, subject.key, body)).get("tool_calls")
        or []
    )
    name = TOOL["function"]["name"]
    if not calls or calls[0].get("function", {}).get("name") != name:
        return "fail", "no call of the tool in the answer"
    raw = calls[0]["function"].get("arguments", "")
    try:
        arguments = json.loads(raw)
    except ValueError:
        return "fail", f"the arguments are not JSON: {_shorten(raw)}"
    if not isinstance(arguments, dict) or arguments.get("city") not in CITIES:
        return "fail", f"the arguments do not fit the schema: {_shorten(raw)}"
    if not subject.random_weights and arguments["city"] != "Oslo":
        return "fail", f"asked for Oslo, called with {_shorten(raw)}"
    return "ok", f"{name}({_shorten(raw)})"


def check_reasoning(subject: Subject) -> Outcome:
    """Check that reasoning and answer are separate."""
    if not subject.reasons:
        return "skip", "the engine runs without a reasoning parser"
    tokens = 256 if subject.random_weights else 4096
    thought, text = "", ""
    for seed in SEEDS:  # a thought may be longer than the limit: then another one is tried
        question = "Is 97 a prime number? Think, then answer yes or no."
        body = {**subject.ask(question, tokens), "temperature": 1, "seed": seed}
        message = _get_message(api_client.request_chat(subject.endpoint, subject.key, body))
        thought, text = _get_reasoning(message), _get_text(message)
        # Random weights write such marks into the answer too; the thought then shows the parser.
        own = subject.random_weights and thought
        if not own and ("</think>" in text or "<think>" in text):
            return "fail", f"the marks of thinking are in the answer: {_shorten(text)}"
        if thought and text:
            return "ok", f"{len(thought)} characters of reasoning, {len(text)} of answer"
    if not thought:
        return "fail", "no reasoning apart from the answer"
    return "fail", f"only reasoning, no answer within {tokens} tokens, {len(SEEDS)} times"


def check_known_answers(subject: Subject) -> Outcome:
    """Ask five questions with known answers."""
    if subject.random_weights:
        return "skip", "random weights know no answers"
    wrong = []
    for question, expected in KNOWN:
        message = _get_message(
            api_client.request_chat(subject.endpoint, subject.key, subject.ask(question, 2048))
        )
        if expected not in _get_text(message).lower().replace(",", ""):
            wrong.append(f"{question} -> {_shorten(_get_text(message))}")
    if wrong:
        return "fail", "{} of {} wrong: {}".format(len(wrong), len(KNOWN), "; ".join(wrong))
    return "ok", f"{len(KNOWN)} of {len(KNOWN)} right"


def check_web_ui(endpoint: Endpoint) -> Outcome:
    """Check that the web UI answers with its headers, and refuses users without an account."""
    reply = api_client.call(endpoint, "GET", "/", None)
    if reply.status != 200 or b"<html" not in reply.body[:2000].lower():
        return "fail", f"HTTP {reply.status} instead of the web UI"
    if "content-security-policy" not in reply.headers:
        return "fail", "the web UI has no security headers"
    told = api_client.call(endpoint, "GET", "/api/config", None).json()
    inside = api_client.call(endpoint, "GET", "/api/models", None)
    if inside.status not in (401, 403):
        return "fail", f"without an account /api/models answers with HTTP {inside.status}"
    return (
        "ok",
        f"{told.get('name', 'a web UI')} {told.get('version', '')}, closed without an account",
    )


def _shorten(text: str, limit: int = 60) -> str:
    flat = " ".join(str(text).split())
    return flat if len(flat) <= limit else flat[: limit - 1] + "…"


# The check of a page to talk to the model, where there is one.
WEB_UI = "page"
THROUGH_PORT: tuple[tuple[str, Callable[[Subject], Outcome]], ...] = (
    ("tls", check_tls),
    ("no-key-refused", check_no_key),
    ("wrong-key-refused", check_wrong_key),
    ("engine-pages-closed", check_metrics_closed),
    ("models", check_models),
    ("chat", check_chat),
    ("streaming", check_streaming),
    ("tool-call", check_tool_call),
    ("reasoning", check_reasoning),
    ("known-answers", check_known_answers),
)


# Of what an engine can do, a gateway changes nothing.
OF_ENGINE = ("tool-call", "reasoning", "known-answers")


def run_check(name: str, work: Callable[[], Outcome]) -> Check:
    """Run one check; an exception of the client is its failure."""
    started = time.monotonic()
    try:
        status, detail = work()
    except ApiError as error:
        status, detail = "fail", str(error)
    except Exception as error:  # noqa: BLE001 - an answer of any form fails its own check alone
        told = f"the answer could not be judged: {type(error).__name__}: {error}"
        status, detail = "fail", told[:300]
    seconds = round(time.monotonic() - started, 3)
    return {"name": name, "status": status, "detail": detail, "seconds": seconds}


def run_checks(subject: Subject, names: Collection[str] | None = None) -> list[Check]:
    """Run checks through the port, in order, whatever the results before; all without `names`."""
    chosen = [(name, check) for name, check in THROUGH_PORT if names is None or name in names]
    done = [run_check(name, lambda check=check: check(subject)) for name, check in chosen]  # type: ignore[misc]
    endpoint = subject.page
    if endpoint is None or (names is not None and WEB_UI not in names):
        return done
    return [*done, run_check(WEB_UI, lambda: check_web_ui(endpoint))]
