"""How a value of an inventory's variable is read, by its kind.

Decides: which variables exist, their checks and defaults (how a value is read).
"""

from __future__ import annotations

import difflib
import ipaddress
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kimi_prov.contract.addresses import (
    BUCKET_ADDRESS,
    HUB_ADDRESS,
    LOGIN,
    strip_login,
)
from kimi_prov.errors import UserError
from kimi_prov.facts.gres import find_gres
from kimi_prov.planner.settings.flag_names import NUMBERS

if TYPE_CHECKING:
    from collections.abc import Callable

    from kimi_prov.planner.settings.definitions.variable import Variable

    Parser = Callable[[object, "Occurrence", Path | None], Any]

_FLAG = re.compile(r"[a-z][a-z0-9.-]*")
_SOURCES = (
    "file:///DIRECTORY, http(s)://HOST/PATH, hf://OWNER/NAME@REVISION, s3://BUCKET/FOLDER or "
    "gs://BUCKET/FOLDER"
)
# The characters of a URL (RFC 3986). None of them ends a line, a quoted word or a comment.
_URL = re.compile(r"[A-Za-z0-9._~:/?#\[\]@!$&'()*+,;=%-]+")
_PROXY = re.compile(r"https?://[^/?#]+/?")
_TEXT = re.compile(r"[\w.:@/+\[\]*-]+")
_MAX_MINUTES = 525_600
# A wheel, and the digest by which it is installed.
WHEEL = re.compile(
    r"(?P<address>(?:https?://|file:///|/)[^\s#'\"@]*?(?P<name>[A-Za-z0-9_.+!-]+-py3-none-any\.whl))"
    r"#sha256=(?P<sha256>[0-9a-f]{64})",
    re.ASCII,
)
_INTERVAL = re.compile(r"([0-9]{1,6}) ?([smh])", re.ASCII)
_MIN_INTERVAL_S, _MAX_INTERVAL_S = 10, 720 * 3600
# A job's script has it between quotes: no character may end them or be special to the shell.
_MACHINE_PATH = re.compile(r"[\w.@+:/-]+")
# Minutes, MM:SS, HH:MM:SS, D-HH, D-HH:MM and D-HH:MM:SS (sbatch(1), --time).
_WALLTIME = re.compile(r"[0-9]{1,6}(:[0-5]?[0-9]){0,2}|[0-9]{1,4}-[0-9]{1,2}(:[0-5]?[0-9]){0,2}")
# With the characters by which SLURM joins features and lists. An #SBATCH line has it in quotes.
_SLURM = re.compile(r"[\w.:@/+*&|()\[\],=-]+")
# How `scontrol show partition` and `show node` begin a value, and what they print of none.
_SLURM_LABEL = re.compile(
    r"\s*(?:PartitionName|Partitions|QoS|Account|(?:Available|Active)Features|MaxTime|DefaultTime"
    r"|TimeLimit)\s*=\s*",
    re.IGNORECASE,
)
_SLURM_ABSENT = ("(null)", "n/a")
_NO_LIMIT = ("unlimited", "infinite", "-1")

# A label of RFC 1123, which Kubernetes uses for the names of objects and hosts.
_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_OBJECT = re.compile(_LABEL)
_SERVICE = re.compile(rf"(?=[a-z]){_LABEL}")
_DOMAIN = re.compile(rf"{_LABEL}(\.{_LABEL})*")
# REGISTRY[:PORT]/NAME[:TAG][@DIGEST], as the distribution specification has it.
_IMAGE = re.compile(
    r"[a-z0-9]+([._-]+[a-z0-9]+)*(:[0-9]{1,5}(?=/))?(/[a-z0-9]+([._-]+[a-z0-9]+)*)*"
    r"(:\w[\w.-]{0,127})?(@sha256:[0-9a-f]{64})?",
    re.ASCII,
)
_KEY_NAME = r"[A-Za-z0-9]([\w.-]{0,61}[A-Za-z0-9])?"
_LABEL_KEY = re.compile(rf"({_LABEL}(\.{_LABEL})*/)?{_KEY_NAME}", re.ASCII)
_LABEL_VALUE = re.compile(rf"({_KEY_NAME})?", re.ASCII)
_ISSUER = re.compile(rf"(ClusterIssuer|Issuer)/{_LABEL}(\.{_LABEL})*")
_RESOURCE = re.compile(rf"{_LABEL}(\.{_LABEL})*/{_KEY_NAME}", re.ASCII)
_SCHEDULE = re.compile(r"@(yearly|monthly|weekly|daily|hourly)|[\w*/,-]+( [\w*/,-]+){4}", re.ASCII)
_AMOUNT = re.compile(r"[0-9]{1,7}(\.[0-9]{1,6})?", re.ASCII)
_SHARE = re.compile(r"[0-9]{1,3}(\.[0-9]{1,9})?", re.ASCII)
_MAX_DOMAIN_LENGTH = 253
_EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")


