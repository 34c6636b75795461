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

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from kimi_prov.contract.documents.plan import MachinePlan

MASK = "********"
_MIN_LENGTH = 6
_MAX_BYTES = 1 << 20
_PATTERNS = (
    (re.compile(r"\bsk-kimi-[A-Za-z0-9_\-]+"), MASK),
    (re.compile(r"\bhf_[A-Za-z0-9]{6,}"), MASK),
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
)
# Inventory variables whose value is a secret, and those that name a file that holds one.
_VALUES = re.compile(r"ansible_(?:.*_)?pass(?:word|phrase)?\Z")
_PROXIES = frozenset({"kimi_http_proxy", "kimi_https_proxy"})
_FILES = frozenset(
    {
        *("kimi_hf_token_file", "kimi_api_keys_file", "kimi_tls_key_file"),
        "kimi_bucket_credentials_file",
    }
)


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
    for name, value in variables.items():
        if not isinstance(value, str):
            continue
        if _VALUES.match(name):
            secrets.add(value)
        elif name in _PROXIES:
            secrets |= _find_login_secrets(value)
        elif name in _FILES and "{{" not in value:
            secrets |= find_file_secrets(base / Path(value))
    return secrets


def _find_login_secrets(url: str) -> set[str]:
    """Return the password of `scheme://user:password@host`, as written and decoded."""
    login = url.partition("://")[2].rpartition("@")[0]
    password = login.partition(":")[2]
    return {password, unquote(password)} if password else set()


def find_plan_secrets(plan: MachinePlan) -> set[str]:
    """Return the secrets in the control machine's files that a plan names."""
    control: Mapping[str, Any] = plan.get("control") or {}
    tls = (plan.get("proxy") or {}).get("tls") or {}
    names = ("api_keys_file", "hf_token_file", "bucket_credentials_file")
    paths = [*(control.get(name) for name in names), tls.get("key_file")]
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
        text = line.strip()
        if text and not text.startswith(("#", "-----")):
            secrets |= {text, text.rpartition(":")[2].strip(), text.partition("=")[2].strip()}
    return secrets - {""}
