"""Access to a bucket from the control machine, by options of the command line."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import click

from kimi_prov.commands.common.options import PATH, pack_options
from kimi_prov.contract.addresses import is_sent_in_clear
from kimi_prov.errors import UserError
from kimi_prov.on_host.weights.rclone import Access

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.commands.common.options import Decorator


@dataclass(frozen=True)
class BucketOptions:
    """The options of every command that uses a bucket."""

    credentials_file: Path | None = None
    endpoint: str | None = None
    region: str | None = None
    ca_bundle: Path | None = None


def add_bucket_options(use: str) -> Decorator:
    """Give a command the options of access to a bucket, as one argument `access`.

    `use`: what the credentials have to allow.
    """
    options = {
        "credentials_file": click.option(
            "--credentials-file",
            type=PATH,
            metavar="FILE",
            help=f"Credentials to {use} the bucket.  [default: this machine's role]",
        ),
        "endpoint": click.option(
            "--endpoint", metavar="URL", help="Another server of the same protocol."
        ),
        "region": click.option("--region", metavar="NAME", help="Region of an s3:// bucket."),
        "ca_bundle": click.option(
            "--ca-bundle", type=PATH, metavar="FILE", help="The site's own certificates."
        ),
    }

    def pack(values: dict[str, Any]) -> dict[str, Any]:
        access = BucketOptions(**{name: values.pop(name) for name in options})
        return {**values, "access": access}

    return lambda command: pack_options(command, options.values(), pack)


def parse_access(options: BucketOptions) -> Access:
    """Return the access; without credentials it uses this machine's role. Raises UserError."""
    if options.endpoint and is_sent_in_clear(options.endpoint):
        raise UserError(
            f"--endpoint: expected https, found {options.endpoint!r}",
            fix="name the server's https address",
        )
    ca = options.ca_bundle or os.environ.get("SSL_CERT_FILE")
    return Access(
        credentials_file=str(options.credentials_file) if options.credentials_file else None,
        endpoint=options.endpoint,
        region=options.region,
        ca_bundle=str(ca) if ca else None,
    )
