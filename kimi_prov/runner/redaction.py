"""Keep secrets out of logs and documents."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from kimi_prov import documents
from kimi_prov.contract import clean_text
from kimi_prov.errors import UserError
from kimi_prov.packaging import role_specs
from kimi_prov.planner.settings import definitions

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.planner.settings.definitions.variable import Hidden

MASK = "********"
_MIN_LENGTH = 6
_MAX_BYTES = 1 << 20
# A secret's name before its value: in a header, in JSON, on a command line, in a file of settings.
_NAMES = (
    r"(?:[a-z0-9_]*(?:passw(?:or)?d|passphrase|(?:api|access|account|secret)[-_]?key"
    r"|(?:access|auth|bearer|hf|hub|id|private|refresh|secret|session)[-_]?token|client[-_]?secret)"
    r"|x-(?:api|goog-api)-key|x-amz-security-token)"
)
_PATTERNS = (
    (re.compile(r"\bsk-(?:kimi-[A-Za-z0-9_\-]+|[A-Za-z0-9_\-]{16,})"), MASK),
    (re.compile(r"\bhf_[A-Za-z0-9]{6,}"), MASK),
    # GitHub's, GitLab's and Slack's tokens, and Google's keys
    (re.compile(r"\b(?:gh[a-z]_|github_pat_|glpat-|xox[a-z]-)[A-Za-z0-9_\-]{10,}"), MASK),
    (re.compile(r"\bAIza[A-Za-z0-9_\-]{30,}"), MASK),
    (re.compile(r"\b(?:AKIA|ASIA)[A-Z0-9]{16}\b"), MASK),
    (re.compile(r"\beyJ[A-Za-z0-9_\-]+\.[A-Za-z0-9_\-]+\.[A-Za-z0-9_\-]*"), MASK),
    (re.compile(r"(?i)\bAGE-SECRET-KEY-1[A-Z0-9]+"), MASK),
    (
        re.compile(r"(?i)(authorization['\"]?\s*[:=]\s*['\"]?(?:bearer|basic|token)\s+)[^\s'\",]+"),
        rf"\1{MASK}",
    ),
    (re.compile(r"(?i)(\bbearer\s+)[A-Za-z0-9._~+/=\-]{8,}"), rf"\1{MASK}"),
    (
        re.compile(r"-----BEGIN ([A-Z ]*PRIVATE KEY)-----.*?(?:-----END \1-----|\Z)", re.DOTALL),
        MASK,
    ),
    # user:password@ in the URL of an index or a mirror
    (re.compile(r"(://[^/\s:@'\"]+:)[^/\s@'\"]+(@)"), rf"\1{MASK}\2"),
    # a signed URL: of Amazon's, Google's and Azure's stores
    (
        re.compile(
            r"(?i)([?&](?:x-(?:amz|goog)-(?:signature|credential|security-token)"
            r"|signature|sig|awsaccesskeyid|googleaccessid)=)[^&\s'\"]+"
        ),
        rf"\1{MASK}",
    ),
    (re.compile(rf"(?i)(\b{_NAMES}['\"]?\s*[:=]\s*['\"]?)[^\s'\",;&]{{6,}}"), rf"\1{MASK}"),
)
_RULES = re.compile(r"(?:\s+[a-z_]+=\S+)+\Z")
# Ansible's own variables whose value is a secret; ours are marked in their definitions.
_VALUES = re.compile(r"ansible_(?:.*_)?pass(?:word|phrase)?\Z")


class Masker:
    """Replaces texts that look like secrets, and the secrets that it knows."""

    def __init__(self, values: Iterable[str] = ()) -> None:
        self._values: set[str] = set()
        self._known: re.Pattern[str] | None = None
        self.add(values)

    def add(self, values: Iterable[str]) -> None:
        """Add secrets; values too short to differ from ordinary words are not added."""
        fresh = {value.strip() for value in values} - self._values
        for value in fresh:
            if len(value) >= _MIN_LENGTH:
                self._values |= {value, *_list_written_forms(value)}
        longest = sorted(self._values, key=len, reverse=True)
        self._known = re.compile("|".join(map(re.escape, longest))) if longest else None

    def mask(self, text: str) -> str:
        """Return `text` without secrets."""
        if self._known:
            text = self._known.sub(MASK, text)
        for pattern, instead in _PATTERNS:
            text = pattern.sub(instead, text)
        return text


def make_masker(
    hosts: Mapping[str, Mapping[str, Any]], base: Path, secrets: Iterable[str]
) -> Masker:
    """Return a masker that knows the secrets of an inventory's variables, and further ones."""
    masker = Masker(secrets)
    for variables in hosts.values():
        masker.add(find_variable_secrets(variables, base))
    return masker


