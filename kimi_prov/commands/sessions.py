"""`kimi-prov sessions`: what sessions of machines have cost that are gone, by their bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kimi_prov.commands.common import bucket_access
from kimi_prov.contract.addresses import find_sessions_folder
from kimi_prov.contract.errors import HostError
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.on_host.lifecycle import session_history
from kimi_prov.on_host.weights.rclone import AbsentError, Bucket, CredentialsError
from kimi_prov.show.text import sessions

if TYPE_CHECKING:
    from kimi_prov.show.output import Output

SCHEMA = "kimi-prov/sessions/v1"
_STALL_S = 60.0
_READ_S = 300.0


def run(address: str, options: bucket_access.Options, output: Output) -> None:
    """List the sessions, the oldest first."""
    output.check()
    folder = find_sessions_folder(address)
    if folder is None:
        raise UserError(
            f"{address}: expected s3://BUCKET or gs://BUCKET",
            fix="name what kimi_weights_source of the machines names",
        )
    document = {"schema": SCHEMA, "ok": True, "bucket": folder, **_found(folder, options)}
    output.write(document, lambda: sessions.text(document))


def _found(folder: str, options: bucket_access.Options) -> dict[str, Any]:
    try:
        rows = session_history.read(Bucket(folder, bucket_access.of(options), _STALL_S), _READ_S)
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
    return {"usd": round(sum(row["usd"] for row in rows), 2), "sessions": rows}