@dataclass(frozen=True)
class Occurrence:
    """A variable, its host and the file and line where it was written, for messages."""

    variable: Variable
    host: str
    where: str | None

    def refuse(self, value: object, expected: str) -> UserError:
        """Make the error for a wrong value; `expected` says what was expected."""
        at = self.where or f"host {self.host}"
        shown = json.dumps(value, default=str) if not isinstance(value, str) else repr(value)
        return UserError(
            f"{at}: {self.variable.name}: expected {expected}, found {shown[:120]}",
            fix=f"write for example  {self._written()}",
        )

    def _written(self) -> str:
        """Return the example in the form of the occurrence: as an option, or in YAML."""
        if self.where and self.where.startswith("--"):
            return f"{self.where} {self.variable.example}"
        return f"{self.variable.name}: {self.variable.example}"


def parse_value(
    variable: Variable, value: object, occurrence: Occurrence, base: Path | None
) -> Any:  # noqa: ANN401
    """Read a value; an unset one becomes the default. Raises UserError for a wrong one."""
    if value is None or value == "":
        return variable.default
    if variable.auto and value == "auto":
        return "auto"
    return _PARSERS[variable.kind](value, occurrence, base)


def _parse_text(value: object, occurrence: Occurrence, _base: Path | None) -> str:
    # YAML reads 0.32 as a number, from which the original text cannot be restored.
    if not isinstance(value, str):
        raise occurrence.refuse(value, "text (in quotes where it looks like a number)")
    if not _TEXT.fullmatch(value):
        raise occurrence.refuse(value, "text without spaces or control characters")
    return str(value)


def _parse_model(value: object, occurrence: Occurrence, base: Path | None) -> str:
    # People write "Kimi K2.5"; the catalogue knows such names too.
    return _parse_text(
        "-".join(value.split()) if isinstance(value, str) else value, occurrence, base
    )


def _is_off(value: object) -> bool:
    # YAML reads a bare off as false, and -e turns that into text.
    return value is False or str(value).lower() in ("off", "false")


def _parse_off_or_gib(value: object, occurrence: Occurrence, _base: Path | None) -> str | int:
    size = parse_int(value)
    if _is_off(value):
        return "off"
    if size is None or not 1 <= size <= occurrence.variable.most:
        raise occurrence.refuse(value, "auto, off, or a whole number of GiB from 1")
    return size


def _parse_off_or_text(value: object, occurrence: Occurrence, base: Path | None) -> str:
    if _is_off(value):
        return "off"
    return _parse_text(value, occurrence, base)


def _parse_choice(value: object, occurrence: Occurrence, _base: Path | None) -> str:
    allowed = occurrence.variable.choices + (("auto",) if occurrence.variable.auto else ())
    if "on" in allowed and str(value).lower() in ("true", "false"):
        # YAML reads a bare on and off so, and -e turns that into text.
        return "off" if _is_off(value) else "on"
    if isinstance(value, str) and value in allowed:
        return str(value)
    for refused, reason, fix in occurrence.variable.refused:
        if str(value).lower() == refused:
            at = occurrence.where or f"host {occurrence.host}"
            raise UserError(f"{at}: {occurrence.variable.name}: {refused}: {reason}", fix=fix)
    near = difflib.get_close_matches(str(value), allowed, n=1, cutoff=0.4)
    hint = f" (did you mean {near[0]}?)" if near else ""
    raise occurrence.refuse(value, f"one of {', '.join(allowed)}{hint}")


