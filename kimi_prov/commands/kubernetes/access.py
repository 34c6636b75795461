"""Access from this computer to a model in a cluster: a forwarded port, certificate and key."""

from __future__ import annotations

import base64
import binascii
import posixpath
import ssl
import time
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kimi_prov.commands.access import api_key, tunnel
from kimi_prov.contract import clean_text, pod
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.on_host.endpoint import api_client, tls
from kimi_prov.operate.kubernetes import answers, observe
from kimi_prov.operate.kubernetes.kubectl import AbsentError, ForbiddenError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kimi_prov.operate.kubernetes.diagnosis import Snapshot, Status
    from kimi_prov.operate.kubernetes.folder import Folder

# Paths in a pod: the secrets that are mounted there are read.
KEY_MOUNT, TLS_MOUNT = map(posixpath.dirname, (pod.API_KEY, pod.TLS_CERTIFICATE))
_OPENS_S = 30.0
_POLL_INTERVAL_S = 0.2


@dataclass(frozen=True)
class Way:
    """An open forwarding: the local address, the server's certificate, and its source."""

    endpoint: api_client.Endpoint
    certificate: str
    vouched: str
    tunnel: tunnel.Tunnel


def read_key(folder: Folder, file: Path | None) -> str:
    """Return the API key of a file, of KIMI_API_KEY, or of the cluster's secret."""
    if found := api_key.read_key(file):
        return found
    name = folder.secret(KEY_MOUNT)
    fix = "give it in KIMI_API_KEY or with --api-key-file"
    if name is None:
        raise UserError(f"{folder.path}: no secret is mounted at {KEY_MOUNT}", fix=fix)
    try:
        found = _read_secret(folder, name, "api-key")
    except (AbsentError, ForbiddenError) as error:
        raise UserError(error.message, fix=fix, exit_code=error.exit_code) from None
    return api_key.check_key(found.strip(), f"secret {name}: api-key")


def _read_secret(folder: Folder, name: str, item: str) -> str:
    """Return one item of a secret; it is only kept in memory."""
    escaped = item.replace(".", "\\.")
    told = folder.kubectl.run("get", "secret", name, "-o", f"jsonpath={{.data.{escaped}}}")
    try:
        return base64.b64decode(told, validate=True).decode("ascii")
    except (binascii.Error, ValueError):
        raise UserError(
            f"{folder.kubectl.where}: secret {name}: {item} is no text",
            fix="create the secret again",
            exit_code=ExitCode.FAILED,
        ) from None


def make_silent_error(folder: Folder, found: Snapshot, standing: Status) -> UserError:
    """Return an error, exit 1, that says why a model does not answer."""
    target = clean_text.quote_word(folder.path)
    where = folder.kubectl.where
    if standing.trouble:
        error = observe.make_error(folder, standing.trouble)
        message, fix = error.message, error.fix
    elif standing.state != "stopped":
        message = f"{where}: {folder.name} does not serve: {standing.line}"
        fix = f"kimi-prov apply {target}  waits until it answers"
    elif found.workload is None:
        message, fix = f"{where}: there is no {folder.resource}", f"kimi-prov apply {target}"
    else:
        message, fix = f"{where}: {folder.name} is stopped", f"kimi-prov start {target}"
    return UserError(message, fix=fix, exit_code=ExitCode.FAILED)


@contextmanager
def open_way(
    folder: Folder, port: int | None, timeout_s: float, *, apart: bool = False
) -> Iterator[Way]:
    """Forward a local port to the service for the time of this context.

    `apart`: Ctrl-C at the terminal does not end it.
    """
    service = folder.service
    there = answers.read_int(service, "spec", "ports", 0, "port")
    local = tunnel.find_free_port(port)
    held = tunnel.open_to_service(
        folder.kubectl, answers.read_name(service), local, there, apart=apart
    )
    try:
        held.opens(local)
        certificate, vouched = _read_certificate(folder, local, held)
        pin = tls.compute_fingerprint(certificate)
        yield Way(
            api_client.Endpoint(tunnel.ADDRESS, local, pin, timeout_s), certificate, vouched, held
        )
    finally:
        held.close()


def _read_certificate(folder: Folder, port: int, held: tunnel.Tunnel) -> tuple[str, str]:
    """Return the certificate that the server has to show, and its source."""
    name = folder.secret(TLS_MOUNT)
    if name is not None:
        try:
            found = tls.extract_certificates(_read_secret(folder, name, "tls.crt"))
        except (AbsentError, ForbiddenError):
            found = ""
        if found:
            return found, f"the secret {name}"
    try:
        shown = ssl.get_server_certificate((tunnel.ADDRESS, port), timeout=_OPENS_S)
    except (OSError, ValueError) as error:
        # If the pod is gone, kubectl reports it in a moment and ends.
        time.sleep(_POLL_INTERVAL_S)
        held.check()
        raise UserError(
            f"the service {answers.read_name(folder.service)} speaks no TLS: "
            f"{clean_text.clean_line(api_client.describe_error(error))}",
            fix="see that the pod is ready, and that it has a certificate",
            exit_code=ExitCode.FAILED,
        ) from None
    # kubectl, API server and kubelet in between are the cluster's own and authenticated.
    return shown, "the cluster: the pod showed it through the API server"
