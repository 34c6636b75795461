"""`catalog pin`: a manifest of a repository of the hub, from the hub's own digests.

The hub lists large files with size and SHA-256; for small ones it only has git's blob id, so these
are read, compared with that id, and hashed.
"""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from kimi_prov import documents
from kimi_prov.contract.addresses import HUB_ADDRESS, is_sent_in_clear
from kimi_prov.contract.errors import HostError
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.on_host.weights import manifest as manifests
from kimi_prov.on_host.weights.sources import Web

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_HUB = "https://huggingface.co"
# Limit of a file outside of the hub's large storage.
_SMALL_BYTES = 64 << 20
_PART = 1 << 20


def pin(
    address: str,
    *,
    token_file: Path | None = None,
    ca_bundle: Path | None = None,
    environment: Mapping[str, str] = os.environ,
) -> dict[str, Any]:
    """Return the manifest of `hf://OWNER/NAME@REVISION` at the revision's present commit.

    HF_ENDPOINT names another hub. The token is sent in a header, only to the hub. Raises UserError:
    exit 2 for a wrong address or file, 1 where the hub fails.
    """
    match = HUB_ADDRESS.fullmatch(address)
    if match is None:
        raise UserError(
            f"{address}: expected hf://OWNER/NAME@REVISION",
            fix="write for example  kimi-prov catalog pin hf://moonshotai/Kimi-K2.5@main",
        )
    repository, revision = match[1], match[2] or "main"
    hub = (environment.get("HF_ENDPOINT") or _HUB).rstrip("/")
    headers = _build_headers(token_file)
    if headers and is_sent_in_clear(hub):
        raise UserError(
            f"HF_ENDPOINT: expected https, found {hub!r}: the token of {token_file} would be sent "
            "to it in clear",
            fix="set HF_ENDPOINT to the hub's https address, or leave --hf-token-file out",
        )
    try:
        web = Web(str(ca_bundle) if ca_bundle else environment.get("SSL_CERT_FILE"), 60.0)
        url = f"{hub}/api/models/{repository}/revision/{quote(revision, safe='')}?blobs=true"
        document = json.loads(_read(web, url, headers, _SMALL_BYTES))
        commit = str(document["sha"])
        base = f"{hub}/{repository}/resolve/{commit}"
        entries = [
            _build_entry(row, web, base, headers) for row in document["siblings"] if _is_ours(row)
        ]
    except HostError as error:
        raise UserError(
            f"{address}: {error.message}",
            fix="check the name and the revision; for a repository that needs a token, give "
            "--hf-token-file FILE; for another hub, set HF_ENDPOINT",
            exit_code=ExitCode.FAILED,
        ) from None
    except (ValueError, KeyError, TypeError):
        raise UserError(
            f"{address}: {hub} answered something that is not a repository",
            fix="check HF_ENDPOINT",
            exit_code=ExitCode.FAILED,
        ) from None
    return manifests.Manifest(entries, source=f"hf://{repository}", revision=commit).to_json()


def locate_files(
    address: str,
    commit: str,
    token_file: Path | None,
    environment: Mapping[str, str] = os.environ,
) -> tuple[str, dict[str, str]]:
    """Return the base URL of a repository's files at a commit, and the headers to send.

    `pin` has checked the address before.
    """
    match = HUB_ADDRESS.fullmatch(address)
    repository = match[1] if match else address
    hub = (environment.get("HF_ENDPOINT") or _HUB).rstrip("/")
    return f"{hub}/{repository}/resolve/{commit}", _build_headers(token_file)


def format_text(document: Mapping[str, Any]) -> str:
    """Write the manifest in the form of its file."""
    return json.dumps(document, indent=1) + "\n"


def _build_headers(token_file: Path | None) -> dict[str, str]:
    if token_file is None:
        return {}
    token = documents.read_document(
        token_file,
        what="a token",
        limit=1 << 20,
        fix="name the file that holds the token",
    ).text.strip()
    return {"Authorization": f"Bearer {token}"} if token else {}


def _is_ours(row: Mapping[str, Any]) -> bool:
    """Whether a file belongs to the model: .gitattributes and similar ones do not."""
    name = str(row["rfilename"])
    return not name.rpartition("/")[2].startswith(".") and name != manifests.NAME


def _build_entry(
    row: Mapping[str, Any], web: Web, base: str, headers: dict[str, str]
) -> manifests.Entry:
    path = str(row["rfilename"])
    if not manifests.is_safe_path(path):
        raise HostError(f"{path!r} is not a plain relative path")
    large = row.get("lfs")
    if large:
        return manifests.Entry(path, int(large["size"]), sha256=str(large["sha256"]))
    entry = manifests.Entry(path, int(row["size"]), git_sha1=str(row["blobId"]))
    hasher = entry.hasher()
    body = _read(web, f"{base}/{quote(path)}", headers, min(entry.size, _SMALL_BYTES))
    hasher.update(body)
    if len(body) != entry.size or not hasher.matches():
        raise HostError(f"{path}: the bytes that came are not those that the hub names")
    return manifests.Entry(path, entry.size, sha256=hasher.sha256())


def _read(web: Web, url: str, headers: dict[str, str], most: int) -> bytes:
    stream = web.open(url, headers, 0)
    try:
        parts = []
        left = most + 1
        while left > 0 and (part := stream.read(min(_PART, left))):
            parts.append(part)
            left -= len(part)
    except OSError as error:
        raise HostError(f"the answer was cut off: {error}", retryable=True) from None
    finally:
        stream.close()
    if left <= 0:
        raise HostError(f"the answer is larger than the {most} bytes that were announced")
    return b"".join(parts)
