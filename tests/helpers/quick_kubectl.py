"""A stand-in of kubectl: it sends what the commands ask to the API from this process.

It proves our side alone. The tests of tests/component/commands/kubernetes that use `whole_cluster`,
or set `quick` to False, run the real kubectl.
"""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import os
import ssl
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlencode, urlsplit

import kubernetes_api
import yaml

from kimi_prov.commands.kubernetes import follow
from kimi_prov.operate.kubernetes.kubectl import Kubectl

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kubernetes_api import Object


class _RefusedError(Exception):
    """What kubectl writes to standard error where it fails."""


class _Api:
    """The API server of a kubeconfig, in one namespace."""

    def __init__(self, config: Path, namespace: str) -> None:
        self.config = yaml.safe_load(config.read_text())
        self.namespace = namespace

    def ask(
        self, verb: str, path: str, query: Mapping[str, str] | None = None, body: object = None
    ) -> str:
        """Send a request; give the content of the answer."""
        cluster, user = self.config["clusters"][0]["cluster"], self.config["users"][0]["user"]
        authority = base64.b64decode(cluster["certificate-authority-data"]).decode()
        where = urlsplit(cluster["server"])
        trusted = ssl.create_default_context(cadata=authority)
        there = http.client.HTTPSConnection(where.netloc, context=trusted)
        headers = {"Authorization": f"Bearer {user['token']}"}
        headers["Content-Type"] = f"application/{'apply-patch+yaml' if verb == 'PATCH' else 'json'}"
        content = None if body is None else json.dumps(body)
        try:
            there.request(verb, f"{path}?{urlencode(query or {})}", content, headers)
            answer = there.getresponse()
            text = answer.read().decode()
        except ConnectionRefusedError:
            raise _RefusedError(
                f"The connection to the server {where.netloc} was refused - did you specify the "
                "right host or port?"
            ) from None
        finally:
            there.close()
        if answer.status >= 400:
            told = json.loads(text)
            raise _RefusedError(f"Error from server ({told['reason']}): {told['message']}")
        return text

    def find(self, kind: str, name: str = "", *more: str) -> str:
        """Give the path of a resource, or of an object."""
        word = kind.partition(".")[0].lower()
        for version, plural, known, spaced in (
            *kubernetes_api.KNOWN,
            *kubernetes_api.MORE.values(),
        ):
            if word in (plural, known.lower()):
                root = ["apis" if "/" in version else "api", version]
                space = ["namespaces", self.namespace] if spaced else []
                return "/" + "/".join([*root, *space, plural, *filter(None, [name]), *more])
        raise AssertionError(kind)

    def get(self, kind: str, name: str, *, or_none: bool) -> Object | None:
        """Give an object; None where there is none and that is no matter."""
        try:
            return dict(json.loads(self.ask("GET", self.find(kind, name))))
        except _RefusedError as error:
            if or_none and "(NotFound)" in str(error):
                return None
            raise


def prepare(waits: Mapping[str, float], *, quick: bool) -> None:
    """Have this process, which is a command's own, wait and ask as a test wants it."""
    for name, value in waits.items():
        assert hasattr(follow, name), name
        setattr(follow, name, value)
    if quick:
        setattr(Kubectl, "run", run)  # noqa: B010 - for this process alone


def run(kubectl: Kubectl, *words: str, content: str | None = None, timeout_s: float = 0) -> str:
    """Stand in for Kubectl.run."""
    del timeout_s
    base = Path(kubectl.program).parent.parent
    with (base / "kubectl-calls").open("a") as stream:
        stream.write(" ".join(kubectl.argv(*words)[1:]) + "\n")
    api = _Api(Path(os.environ["KUBECONFIG"]), kubectl.namespace)
    try:
        return _answer(api, base, words, content)
    except _RefusedError as error:
        raise kubectl._refused(words, str(error)) from None


@dataclass(frozen=True)
class _Call:
    """A command line of kubectl, and the objects that its standard input has."""

    base: Path
    names: list[str]
    options: dict[str, str]
    rows: list[Object]