def _parse_switch(value: object, occurrence: Occurrence, _base: Path | None) -> bool:
    # -e and Ansible's templates turn true and false into text.
    switch = {"true": True, "false": False}.get(str(value).strip().lower())
    if switch is None or not isinstance(value, (bool, str)):
        raise occurrence.refuse(value, "true or false")
    return switch


def parse_int(value: object) -> int | None:
    """Parse a whole number, also one that Ansible's templates or -e turned into text."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value.strip()):
        return int(value)
    return None


def _parse_count(value: object, occurrence: Occurrence, _base: Path | None) -> int:
    count, most = parse_int(value), occurrence.variable.most
    if count is None or not 1 <= count <= most:
        raise occurrence.refuse(value, f"a whole number from 1 to {most}")
    return count


def _parse_share(value: object, occurrence: Occurrence, _base: Path | None) -> float:
    """Read a share, also one that Ansible's templates or -e turned into text."""
    text = str(value).strip()
    share = float(text) if not isinstance(value, bool) and _SHARE.fullmatch(text) else 0.0
    if not 0 < share <= 1:
        raise occurrence.refuse(value, "a number above 0, 1 at most")
    return share


def _parse_dollars(value: object, occurrence: Occurrence, _base: Path | None) -> float:
    """Read an amount, also one that Ansible's templates or -e turned into text."""
    text = str(value).strip()
    amount = float(text) if not isinstance(value, bool) and _AMOUNT.fullmatch(text) else 0.0
    if amount <= 0:
        raise occurrence.refuse(value, "a number of dollars above 0")
    return amount


def _parse_interval(value: object, occurrence: Occurrence, _base: Path | None) -> int:
    """Read a time with its unit; returns seconds."""
    match = _INTERVAL.fullmatch(value.strip()) if isinstance(value, str) else None
    seconds = int(match[1]) * {"s": 1, "m": 60, "h": 3600}[match[2]] if match else 0
    if not _MIN_INTERVAL_S <= seconds <= _MAX_INTERVAL_S:
        raise occurrence.refuse(value, "a time from 10s to 720h, as 90s, 30m or 2h")
    return seconds


def _parse_minutes(value: object, occurrence: Occurrence, _base: Path | None) -> int:
    minutes = parse_int(value)
    if minutes is None or not 0 <= minutes <= _MAX_MINUTES:
        raise occurrence.refuse(value, "a whole number of minutes, 0 for never")
    return minutes


def _parse_machine_path(value: object, occurrence: Occurrence, _base: Path | None) -> str:
    """Check a path on the cluster or machine; a program found in PATH needs no directory."""
    text = value if isinstance(value, str) else ""
    only_path = occurrence.variable.name in ("kimi_slurm_root", "kimi_idle_hook")
    parts = text.split("/")
    if (
        _MACHINE_PATH.fullmatch(text)
        and ".." not in parts
        and (text.startswith("/") or (len(parts) == 1 and not only_path))
        and text.strip("/")
        and not text.startswith("-")
    ):
        return text.rstrip("/")
    there = "cluster" if occurrence.variable.name.startswith("kimi_slurm_") else "machine"
    raise occurrence.refuse(value, f"an absolute path on the {there}, without spaces")


def _parse_object_name(value: object, occurrence: Occurrence, _base: Path | None) -> str:
    """Check the name of an object, which is short enough for the suffixes that follow it."""
    longest, own = (
        min(occurrence.variable.most, 63),
        occurrence.variable.name == "kimi_kubernetes_name",
    )
    # The name is also a Service's, whose name has to begin with a letter.
    form = _SERVICE if own else _OBJECT
    if isinstance(value, str) and form.fullmatch(value) and len(value) <= longest:
        return value
    first = ", a letter first" if own else ""
    raise occurrence.refuse(value, f"small letters, digits and -{first}, {longest} at most")


