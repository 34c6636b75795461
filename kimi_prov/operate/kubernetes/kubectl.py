"""Find and call the user's own kubectl, and explain its errors.

Names and namespaces are arguments; its output is only data. No secret is ever an argument.

Decides: a rendered folder in a Kubernetes cluster (how kubectl is called).
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import clean_text
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.operate.kubernetes import answers

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

# The first version whose kustomize puts labels into templates too.
MIN_VERSION = (1, 27)
MANAGER = "kimi-prov"
_BUILD = "kustomize"
_READ_TIMEOUT_S = 30
_TIMEOUT_S = 180
_INSTALL = "https://kubernetes.io/docs/tasks/tools/"
_AWAY = re.compile(
    r"unable to connect to the server|did you specify the right host or port|dial tcp|no such host"
    r"|i/o timeout|TLS handshake|connection refused|no route to host|x509:|EOF$"
    r"|context deadline exceeded|Client\.Timeout|the server is currently unable to handle",
    re.IGNORECASE,
)
_LOGIN = re.compile(
    r"unauthorized|must be logged in|getting credentials|no configuration has been provided"
    r"|context \S+ does not exist|cannot locate context|invalid configuration"
    r"|current-context must exist"
    r"|error loading config",
    re.IGNORECASE,
)
# Errors whose text looks like a missing right or a server that does not answer, and is neither: a
# quota, limits, an admission policy, a webhook that does not answer.
_RULES = (
    (
        re.compile(r"(?:exceeded|failed) quota"),
        ExitCode.BLOCKED,
        "ask who runs the cluster for a larger quota:  {kubectl} describe resourcequota",
    ),
    (
        re.compile(r"(?:minimum|maximum) \S+ usage per "),
        ExitCode.BLOCKED,
        "keep to its limits:  {kubectl} describe limitrange",
    ),
    (
        re.compile(r"denied (?:the )?request|violates PodSecurity"),
        ExitCode.BLOCKED,
        "change the folder's files as the policy wants, or ask who runs the cluster",
    ),
    (
        re.compile(r"failed (?:calling|to call) webhook|conversion webhook for .* failed"),
        ExitCode.FAILED,
        "see why the webhook that it names does not answer, or ask who runs the cluster",
    ),
)
_FORBIDDEN = re.compile(r"\(Forbidden\)|is forbidden: User|cannot \w+ resource", re.IGNORECASE)
_ABSENT = re.compile(r"\(NotFound\)|could not find the requested resource|have a resource type")
# Warnings of the server and of kubectl's logger come before the reason.
_NOISE = re.compile(r"[IWEF]\d{4} |Warning: ")


class AbsentError(UserError):
    """The requested object does not exist."""


class ForbiddenError(UserError):
    """The user may not see or do that."""


@dataclass(frozen=True)
class Target:
    """The context and namespace that the command line names."""

    context: str | None = None
    namespace: str | None = None


@dataclass(frozen=True)
class Kubectl:
    """kubectl with the context and namespace that every call gets."""

    program: str
    context: str
    namespace: str

    @classmethod
    def find(cls, target: Target) -> Kubectl:
        """Find kubectl on PATH and read its configuration. Raises UserError if it is unusable."""
        program = shutil.which("kubectl")
        if program is None:
            raise UserError("kubectl is not on this machine", fix=f"install it: {_INSTALL}")
        for option, value in (("--context", target.context), ("--namespace", target.namespace)):
            if value is not None and (not value or value.startswith("-")):
                raise UserError(f"{option}: expected a name, found {value!r}", fix="name one")
        if target.namespace is not None and not answers.NAME.fullmatch(target.namespace):
            raise UserError(
                f"--namespace: {target.namespace!r} is no namespace's name",
                fix="small letters, digits and dashes",
            )
        plain = cls(program, "", "")
        _check_version(plain.json("version", "--client"), program)
        kubectl = cls(program, target.context or "", "")
        view = kubectl.json("config", "view", "--minify")
        context = answers.read_text(view, "current-context")
        own = answers.read_text(view, "contexts", 0, "context", "namespace")
        return cls(program, target.context or context, target.namespace or own or "default")

    def within(self, namespace: str) -> Kubectl:
        """Return the same for another namespace."""
        return replace(self, namespace=namespace)

    @property
    def where(self) -> str:
        """The cluster and namespace, as messages call them."""
        inside = f", namespace {self.namespace}" if self.namespace else ""
        return f"{self.context or 'the cluster'}{inside}"

    def format_command(self, *words: str) -> str:
        """Write a command that somebody may paste."""
        return " ".join(clean_text.quote_word(word) for word in ("kubectl", *self._place(), *words))

    def run(self, *words: str, content: str | None = None, timeout_s: float = _TIMEOUT_S) -> str:
        """Run kubectl and return its output. Raises UserError, which explains the failure."""
        try:
            done = subprocess.run(
                self.argv(f"--request-timeout={_READ_TIMEOUT_S}s", *words),
                input=content,
                stdin=subprocess.DEVNULL if content is None else None,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_s,
                env=make_environment(),
                check=False,
            )
        except OSError as error:
            raise UserError(
                f"{self.program}: cannot be started: {error.strerror}",
                fix=f"install it: {_INSTALL}",
            ) from None
        except subprocess.TimeoutExpired:
            raise self._away(f"no answer within {timeout_s:.0f} s") from None
        if done.returncode != 0:
            raise self._refused(words, done.stderr)
        return done.stdout

    def argv(self, *words: str) -> list[str]:
        """Return a whole command line."""
        return [self.program, *self._place(), *words]

    def json(self, *words: str, content: str | None = None) -> Any:  # noqa: ANN401  (data)
        """Run it and return its JSON; None where it printed nothing."""
        output = self.run(*words, "-o", "json", content=content)
        if not output.strip():
            return None
        try:
            return json.loads(output)
        except (ValueError, RecursionError):
            raise UserError(
                f"{self.where}: kubectl {words[0]} gave no JSON",
                fix=f"try  {self.format_command(*words)}",
                exit_code=ExitCode.FAILED,
            ) from None

    def items(self, *words: str, content: str | None = None) -> list[answers.Object]:
        """Return the objects of a list, or the single object that kubectl printed."""
        document = self.json(*words, content=content)
        if (
            answers.read_text(document, "kind").endswith("List")
            or answers.read_path(document, "items") is not None
        ):
            return answers.read_rows(document, "items")
        return [document] if isinstance(document, dict) else []

    def get(self, kind: str, name: str) -> answers.Object | None:
        """Return an object of the namespace by kind and name; None where there is none."""
        try:
            document = self.json("get", kind, name, "--ignore-not-found")
        except AbsentError:
            return None
        return document if isinstance(document, dict) else None

    def list_all(self, kind: str, selector: str = "") -> list[answers.Object]:
        """Return the namespace's objects of a kind; none where the cluster does not know it."""
        chosen = ["--selector", selector] if selector else []
        try:
            return self.items("get", kind, *chosen)
        except AbsentError:
            return []

    def several(
        self, kinds: Sequence[str], selector: str = ""
    ) -> dict[str, list[answers.Object] | None]:
        """Return objects of several kinds, by kind; None for one that the user may not see.

        One call for all of them; one for each where something in it is refused.
        """
        chosen = ["--selector", selector] if selector else []
        by_kind: dict[str, list[answers.Object] | None] = {}
        try:
            rows = self.items("get", ",".join(kinds), *chosen)
        except (ForbiddenError, AbsentError):
            for kind in kinds:
                try:
                    by_kind[kind] = self.list_all(kind, selector)
                except ForbiddenError:
                    by_kind[kind] = None
            return by_kind
        for kind in kinds:
            # pods are of the kind Pod, ingressclasses of IngressClass.
            plural = kind.partition(".")[0]
            by_kind[kind] = [
                r for r in rows if plural == _name_plural(answers.read_text(r, "kind"))
            ]
        return by_kind

    def build(self, folder: Path) -> str:
        """Return what the folder's kustomization makes, as YAML."""
        return self.run(_BUILD, str(folder.absolute()))

    def _place(self) -> list[str]:
        words = ["--context", self.context] if self.context else []
        return [*words, *(["--namespace", self.namespace] if self.namespace else [])]

    def _refused(self, words: tuple[str, ...], error_text: str) -> UserError:
        reason = _explain_refusal(error_text)
        message = f"{self.where}: kubectl {words[0]}: {reason}"
        if words[0] == _BUILD:
            return UserError(message, fix=f"correct it; try  {self.format_command(*words)}")
        # All lines: the first of several may be the one that gives the reason.
        for pattern, code, fix in _RULES:
            if pattern.search(reason):
                error_text = fix.replace("{kubectl}", self.format_command())
                return UserError(message, fix=error_text, exit_code=code)
        if _AWAY.search(reason):
            return self._away(reason)
        if _LOGIN.search(reason):
            fix = (
                "kubectl config get-contexts  names them; log in again where your cluster wants it"
            )
            return UserError(f"{self.context or 'kubectl'}: {reason}", fix=fix)
        if _FORBIDDEN.search(reason):
            return ForbiddenError(message, fix="ask who runs the cluster for that right")
        kind = AbsentError if _ABSENT.search(reason) else UserError
        return kind(message, fix=f"try  {self.format_command(*words)}", exit_code=ExitCode.FAILED)

    def _away(self, reason: str) -> UserError:
        fix = f"try  {replace(self, namespace='').format_command('cluster-info')}"
        where = self.context or "the cluster"
        return UserError(f"{where}: {reason}", fix=fix, exit_code=ExitCode.UNREACHABLE)


def _name_plural(kind: str) -> str:
    """Return a kind's plural by the rule that also named the requested kinds."""
    return kind.lower() + ("es" if kind.endswith("s") else "s")


def make_environment() -> dict[str, str]:
    """Return what kubectl runs with: its messages in English."""
    return {**os.environ, "LC_ALL": "C.UTF-8"}


def _explain_refusal(message: str) -> str:
    lines = [line for line in clean_text.clean_block(message).splitlines() if line.strip()]
    lines = [line for line in lines if not _NOISE.match(line)] or lines
    return clean_text.clean_line(" ".join(lines))[:500] or "it gave no reason"


def _check_version(answer: object, program: str) -> None:
    version = answers.read_text(answer, "clientVersion", "gitVersion")
    match = re.match(r"v(\d{1,4})\.(\d{1,4})", version)
    if match is None:
        raise UserError(f"{program}: it tells no version", fix=f"install kubectl: {_INSTALL}")
    if (int(match[1]), int(match[2])) < MIN_VERSION:
        oldest = ".".join(map(str, MIN_VERSION))
        raise UserError(
            f"{program}: {clean_text.clean_line(version)} is older than {oldest}",
            fix=f"install {oldest} or newer: {_INSTALL}",
        )
