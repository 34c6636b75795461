"""`bucket`: checks that the plan's buckets can be read and hold all that is to be fetched.

Reads the plan's `weights` on standard input and prints `{"findings": [...]}`, one for each bucket,
before a download begins: everything that is missing is reported at once, not after hours.
"""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING, Any

from kimi_prov.contract.errors import HostError
from kimi_prov.contract.sizes import format_bytes, format_file_count
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.weights import manifest as manifests
from kimi_prov.on_host.weights.fetch import Config
from kimi_prov.on_host.weights.rclone import AbsentError, Bucket, CredentialsError, Row

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.on_host.weights.manifest import Manifest

_SHOWN = 5
_MANIFEST_LIMIT = 64 << 20
_STALL_S = 30.0
_FIX = {
    True: "make it reachable from the machine: name resolution, route, proxy",
    False: "kimi-prov weights seed hf://OWNER/NAME@REVISION again, or set kimi_weights_manifest",
}
_READABLE = "the bucket's listing and files, readable from this machine"


def main(argv: list[str]) -> int:
    """Entry point of the subcommand; see the module's docstring."""
    if argv:
        raise HostError("usage: bucket < WEIGHTS")
    config = Config.from_document(json.load(sys.stdin), "the plan's weights")
    found = [
        check_bucket(Bucket(part.source, part.bucket, _STALL_S), part.manifest)
        for part in config.parts()
        if part.source.startswith(("s3://", "gs://"))
    ]
    return answer({"findings": found})


def check_bucket(bucket: Bucket, pinned: Manifest | None) -> dict[str, Any]:
    """Return the finding of a bucket: the first failure, or that there is none."""
    who = bucket.access.credentials_file or "the machine's role"
    try:
        rows = bucket.objects()
        manifest = pinned or _read_manifest(bucket, rows)
    except CredentialsError as error:
        return _build_finding(
            "bucket.credentials", error, f"credentials that may read {bucket.name}"
        )
    except AbsentError as error:
        return _build_finding(
            "bucket.absent", error, "a bucket that `kimi-prov weights seed` has filled"
        )
    except HostError as error:
        if not error.retryable:
            return _build_finding(
                "bucket.incomplete", error, "a manifest that names files with their digests"
            )
        return _build_finding("bucket.unreachable", error, _READABLE)
    wrong = list_missing(manifest, rows)
    if wrong:
        shown = ", ".join(wrong[:_SHOWN])
        more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        return {
            "id": "bucket.incomplete",
            "observed": f"{bucket.name}: {shown}{more}",
            "required": f"{format_file_count(len(manifest.files))} of the manifest, "
            f"{format_bytes(manifest.total_bytes)}",
            "fix": f"kimi-prov weights seed hf://OWNER/NAME@REVISION {bucket.name}",
        }
    return {
        "id": "bucket.ready",
        "observed": f"{bucket.name}: {format_file_count(len(manifest.files))}, "
        f"{format_bytes(manifest.total_bytes)}, by {who}",
        "required": "all files of the manifest, by name and size",
        "fix": None,
    }


def list_missing(manifest: Manifest, rows: Mapping[str, Row]) -> list[str]:
    """Name the files that are missing, or not of the manifest's size."""
    pairs: list[tuple[str, Row | None, int]] = [
        (entry.path, rows.get(entry.path), entry.size) for entry in manifest.files
    ]
    return [
        f"{path} is missing" if row is None else f"{path} has {row.size} bytes of {size}"
        for path, row, size in pairs
        if row is None or row.size != size
    ]


def _read_manifest(bucket: Bucket, rows: Mapping[str, Row]) -> Manifest:
    where = f"{bucket.name}/{manifests.NAME}"
    content = bucket.read(manifests.NAME, _MANIFEST_LIMIT) if manifests.NAME in rows else None
    if content is None:
        raise AbsentError(
            f"{where}: there is no such file, and kimi_weights_manifest is not set",
            f"kimi-prov weights seed hf://OWNER/NAME@REVISION {bucket.name}",
        )
    try:
        document = json.loads(content)
    except ValueError:
        raise HostError(f"{where}: is not JSON") from None
    return manifests.parse(document, where)


def _build_finding(identity: str, error: HostError, required: str) -> dict[str, Any]:
    return {
        "id": identity,
        "observed": error.message,
        "required": required,
        "fix": error.fix or _FIX[error.retryable],
    }