def _parse_profile(value: object, occurrence: Occurrence, _base: Path | None) -> str:
    if isinstance(value, str) and _MACHINE_PATH.fullmatch(value):
        parts = value.split("/")
        if "" not in parts and ".." not in parts:
            return value
    raise occurrence.refuse(value, "a path below the kubelet's folder of profiles, without spaces")


def _parse_labels(value: object, occurrence: Occurrence, _base: Path | None) -> dict[str, str]:
    if not hasattr(value, "items"):
        raise occurrence.refuse(value, "a mapping of label to value")
    taints = occurrence.variable.name == "kimi_kubernetes_tolerations"
    labels = {}
    for key, item in value.items():
        if not (isinstance(key, str) and _LABEL_KEY.fullmatch(key)):
            raise occurrence.refuse(key, "a key such as nvidia.com/gpu.product")
        if taints and item not in _EFFECTS:
            raise occurrence.refuse(item, f"an effect: {', '.join(_EFFECTS)}")
        # Without quotes YAML reads true and 8 as other types, but a label is text.
        if not (isinstance(item, str) and _LABEL_VALUE.fullmatch(item)):
            raise occurrence.refuse(
                item, "a label's value as text, in quotes where it looks otherwise"
            )
        labels[key] = item
    return labels


def _parse_walltime(value: object, occurrence: Occurrence, _base: Path | None) -> str:
    # YAML 1.1 reads 24:00:00 as a number in base 60, from which the text cannot be restored.
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        raise occurrence.refuse(value, 'SLURM\'s time in quotes, such as "24:00:00"')
    text = _strip_label(value)
    if isinstance(text, str) and text.lower() in _NO_LIMIT:
        return "0"
    if isinstance(text, str) and _WALLTIME.fullmatch(text):
        return text
    raise occurrence.refuse(value, "minutes, HH:MM:SS or D-HH:MM:SS, in quotes")


def _parse_port(value: object, occurrence: Occurrence, _base: Path | None) -> int:
    port = parse_int(value)
    # The engines use the ports after this one.
    if port is None or not 1 <= port <= 65000:
        raise occurrence.refuse(value, "a TCP port from 1 to 65000")
    return port


def _parse_url(value: object, occurrence: Occurrence, _base: Path | None) -> str:
    if isinstance(value, str):
        try:
            parts = urlsplit(value)
        except ValueError:
            parts = urlsplit("")
        if "@" in parts.netloc:
            # Plans, logs and process lists show URLs, so a URL must not hold a secret.
            raise occurrence.refuse(
                "a URL with credentials", "a URL without user and password (use a .netrc file)"
            )
        if parts.scheme in ("http", "https") and parts.hostname and _URL.fullmatch(value):
            return str(value)
    raise occurrence.refuse(value, "an http or https URL")


def _parse_wheel(value: object, occurrence: Occurrence, _base: Path | None) -> str:
    if isinstance(value, str) and WHEEL.fullmatch(value):
        return str(value)
    raise occurrence.refuse(value, "the URL of a wheel of kimi-prov with its digest: #sha256=...")


def _parse_proxy(value: object, occurrence: Occurrence, base: Path | None) -> str:
    """Check a proxy's URL; no message shows it, because it may hold a password.

    Nothing may follow the port: a special character of a password that is not escaped would put
    the rest of the password there.
    """
    bare, login = strip_login(value) if isinstance(value, str) else ("", "")
    try:
        known = urlsplit(_parse_url(bare, occurrence, base)).port != 0 and _PROXY.fullmatch(bare)
    except (UserError, ValueError):
        known = None
    if not known:
        raise occurrence.refuse(
            "another text", "the URL of a proxy, its user and password with %XX for special signs"
        )
    return f"{bare[: bare.index('//') + 2]}{login}{bare[bare.index('//') + 2 :]}"


def _parse_fingerprint(value: object, occurrence: Occurrence, _base: Path | None) -> str:
    bare = re.sub(r"\s", "", value).upper() if isinstance(value, str) else ""
    if re.fullmatch(r"[0-9A-F]{40}", bare):
        return bare
    raise occurrence.refuse(value, "the 40 hexadecimal digits of a key's fingerprint, in quotes")


