"""Asks the metadata server of a cloud: what machine this is, and whether it is about to be taken.

Never through a proxy: the address is local to the machine. The variables that the clouds' own
programs read may set other addresses.
"""

from __future__ import annotations

import json
import os
import urllib.error
import urllib.request
from typing import TYPE_CHECKING, Any

from kimi_prov.contract.errors import HostError, describe_error

if TYPE_CHECKING:
    from collections.abc import Mapping

GCP, AWS = "gcp", "aws"
PROVIDERS = (GCP, AWS)
_LIMIT_S = 5.0
_LIMIT_BYTES = 1 << 20
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class AbsentError(HostError):
    """The server answered that it has no such entry."""


def ask(url: str, *, method: str = "GET", headers: Mapping[str, str] | None = None) -> str:
    """Return the answer of an address of the cloud. Raises HostError."""
    request = urllib.request.Request(url, method=method, headers=dict(headers or {}))  # noqa: S310
    try:
        with _OPENER.open(request, timeout=_LIMIT_S) as answer:
            return str(answer.read(_LIMIT_BYTES).decode("utf-8", "replace"))
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 404:
            raise AbsentError(f"{url}: there is no such entry") from None
        raise HostError(f"{url}: answered {error.code}", retryable=error.code >= 500) from None
    except (OSError, ValueError) as error:
        raise HostError(f"{url}: {describe_error(error)}", retryable=True) from None


def ask_gcp(path: str) -> str:
    """Return an entry of Google's metadata, below computeMetadata/v1."""
    host = os.environ.get("GCE_METADATA_HOST", "metadata.google.internal")
    return ask(f"http://{host}/computeMetadata/v1/{path}", headers={"Metadata-Flavor": "Google"})


def ask_aws(path: str) -> str:
    """Return an entry of AWS's metadata, below latest; asked with a session's token (IMDSv2)."""
    host = os.environ.get("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://169.254.169.254")
    base = f"{host.rstrip('/')}/latest"
    wanted = {"X-aws-ec2-metadata-token-ttl-seconds": "60"}
    token = ask(f"{base}/api/token", method="PUT", headers=wanted)
    return ask(f"{base}/{path}", headers={"X-aws-ec2-metadata-token": token})


def read_notice(provider: str) -> str | None:
    """Return why the machine is about to be taken; None while it is not. Raises HostError."""
    if provider == GCP:
        taken = ask_gcp("instance/preempted").strip() == "TRUE"
        return "Google takes the machine within 30 s" if taken else None
    try:
        said: dict[str, Any] = json.loads(ask_aws("meta-data/spot/instance-action"))
        return f"AWS will {said.get('action', 'take')} the machine at {said.get('time', 'once')}"
    except AbsentError:
        return None
    except (ValueError, AttributeError):
        return "AWS takes the machine"
