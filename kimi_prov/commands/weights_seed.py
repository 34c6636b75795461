"""`weights seed`: fill a bucket from the hub, and say what it will cost to store."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from kimi_prov.catalog.loader import load
from kimi_prov.commands import pin
from kimi_prov.commands.common import bucket_access
from kimi_prov.contract.addresses import BUCKET_ADDRESS
from kimi_prov.contract.durations import format_duration
from kimi_prov.contract.errors import HostError
from kimi_prov.contract.sizes import format_bytes, format_file_count
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.on_host.weights import manifest as manifests
from kimi_prov.on_host.weights.rclone import AbsentError, Bucket, CredentialsError
from kimi_prov.on_host.weights.sources import Stream, Web
from kimi_prov.operate.seed import Limits, Seeding
from kimi_prov.show.output import say

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kimi_prov.catalog.prices import Prices
    from kimi_prov.on_host.weights.manifest import Entry, Manifest
    from kimi_prov.show.output import Output

SCHEMA = "kimi-prov/seed/v1"
_STALL_S = 60.0
_GB = 1e9
_MAKE = {
    "s3": "aws s3 mb s3://{bucket}",
    "gs": "gcloud storage buckets create gs://{bucket} --location=REGION",
}


@dataclass(frozen=True)
class Options(bucket_access.Options):
    """What the command line names beside the two addresses."""

    hf_token_file: Path | None = None
    workers: int = 4
    estimate: bool = False


def run(address: str, target: str, options: Options, output: Output) -> None:
    """Fill the bucket, or only say what it would take."""
    output.check()
    bucket = _bucket(target, options)
    pinned = pin.pin(address, token_file=options.hf_token_file, ca_bundle=options.ca_bundle)
    manifest = manifests.parse(pinned, address)
    cost = storage(load().prices, bucket, manifest)
    say(
        f"{address}: {format_file_count(len(manifest.files))}, {format_bytes(manifest.total_bytes)}"
    )
    say(cost_text(cost))
    seeding = Seeding(
        manifest, bucket, _hub(address, manifest, options), say, Limits(workers=options.workers)
    )
    began = time.monotonic()
    try:
        left = seeding.missing()
        held = len(manifest.files) - len(left)
        missing = sum(entry.size for entry in left)
        say(
            f"{bucket.name}: {held} there and verified, {len(left)} missing "
            f"({format_bytes(missing)})"
        )
        if not options.estimate:
            seeding.run()
    except CredentialsError as error:
        raise UserError(
            error.message,
            fix="name credentials that may write to the bucket: --credentials-file FILE (an AWS "
            "credentials file, or a service account's JSON), or give this machine a role",
            exit_code=ExitCode.FAILED,
        ) from None
    except AbsentError:
        raise UserError(
            f"{bucket.name}: there is no such bucket",
            fix=f"make it first: {_MAKE[bucket.scheme].format(bucket=bucket.bucket)}",
            exit_code=ExitCode.FAILED,
        ) from None
    except HostError as error:
        raise UserError(
            error.message,
            fix=error.fix or "run the same command again: whole files are kept",
            exit_code=ExitCode.FAILED,
        ) from None
    document = {
        "schema": SCHEMA,
        "ok": True,
        "source": address,
        "revision": manifest.revision,
        "bucket": bucket.name,
        "files": len(manifest.files),
        "bytes": manifest.total_bytes,
        "missing_bytes": missing,
        "uploaded_bytes": seeding.uploaded_bytes,
        "seconds": round(time.monotonic() - began, 1),
        "complete": not options.estimate or not left,
        "storage": cost,
    }
    output.write(document, lambda: text(document))


def text(document: Mapping[str, Any]) -> str:
    """Say what was done, and what to write into an inventory."""
    if not document["complete"]:
        return f"{document['bucket']}: {format_bytes(document['missing_bytes'])} would be brought"
    brought = document["uploaded_bytes"]
    took = f" in {format_duration(document['seconds'])}" if brought else ""
    return (
        f"{document['bucket']}: {format_file_count(document['files'])}, "
        f"{format_bytes(document['bytes'])}, verified against {document['source']} at "
        f"{document['revision']}; {format_bytes(brought)} brought{took}\n"
        f"kimi_weights_source: {document['bucket']}"
    )


def storage(prices: Prices, bucket: Bucket, manifest: Manifest) -> dict[str, Any] | None:
    """Estimate what the bucket costs a month; None for a provider whose price is not known."""
    row = next((row for row in prices.storage if row.name == bucket.scheme), None)
    if row is None or bucket.access.endpoint:
        return None
    return {
        "usd_per_month": round(manifest.total_bytes / _GB * row.usd_per_gb_month, 2),
        "usd_per_gb_month": row.usd_per_gb_month,
        "estimated": True,
        "basis": f"{row.title}, by {row.source} ({row.confidence} confidence)",
    }


def cost_text(cost: Mapping[str, Any] | None) -> str:
    """Say what storing costs, and what is not in it."""
    if cost is None:
        return "storing it: no price is known of this provider"
    return (
        f"storing it: about ${cost['usd_per_month']:.2f} a month (estimated: "
        f"${cost['usd_per_gb_month']:.3f} a GB and month, {cost['basis']}); requests are cents, "
        "and reading it from another region or cloud costs more than all of this"
    )


def _bucket(target: str, options: Options) -> Bucket:
    named = BUCKET_ADDRESS.fullmatch(target)
    if named is None or not named[3]:
        raise UserError(
            f"{target}: expected s3://BUCKET/FOLDER or gs://BUCKET/FOLDER",
            fix="write for example  kimi-prov weights seed hf://moonshotai/Kimi-K2.5@main "
            "s3://weights-of-site/kimi-k2.5",
        )
    return Bucket(target, bucket_access.of(options), _STALL_S)


def _hub(address: str, manifest: Manifest, options: Options) -> Any:  # noqa: ANN401
    """Give what opens a file of the repository, at the commit of the manifest."""
    base, headers = pin.files_at(address, str(manifest.revision), options.hf_token_file)
    ca = options.ca_bundle or os.environ.get("SSL_CERT_FILE")
    web = Web(str(ca) if ca else None, _STALL_S)

    def opened(entry: Entry, offset: int) -> Stream:
        return web.open(f"{base}/{quote(entry.path)}", headers, offset, entry)

    return opened