def _is_one_word(value: str) -> bool:
    return value.isprintable() and " " not in value


def _parse_source(value: object, occurrence: Occurrence, base: Path | None) -> str:
    if isinstance(value, str):
        if value.startswith("file:///") and ".." not in value and _is_one_word(value):
            return value.rstrip("/")
        if HUB_ADDRESS.fullmatch(value):
            return str(value)
        if BUCKET_ADDRESS.fullmatch(value):
            return value.rstrip("/")
        if value.startswith(("http://", "https://")):
            return _parse_url(value, occurrence, base).rstrip("/")
    raise occurrence.refuse(value, _SOURCES)


def _parse_path(value: object, occurrence: Occurrence, base: Path | None) -> Path:
    if not isinstance(value, str) or "\0" in value:
        raise occurrence.refuse(value, "a path on the control machine")
    try:
        return (base or Path.cwd()) / Path(value).expanduser()
    except RuntimeError:
        raise occurrence.refuse(value, "a path on the control machine") from None


def _parse_file(value: object, occurrence: Occurrence, base: Path | None) -> str:
    path = _parse_path(value, occurrence, base)
    if path.exists() and not path.is_file():
        # It is not opened, because opening a pipe without a writer would wait for one.
        raise occurrence.refuse(value, "a file on the control machine")
    try:
        with path.open("rb"):
            return str(path)
    except OSError as error:
        at = occurrence.where or f"host {occurrence.host}"
        raise UserError(
            f"{at}: {occurrence.variable.name}: {path} on this machine cannot be read: "
            f"{error.strerror}",
            fix="name a file that is there; relative paths start at the inventory's directory",
        ) from None


def _parse_find_links(value: object, occurrence: Occurrence, base: Path | None) -> str:
    if isinstance(value, str) and value.startswith(("http://", "https://")):
        return _parse_url(value, occurrence, base)
    path = _parse_path(value, occurrence, base)
    if not path.is_dir():
        raise occurrence.refuse(value, "a URL or a directory on the control machine that is there")
    return str(path)


def _parse_folder(value: object, occurrence: Occurrence, base: Path | None) -> str:
    path = _parse_path(value, occurrence, base)
    if not path.is_dir():
        raise occurrence.refuse(value, "a directory on the control machine that is there")
    return str(path)


def _parse_list(value: object, occurrence: Occurrence) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return list(value)
    raise occurrence.refuse(value, "a list")


def _parse_texts(value: object, occurrence: Occurrence, base: Path | None) -> list[str]:
    return [_parse_text(item, occurrence, base) for item in _parse_list(value, occurrence)]


def _parse_urls(value: object, occurrence: Occurrence, base: Path | None) -> list[str]:
    return [_parse_url(item, occurrence, base) for item in _parse_list(value, occurrence)]


def _parse_network(text: str) -> str | None:
    # ipaddress accepts any text as the zone after a %, and the text would reach nft and HAProxy.
    if "%" in text:
        return None
    try:
        return str(ipaddress.ip_network(text, strict=True))
    except ValueError:
        return None


def _parse_networks(value: object, occurrence: Occurrence, _base: Path | None) -> list[str]:
    networks = []
    for item in _parse_list(value, occurrence):
        network = _parse_network(str(item))  # as text: ipaddress takes a bare number for an address
        if network is None:
            raise occurrence.refuse(
                item, "networks such as 10.0.0.0/8 or fd00::/8, with no bits set behind the mask"
            )
        networks.append(network)
    return list(dict.fromkeys(networks))


def _parse_flags(value: object, occurrence: Occurrence, _base: Path | None) -> dict[str, Any]:
    if not hasattr(value, "items"):
        raise occurrence.refuse(value, "a mapping of flag to value")
    flags: dict[str, Any] = {}
    for key, item in value.items():
        flag = str(key).lstrip("-").replace("_", "-")
        if not _FLAG.fullmatch(flag):
            raise occurrence.refuse(key, "a flag's name such as max-num-batched-tokens")
        try:
            flags[flag] = json.loads(json.dumps(item, allow_nan=False))
        except (TypeError, ValueError, RecursionError):
            raise occurrence.refuse(
                item, "a text, number, true, false, null, list or mapping"
            ) from None
        reader = NUMBERS.get(flag)
        if reader is not None and flags[flag] is not None:
            read = reader.read(flags[flag])
            if read is None:
                raise occurrence.refuse(item, f"{flag} to be {reader.expected}")
            flags[flag] = read
    return flags


