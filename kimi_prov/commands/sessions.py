"""`kimi-prov sessions`: the costs of sessions of deleted machines, from their bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final, cast

import click

from kimi_prov.commands.common import bucket_access
from kimi_prov.commands.common.command import Command
from kimi_prov.commands.common.options import add_output_options
from kimi_prov.contract.addresses import find_sessions_folder
from kimi_prov.contract.errors import HostError
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.on_host.lifecycle import session_history
from kimi_prov.on_host.weights.rclone import AbsentError, Bucket, CredentialsError
from kimi_prov.show.text import sessions as sessions_text

if TYPE_CHECKING:
    from kimi_prov.contract.documents.sessions import PaidSession, Sessions
    from kimi_prov.show.output import Output

SCHEMA: Final = "kimi-prov/sessions/v1"
_STALL_S = 60.0
_READ_S = 300.0


@click.command(cls=Command)
@click.argument("bucket", metavar="s3://BUCKET|gs://BUCKET")
@bucket_access.add_bucket_options("read")
@add_output_options
def sessions(bucket: str, access: bucket_access.BucketOptions, output: Output) -> None:
    """List the costs of sessions of machines that took their weights from a bucket."""
    output.check()
    folder = find_sessions_folder(bucket)
    if folder is None:
        raise UserError(
            f"{bucket}: expected s3://BUCKET or gs://BUCKET",
            fix="name the bucket in kimi_weights_source of the machines",
        )
    rows = _read(folder, access)
    document: Sessions = {
        "schema": SCHEMA,
        "ok": True,
        "bucket": folder,
        "usd": round(sum(row["usd"] for row in rows), 2),
        "sessions": rows,
    }
    output.write(document, lambda: sessions_text.format_text(document))


def _read(folder: str, access: bucket_access.BucketOptions) -> list[PaidSession]:
    try:
        rows = session_history.read(
            Bucket(folder, bucket_access.parse_access(access), _STALL_S), _READ_S
        )
    except AbsentError:
        rows = []
    except CredentialsError as error:
        raise UserError(
            error.message,
            fix="name credentials that may read the bucket: --credentials-file FILE (an AWS "
            "credentials file, or a service account's JSON), or give this machine a role",
            exit_code=ExitCode.FAILED,
        ) from None
    except HostError as error:
        raise UserError(
            error.message,
            fix=error.fix or "run the same command again",
            exit_code=ExitCode.FAILED,
        ) from None
    return cast("list[PaidSession]", rows)
