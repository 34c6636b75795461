"""How a bucket is reached from the control machine, by what a command line names."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kimi_prov.contract.addresses import is_sent_in_clear
from kimi_prov.errors import UserError
from kimi_prov.on_host.weights.rclone import Access

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True)
class Options:
    """The options of every command that goes to a bucket."""

    credentials_file: Path | None = None
    endpoint: str | None = None
    region: str | None = None
    ca_bundle: Path | None = None


def of(options: Options) -> Access:
    """Return the access; without credentials it is by this machine's role. Raises UserError."""
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
