"""Reaches a bucket of S3's or Google's protocol by the distribution's rclone.

Secrets stay in the file of credentials: rclone gets its path in a variable, and neither its command
line, nor its environment, nor our messages about its output hold more.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import subprocess
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from kimi_prov.contract import clean_text
from kimi_prov.contract.addresses import BUCKET_ADDRESS
from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.system import process

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

PROGRAM = "rclone"
S3, GCS = "s3", "gs"
_BACKENDS = {S3: "s3", GCS: "gcs"}
_LISTING_S = 300.0
_CONNECT_S = 30
# Where the machine's role is asked, if not at the clouds' own address; and the site's forward
# proxy.
_PASSED_ON = (
    *("AWS_EC2_METADATA_SERVICE_ENDPOINT", "GCE_METADATA_HOST"),
    *("http_proxy", "https_proxy", "no_proxy", "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
)
_CREDENTIALS_FIX = (
    "set kimi_bucket_credentials_file to credentials that may read the bucket, or give the machine "
    "a role that may"
)
_LOG_PREFIX = re.compile(r"^\d{4}/\d\d/\d\d \d\d:\d\d:\d\d (?:(?:ERROR|NOTICE|CRITICAL) *: *)?")
_NOISE = re.compile(r"\s*(?:status code: (\d{3}), )?request id: [^,]*, host id: ?\S*")
_MIN_SECRET_LENGTH = 8
_MESSAGE = 300


class Row(NamedTuple):
    """An object: its size in bytes, and when it was written, as the bucket says."""

    size: int
    modified: str


@dataclass(frozen=True)
class Access:
    """How buckets are reached: by which credentials (None: the machine's role), and where."""

    credentials_file: str | None = None
    endpoint: str | None = None
    region: str | None = None
    ca_bundle: str | None = None

    @classmethod
    def from_weights(cls, weights: Mapping[str, Any]) -> Access:
        """Return how the plan's `weights` reach their bucket."""
        told = weights.get("bucket") or {}
        return cls(
            credentials_file=told.get("credentials_file"),
            endpoint=told.get("endpoint"),
            region=told.get("region"),
            ca_bundle=weights.get("ca_bundle"),
        )


class CredentialsError(HostError):
    """The bucket's provider refuses the credentials, or there are none."""


class AbsentError(HostError):
    """There is no such bucket, or nothing below that folder of it."""


class ThrottledError(HostError):
    """The provider answers that there are too many requests; retryable."""

    def __init__(self, message: str) -> None:
        super().__init__(message, retryable=True)


class Bucket:
    """A folder of a bucket, `s3://BUCKET/FOLDER` or `gs://BUCKET/FOLDER`."""

    def __init__(self, url: str, access: Access, stall_s: float = 60.0) -> None:
        named = BUCKET_ADDRESS.fullmatch(url)
        if named is None:
            raise HostError(
                f"kimi_weights_source {url!r} names no bucket",
                "name s3://BUCKET/FOLDER or gs://BUCKET/FOLDER",
            )
        self.scheme, self.bucket = named[1], named[2]
        self.folder = (named[3] or "").strip("/")
        self.name = url.rstrip("/")
        self.access = access
        self._stall_s = stall_s
        self._secrets = _read_secrets(access.credentials_file)

    def locate(self, path: str) -> str:
        """Return the path of an object as rclone's argument names it."""
        inner = "/".join(part for part in (self.bucket, self.folder, path) if part)
        return f":{_BACKENDS[self.scheme]}:{inner}"

    def command(self, *arguments: str) -> list[str]:
        """Return rclone's command line; the caller retries, because it keeps what has arrived."""
        program = shutil.which(PROGRAM, path="/usr/local/bin:/usr/bin:/bin")
        if program is None:
            raise HostError(f"{PROGRAM} is not installed", "apt-get install rclone")
        return [
            *(program, *arguments, "--config", "/dev/null"),
            *("--retries", "1", "--low-level-retries", "1", "--stats", "0"),
            *("--contimeout", f"{_CONNECT_S}s", "--timeout", f"{self._stall_s:g}s"),
        ]

    def environment(self) -> dict[str, str]:
        """Return rclone's environment: paths and addresses, no secret but the site's own proxy."""
        found = {"PATH": "/usr/local/bin:/usr/bin:/bin", "HOME": "/nonexistent", "LC_ALL": "C"}
        found.update({name: os.environ[name] for name in _PASSED_ON if name in os.environ})
        if self.access.ca_bundle:
            # The system's own authorities are read from the directory: both are trusted.
            found["SSL_CERT_FILE"] = self.access.ca_bundle
            found["SSL_CERT_DIR"] = "/etc/ssl/certs"
        of_scheme = self._of_s3() if self.scheme == S3 else self._of_gcs()
        return {**found, **{name: value for name, value in of_scheme.items() if value}}

    def _of_s3(self) -> dict[str, str | None]:
        endpoint = self.access.endpoint
        return {
            "RCLONE_S3_PROVIDER": "Other" if endpoint else "AWS",
            "RCLONE_S3_ENV_AUTH": "true",
            "RCLONE_S3_ENDPOINT": endpoint,
            "RCLONE_S3_REGION": self.access.region or ("us-east-1" if endpoint else None),
            "RCLONE_S3_NO_CHECK_BUCKET": "true",
            "AWS_SHARED_CREDENTIALS_FILE": self.access.credentials_file or "/dev/null",
            "AWS_CONFIG_FILE": "/dev/null",
        }

    def _of_gcs(self) -> dict[str, str | None]:
        endpoint = self.access.endpoint
        return {
            "RCLONE_GCS_ENDPOINT": f"{endpoint.rstrip('/')}/storage/v1/" if endpoint else None,
            "RCLONE_GCS_NO_CHECK_BUCKET": "true",
            "RCLONE_GCS_BUCKET_POLICY_ONLY": "true",
            "GOOGLE_APPLICATION_CREDENTIALS": self.access.credentials_file,
        }

    def objects(self) -> dict[str, Row]:
        """List what lies below the folder, by path. Raises HostError."""
        self.require_credentials()
        done = process.run(
            *self.command("lsjson", "--recursive", "--files-only", "--no-mimetype"),
            *("--use-server-modtime", self.locate("")),
            env=self.environment(),
            timeout=_LISTING_S,
        )
        if done.returncode == process.TIMED_OUT:
            raise HostError(f"{self.name}: no listing in {_LISTING_S:.0f} s", retryable=True)
        if done.returncode != 0:
            self.fail(done.stderr)
        try:
            rows = json.loads(done.stdout)
            return {
                str(row["Path"]): Row(int(row["Size"]), str(row.get("ModTime") or ""))
                for row in rows
            }
        except (ValueError, KeyError, TypeError):
            raise HostError(f"{self.name}: {PROGRAM} listed something unreadable") from None

    def read(self, path: str, limit: int) -> bytes | None:
        """Return a small object; None where there is none. Raises HostError."""
        row = self.objects().get(path)
        if row is None:
            return None
        if row.size > limit:
            raise HostError(f"{self.name}/{path}: has {row.size} bytes, more than {limit}")
        reading = self.start("cat", self.locate(path))
        content, said = reading.communicate()
        if reading.returncode != 0:
            self.fail(said.decode("utf-8", "replace"))
        if len(content) != row.size:
            raise HostError(f"{self.name}/{path}: was cut off", retryable=True)
        return content

    def write(self, path: str, content: bytes, limit_s: float | None = None) -> None:
        """Write a small object in one piece. Raises HostError, also where it takes too long."""
        self.require_credentials()
        try:
            done = subprocess.run(
                self.command("rcat", self.locate(path)),
                input=content,
                capture_output=True,
                env=self.environment(),
                timeout=limit_s,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise HostError(
                f"{self.name}: not written in {limit_s:.0f} s", retryable=True
            ) from None
        if done.returncode != 0:
            self.fail(done.stderr.decode("utf-8", "replace"))

    def lines(self, paths: Sequence[str], limit_s: float) -> list[str]:
        """Read small objects that end with a line end, in any order; return their lines."""
        done = process.run(
            *self.command("cat", "--files-from-raw", "-", self.locate("")),
            stdin="".join(f"{path}\n" for path in paths),
            env=self.environment(),
            timeout=limit_s,
        )
        if done.returncode == process.TIMED_OUT:
            raise HostError(f"{self.name}: not read in {limit_s:.0f} s", retryable=True)
        if done.returncode != 0:
            self.fail(done.stderr)
        return done.stdout.splitlines()

    def start(self, *arguments: str, stdin: int | None = None) -> subprocess.Popen[bytes]:
        """Start rclone; standard output and error are pipes."""
        return subprocess.Popen(
            self.command(*arguments),
            stdin=subprocess.DEVNULL if stdin is None else stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=self.environment(),
            start_new_session=True,
        )

    def require_credentials(self) -> None:
        """Raise CredentialsError where the file that is named cannot be read."""
        path = self.access.credentials_file
        if path and not os.access(path, os.R_OK):
            raise CredentialsError(f"{path}: the credentials cannot be read", _CREDENTIALS_FIX)

    def fail(self, said: str) -> NoReturn:
        """Raise the error that rclone's standard error describes. Raises HostError."""
        raise parse_error(self.name, self.hidden(said))

    def hidden(self, text: str) -> str:
        """Return a text without the credentials: parsers quote what they read."""
        for secret in self._secrets:
            text = text.replace(secret, "********")
        return text


_KINDS: Sequence[tuple[str, str]] = (
    ("throttled", r"SlowDown|ServiceUnavailable|RequestLimitExceeded|Throttl|TooManyRequests"),
    ("throttled", r"rateLimitExceeded|InternalError|backendError"),
    ("throttled", r"(?:status code:|googleapi: (?:got HTTP response code|Error)) (?:429|5\d\d)"),
    ("untrusted", r"x509: "),
    ("unreadable", r"SharedConfigLoadError|SharedCredsLoad|INIParseError|invalid character"),
    ("unreadable", r"error processing credentials|private key should be a PEM"),
    ("credentials", r"InvalidAccessKeyId|SignatureDoesNotMatch|AccessDenied|AllAccessDisabled"),
    ("credentials", r"ExpiredToken|InvalidToken|TokenRefreshRequired|AuthorizationHeaderMalformed"),
    ("credentials", r"NoCredentialProviders|SharedCredsAccessKey|SharedCredsSecret"),
    ("credentials", r"could not find default credentials|error getting credentials|invalid_grant"),
    ("credentials", r"(?:status code:|googleapi: (?:got HTTP response code|Error)) 40[13]"),
    ("credentials", r"oauth2: cannot fetch token: 40[0134]"),
    ("absent", r"directory not found|object not found|NoSuchBucket|NoSuchKey|status code: 404"),
)


def parse_error(name: str, said: str) -> HostError:
    """Return the error that rclone's message describes: retryable, or one that needs a person."""
    reason = _find_reason(said)
    kind = next((kind for kind, pattern in _KINDS if re.search(pattern, said)), "")
    text = f"{name}: {reason}"
    if kind == "unreadable":
        # The reason is left out: a parser shows what it read, also as a list of bytes.
        return CredentialsError(
            f"{name}: the file of credentials is not one that {PROGRAM} can read",
            "name an AWS credentials file (s3://) or a service account's JSON (gs://) in "
            "kimi_bucket_credentials_file",
        )
    if kind == "throttled":
        return ThrottledError(text)
    if kind == "untrusted":
        fix = "set kimi_ca_bundle where the site has a certificate authority of its own"
        return HostError(text, fix)
    if kind == "credentials":
        return CredentialsError(f"{name}: the credentials are refused: {reason}", _CREDENTIALS_FIX)
    if kind == "absent":
        return AbsentError(
            f"{name}: there is no such bucket or folder",
            "correct the bucket in kimi_weights_source, or fill it: kimi-prov weights seed "
            f"hf://OWNER/NAME@REVISION {clean_text.quote_word(name)}",
        )
    return HostError(text, retryable=True)


def _find_reason(said: str) -> str:
    """Return rclone's last message in one line, without time and numbers of requests."""
    entries: list[str] = []
    for line in said.splitlines():
        if _LOG_PREFIX.match(line):
            entries.append(_LOG_PREFIX.sub("", line))
        elif entries:
            entries[-1] += " " + line.strip()
    last = entries[-1] if entries else said.strip() or "it said nothing"
    last = last.rpartition("last error was: ")[2]
    last = re.sub(r"^Failed to \w+(?: with \d+ errors)?: ", "", last)
    last = _NOISE.sub(lambda found: f" ({found[1]})" if found[1] else "", last)
    return clean_text.clean_line(" ".join(last.split()))[:_MESSAGE]


def _read_secrets(path: str | None) -> list[str]:
    """Return the secrets of a credentials file; empty where it is unreadable."""
    if path is None:
        return []
    try:
        with open(path, encoding="utf-8", errors="replace") as stream:
            text = stream.read(1 << 20)
    except OSError:
        return []
    found = {line.partition("=")[2].strip() for line in text.splitlines() if "=" in line}
    with contextlib.suppress(ValueError):
        document = json.loads(text)
        found = set(_list_json_secrets(document)) if isinstance(document, dict) else found
    return sorted((v for v in found if len(v) >= _MIN_SECRET_LENGTH), key=len, reverse=True)


def _list_json_secrets(document: Mapping[str, Any]) -> list[str]:
    names = ("private_key", "private_key_id", "refresh_token", "client_secret", "access_token")
    values = [str(document[name]) for name in names if document.get(name)]
    return [part.strip() for value in values for part in value.splitlines()]