def mask_value(value: Any, mask: Callable[[str], str]) -> Any:  # noqa: ANN401  (whatever JSON can hold)
    """Return texts, lists and mappings without secrets, names of keys included."""
    if isinstance(value, str):
        return mask(value)
    if isinstance(value, Mapping):
        return {mask_value(key, mask): mask_value(inner, mask) for key, inner in value.items()}
    if isinstance(value, list | tuple):
        return [mask_value(inner, mask) for inner in value]
    return value


def _list_written_forms(secret: str) -> set[str]:
    """Return the forms that a secret takes in a log, in our JSON and in Ansible's."""
    return {
        clean_text.clean_block(secret),
        clean_text.as_json(secret)[1:-1],
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
    }


def find_variable_secrets(variables: Mapping[str, Any], base: Path) -> set[str]:
    """Return the secrets of one host's inventory variables, those in files included.

    Relative paths start at `base`.
    """
    secrets: set[str] = set()
    files = role_specs.find_secret_files(variables)
    for name, value in variables.items():
        if not isinstance(value, str):
            continue
        kind = "file" if name in files else _get_hidden_kind(name)
        if _VALUES.match(name):
            secrets.add(value)
        elif kind == "login":
            secrets |= _find_login_secrets(value)
        elif kind == "file" and "{{" not in value:
            secrets |= find_file_secrets(base / Path(value))
    return secrets


def _get_hidden_kind(name: str) -> Hidden | None:
    variable = definitions.BY_NAME.get(name)
    return variable.hides if variable else None


def _find_login_secrets(url: str) -> set[str]:
    """Return the password of `scheme://user:password@host`, as written and decoded."""
    login = url.partition("://")[2].rpartition("@")[0]
    password = login.partition(":")[2]
    return {password, unquote(password)} if password else set()


def find_plan_secrets(plan: MachinePlan) -> set[str]:
    """Return the secrets in the control machine's files that a plan names."""
    control: Mapping[str, Any] = plan.get("control") or {}
    tls = (plan.get("proxy") or {}).get("tls") or {}
    marked = (
        row.name.removeprefix("kimi_") for row in definitions.VARIABLES if row.hides == "file"
    )
    paths = [*(control.get(name) for name in marked), tls.get("key_file")]
    secrets: set[str] = set()
    for path in filter(None, paths):
        secrets |= find_file_secrets(Path(str(path)))
    return secrets


def find_file_secrets(path: Path) -> set[str]:
    """Return each line of a secret file, and the rest of a line after NAME: or NAME=.

    Empty if the file cannot be read.
    """
    try:
        path = path.expanduser()
        content = documents.read_bytes(path, what="a secret", limit=_MAX_BYTES, fix="")
    except (UserError, RuntimeError):
        return set()
    lines = content.decode("utf-8", "replace").splitlines()
    secrets: set[str] = set()
    for line in lines:
        # A rule may stand after an API key.
        text = _RULES.sub("", line.strip())
        if text and not text.startswith(("#", "-----")):
            parts = text.partition(":")[2], text.rpartition(":")[2], text.partition("=")[2]
            secrets |= {text, *(part.strip() for part in parts)}
    return secrets - {""}