def _make_pattern_parser(
    pattern: re.Pattern[str], expected: str, max_length: int | None = None
) -> Parser:
    """Make a parser of texts that match the whole pattern; it refuses all other values."""

    def parse(value: object, occurrence: Occurrence, _base: Path | None) -> str:
        fits = isinstance(value, str) and (max_length is None or len(value) <= max_length)
        if not (fits and pattern.fullmatch(str(value))):
            raise occurrence.refuse(value, expected)
        return str(value)

    return parse


def _strip_label(value: object) -> object:
    """Return a value without the label before it, as somebody copied it from scontrol."""
    return _SLURM_LABEL.sub("", value, count=1).strip() if isinstance(value, str) else value


_parse_slurm_name = _make_pattern_parser(
    _SLURM, "a name, or names joined as sbatch takes them, without spaces"
)


def _parse_slurm(value: object, occurrence: Occurrence, base: Path | None) -> str | None:
    text = _strip_label(value)
    if isinstance(text, str) and text.lower() in _SLURM_ABSENT:
        default: str | None = occurrence.variable.default
        return default
    name: str = _parse_slurm_name(text, occurrence, base)
    return name


def _parse_partition(value: object, occurrence: Occurrence, base: Path | None) -> str | None:
    """Return a partition's name without the star that `sinfo` prints behind the default one."""
    name = _parse_slurm(value, occurrence, base)
    return name.removesuffix("*") if name else None


def _parse_gres(value: object, occurrence: Occurrence, base: Path | None) -> str:
    text: str = _parse_slurm_name(
        find_gres(value) if isinstance(value, str) else value, occurrence, base
    )
    return text


_PARSERS: dict[str, Parser] = {
    "text": _parse_text,
    "model": _parse_model,
    "off_or_gib": _parse_off_or_gib,
    "off_or_text": _parse_off_or_text,
    "choice": _parse_choice,
    "interval": _parse_interval,
    "switch": _parse_switch,
    "count": _parse_count,
    "share": _parse_share,
    "seconds": _parse_count,
    "port": _parse_port,
    "url": _parse_url,
    "wheel": _parse_wheel,
    "proxy": _parse_proxy,
    "urls": _parse_urls,
    "source": _parse_source,
    "file": _parse_file,
    "folder": _parse_folder,
    "fingerprint": _parse_fingerprint,
    "links": _parse_find_links,
    "networks": _parse_networks,
    "texts": _parse_texts,
    "flags": _parse_flags,
    "dollars": _parse_dollars,
    "place": _parse_machine_path,
    "walltime": _parse_walltime,
    "minutes": _parse_minutes,
    "slurm": _parse_slurm,
    "gres": _parse_gres,
    "partition": _parse_partition,
    "login": _make_pattern_parser(LOGIN, "USER@HOST, as ssh takes it"),
    "object": _parse_object_name,
    "image": _make_pattern_parser(
        _IMAGE, "an image as REGISTRY/NAME:TAG or REGISTRY/NAME@sha256:DIGEST"
    ),
    "labels": _parse_labels,
    "resource": _make_pattern_parser(_RESOURCE, "a resource as DOMAIN/NAME"),
    "issuer": _make_pattern_parser(
        _ISSUER, "ClusterIssuer/NAME or Issuer/NAME", _MAX_DOMAIN_LENGTH
    ),
    "schedule": _make_pattern_parser(
        _SCHEDULE, "five fields of cron with one space between them, in quotes"
    ),
    "domain": _make_pattern_parser(
        _DOMAIN, "a name of small letters, digits, - and .", _MAX_DOMAIN_LENGTH
    ),
    "profile": _parse_profile,
}
