"""`weights seed`: fill a bucket from the hub, and show the cost of storing it."""

from __future__ import annotations

import os
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

import click

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.commands import pin
from kimi_prov.commands.common import bucket_access
from kimi_prov.commands.common.command import Command
from kimi_prov.commands.common.options import CATALOG, PATH, add_output_options
from kimi_prov.contract.addresses import BUCKET_ADDRESS
from kimi_prov.contract.errors import HostError
from kimi_prov.contract.sizes import format_bytes, format_file_count
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.on_host.weights import manifest as manifests
from kimi_prov.on_host.weights.rclone import AbsentError, Bucket, CredentialsError
from kimi_prov.on_host.weights.sources import Stream, Web
from kimi_prov.operate.seed import Limits, Seeding
from kimi_prov.show.output import say
from kimi_prov.show.text import seed as seed_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kimi_prov.catalog.prices import Prices
    from kimi_prov.contract.documents.seed import Seed, StorageCost
    from kimi_prov.on_host.weights.manifest import Entry, Manifest
    from kimi_prov.show.output import Output

SCHEMA: Final = "kimi-prov/seed/v1"
_STALL_S = 60.0
_GB = 1e9
_MAKE = {
    "s3": "aws s3 mb s3://{bucket}",
    "gs": "gcloud storage buckets create gs://{bucket} --location=REGION",
}


@click.command("seed", cls=Command)
@click.argument("address", metavar="hf://OWNER/NAME@REVISION")
@click.argument("bucket", metavar="s3://BUCKET/FOLDER|gs://BUCKET/FOLDER")
@bucket_access.add_bucket_options("write to")
@click.option("--hf-token-file", type=PATH, metavar="FILE", help="The hub's token.")
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=4,
    metavar="N",
    help="Files at a time.  [default: 4]",
)
@click.option("--estimate", is_flag=True, help="Only show the missing files and the cost.")
@CATALOG
@add_output_options
def weights_seed(
    address: str,
    bucket: str,
    access: bucket_access.BucketOptions,
    output: Output,
    *,
    hf_token_file: Path | None,
    workers: int,
    estimate: bool,
) -> None:
    """Fill a bucket from the hub and verify each file on the way; complete files are kept."""
    output.check()
    store = _open_bucket(bucket, access)
    pinned = pin.pin(address, token_file=hf_token_file, ca_bundle=access.ca_bundle)
    manifest = manifests.parse(pinned, address)
    cost = _estimate_storage_cost(load_catalogue().prices, store, manifest)
    say(
        f"{address}: {format_file_count(len(manifest.files))}, {format_bytes(manifest.total_bytes)}"
    )
    say(seed_text.describe_storage_cost(cost))
    open_file = _make_opener(address, manifest, hf_token_file, access.ca_bundle)
    seeding = Seeding(manifest, store, open_file, say, Limits(workers=workers))
    began = time.monotonic()
    with _explain_errors(store):
        left = seeding.missing()
        complete = len(manifest.files) - len(left)
        missing = sum(entry.size for entry in left)
        amount = f"{len(left)} missing ({format_bytes(missing)})"
        say(f"{store.name}: {complete} there and verified, {amount}")
        if not estimate:
            seeding.run()
    document: Seed = {
        "schema": SCHEMA,
        "ok": True,
        "source": address,
        "revision": manifest.revision,
        "bucket": store.name,
        "files": len(manifest.files),
        "bytes": manifest.total_bytes,
        "missing_bytes": missing,
        "uploaded_bytes": seeding.uploaded_bytes,
        "seconds": round(time.monotonic() - began, 1),
        "complete": not estimate or not left,
        "storage": cost,
    }
    output.write(document, lambda: seed_text.format_text(document))


@contextmanager
def _explain_errors(bucket: Bucket) -> Iterator[None]:
    """Raise UserError, exit 1, with a fix, where a bucket or the hub fails."""
    try:
        yield
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
            fix=f"create it first: {_MAKE[bucket.scheme].format(bucket=bucket.bucket)}",
            exit_code=ExitCode.FAILED,
        ) from None
    except HostError as error:
        raise UserError(
            error.message,
            fix=error.fix or "run the same command again: complete files are kept",
            exit_code=ExitCode.FAILED,
        ) from None


def _estimate_storage_cost(
    prices: Prices, bucket: Bucket, manifest: Manifest
) -> StorageCost | None:
    """Estimate the bucket's cost a month; None for a provider whose price is not known."""
    row = next((row for row in prices.storage if row.name == bucket.scheme), None)
    if row is None or bucket.access.endpoint:
        return None
    return {
        "usd_per_month": round(manifest.total_bytes / _GB * row.usd_per_gb_month, 2),
        "usd_per_gb_month": row.usd_per_gb_month,
        "estimated": True,
        "basis": f"{row.title}, by {row.source} ({row.confidence} confidence)",
    }


def _open_bucket(address: str, access: bucket_access.BucketOptions) -> Bucket:
    match = BUCKET_ADDRESS.fullmatch(address)
    if match is None or not match[3]:
        raise UserError(
            f"{address}: expected s3://BUCKET/FOLDER or gs://BUCKET/FOLDER",
            fix="write for example  kimi-prov weights seed hf://moonshotai/Kimi-K2.5@main "
            "s3://weights-of-site/kimi-k2.5",
        )
    return Bucket(address, bucket_access.parse_access(access), _STALL_S)


def _make_opener(
    address: str, manifest: Manifest, token_file: Path | None, ca_bundle: Path | None
) -> Callable[[Entry, int], Stream]:
    """Return a function that opens a file of the repository at the commit of the manifest."""
    base, headers = pin.locate_files(address, str(manifest.revision), token_file)
    ca = ca_bundle or os.environ.get("SSL_CERT_FILE")
    web = Web(str(ca) if ca else None, _STALL_S)

    def open_file(entry: Entry, offset: int) -> Stream:
        return web.open(f"{base}/{quote(entry.path)}", headers, offset, entry)

    return open_file