def _answer(api: _Api, base: Path, words: tuple[str, ...], content: str | None) -> str:
    verb, *rest = words
    options = dict(_read_options(rest))
    names = [word for word in rest if not word.startswith("-") and word not in options.values()]
    rows = [json.loads(part) for part in content.split("\n---\n")] if content else []
    return _ANSWERS[verb](api, _Call(base, names, options, rows))


def _logs(api: _Api, call: _Call) -> str:
    query = {"tailLines": call.options["--tail"]}
    query |= {"previous": "true"} if "--previous" in call.options else {}
    return api.ask("GET", api.find("pods", call.names[0], "log"), query)


def _scale(api: _Api, call: _Call) -> str:
    kind, _, name = call.names[0].partition("/")
    size = {"spec": {"replicas": int(call.options["--replicas"])}}
    return api.ask("PUT", api.find(kind, name, "scale"), body=size)


def _apply(api: _Api, call: _Call) -> str:
    query = {"fieldManager": call.options["--field-manager"]}
    query |= {"dryRun": "All"} if "--dry-run" in call.options else {}
    paths = [api.find(row["kind"], row["metadata"]["name"]) for row in call.rows]
    sent = zip(paths, call.rows, strict=True)
    return _list([json.loads(api.ask("PATCH", path, query, row)) for path, row in sent])


def _read_options(words: list[str]) -> Iterator[tuple[str, str]]:
    for at, word in enumerate(words):
        if word.startswith("--"):
            name, equals, value = word.partition("=")
            apart = name in ("--selector", "--raw", "--container") and not equals
            yield name, words[at + 1] if apart else value
        elif word.startswith("-"):
            yield word, words[at + 1]


def _get(api: _Api, call: _Call) -> str:
    names, options = call.names, call.options
    or_none = "--ignore-not-found" in options
    if "--raw" in options:
        return api.ask("GET", options["--raw"])
    if call.rows:
        wanted = [(row["kind"], row["metadata"]["name"]) for row in call.rows]
    elif len(names) == 1:
        query = {"labelSelector": options.get("--selector", "")}
        kinds = names[0].split(",")
        lists = [json.loads(api.ask("GET", api.find(kind), query)) for kind in kinds]
        rows = [(one["kind"].removesuffix("List"), row) for one in lists for row in one["items"]]
        return json.dumps({"kind": "List", "items": [{"kind": k, **row} for k, row in rows]})
    else:
        wanted = [(names[0], name) for name in names[1:]]
    found = [row for row in (api.get(*one, or_none=or_none) for one in wanted) if row is not None]
    form = options["-o"]
    if form == "name":
        return "".join(f"{row['kind'].lower()}/{row['metadata']['name']}\n" for row in found)
    if form.startswith("jsonpath={.data."):
        item = form.removeprefix("jsonpath={.data.").removesuffix("}").replace("\\.", ".")
        return str(found[0]["data"].get(item, ""))
    return _list(found)


def _list(rows: list[Object]) -> str:
    if len(rows) == 1:
        return json.dumps(rows[0])
    return json.dumps({"kind": "List", "items": rows}) if rows else ""


def _build(folder: Path, program: Path) -> str:
    """Have the real kubectl build it, once for each content of a folder."""
    digest = hashlib.sha256()
    for file in sorted(folder.iterdir()):
        if file.is_file():
            digest.update(f"{file.name}\n".encode() + file.read_bytes())
    kept = program.with_name(f"built-{digest.hexdigest()}")
    if not kept.exists():
        line = [str(program), "kustomize", str(folder)]
        kept.write_text(subprocess.run(line, check=True, capture_output=True, text=True).stdout)
    return kept.read_text()


_ANSWERS: dict[str, Callable[[_Api, _Call], str]] = {
    "version": lambda *_: json.dumps({"clientVersion": {"gitVersion": "v1.37.0"}}),
    "config": lambda api, _: json.dumps(api.config),
    "kustomize": lambda _, call: _build(
        Path(call.names[0]), Path((call.base / "real").read_text())
    ),
    "get": _get,
    "apply": _apply,
    "scale": _scale,
    "logs": _logs,
    "delete": lambda api, call: api.ask("DELETE", api.find(*call.names)),
}
