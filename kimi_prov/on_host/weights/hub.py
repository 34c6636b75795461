"""List a repository of the Hugging Face hub; runs in the environment that has huggingface_hub.

Prints one JSON object: commit, files (path, size, digest, url) and the headers to send, or an
error. It is read through a pipe: the headers may contain the token.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.weights.manifest import NAME


def main(argv: list[str]) -> int:
    """`REPOSITORY REVISION [TOKEN_FILE]`."""
    token = None
    try:
        if len(argv) > 2:
            with open(argv[2], encoding="utf-8") as stream:
                token = stream.read().strip() or None
    except OSError as error:
        answer = _build_failure(
            HostError(f"the token file {argv[2]} cannot be read: {error.strerror}")
        )
    else:
        answer = _answer_request(argv[0], argv[1], token)
    json.dump(answer, sys.stdout)
    return 0


def _answer_request(repository: str, revision: str, token: str | None) -> dict[str, Any]:
    try:
        return describe(repository, revision, token)
    except Exception as error:  # noqa: BLE001  (its transport errors share no public base)
        return explain(error, revision)


def describe(repository: str, revision: str, token: str | None) -> dict[str, Any]:
    """Describe the repository at one commit. Raises what huggingface_hub raises."""
    from huggingface_hub import HfApi, hf_hub_url  # noqa: PLC0415  (only there)

    info = HfApi().model_info(
        repository, revision=revision, files_metadata=True, token=token or False, timeout=30
    )
    files = []
    for sibling in info.siblings or []:
        name = sibling.rfilename
        if name.rpartition("/")[2].startswith(".") or name == NAME:
            continue  # .gitattributes and the like are not weights; our manifest is made here
        row: dict[str, Any] = {
            "path": name,
            "size": sibling.size,
            "url": hf_hub_url(repository, name, revision=info.sha),
        }
        if sibling.lfs is not None:
            row.update(sha256=sibling.lfs.sha256, size=sibling.lfs.size)
        else:
            row["git_sha1"] = sibling.blob_id
        files.append(row)
    return {
        "commit": info.sha,
        "files": files,
        "headers": {"Authorization": f"Bearer {token}"} if token else {},
    }


def explain(error: Exception, revision: str) -> dict[str, Any]:
    """Translate the client's error into ours."""
    from huggingface_hub import errors  # noqa: PLC0415

    known = {
        errors.GatedRepoError: HostError(
            "the hub gives this repository only to accounts that were granted access",
            "request access on the hub, then set kimi_hf_token_file to a token of that account",
        ),
        errors.RevisionNotFoundError: HostError(
            f"the repository has no revision {revision}",
            "correct the revision in kimi_weights_source",
        ),
        errors.RepositoryNotFoundError: HostError(
            "the hub knows no such repository, or it is private",
            "check the name in kimi_weights_source, and kimi_hf_token_file if it needs a token",
        ),
        errors.HFValidationError: HostError(str(error)),
    }
    for kind, found in known.items():
        if isinstance(error, kind):
            return _build_failure(found)
    if isinstance(error, errors.HfHubHTTPError):
        status = error.response.status_code if error.response is not None else 0
        if status in (401, 403):
            return _build_failure(
                HostError(f"the hub refused the token ({status})", "check kimi_hf_token_file")
            )
        retryable = status in (0, 408, 429) or status >= 500
        return _build_failure(HostError(f"the hub answered {status}", retryable=retryable))
    reason = f"{type(error).__name__}: {error}"
    return _build_failure(HostError(f"the hub cannot be reached: {reason}", retryable=True))


def _build_failure(error: HostError) -> dict[str, Any]:
    return {"error": error.to_json()}
