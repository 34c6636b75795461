"""A served model as this computer reaches it: on an inventory's host, or at a URL.

Requests from here pin the certificate that was read from the machine; the certificates that clients
are told to trust are verified as clients do.

Decides: what `connect` says to clients, and its snippets (the name of the server).
"""

from __future__ import annotations

import hashlib
import re
import socket
import ssl
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kimi_prov.acceptance.suite import list_stand_ins
from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.clients.server import Resolve, Server, describe_server, find_model
from kimi_prov.commands.access import key_check, trust, tunnel
from kimi_prov.contract import addresses, clean_text
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.on_host.endpoint import api_client, certificate
from kimi_prov.on_host.endpoint.tls import compute_fingerprint
from kimi_prov.user_dirs import find_state_home, make_private, replace_file, write_private

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from kimi_prov.contract.documents.plan import MachinePlan

_TIMEOUT_S = 20.0
# A name or an address: other texts of a certificate are ignored.
_HOST = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.:-]{0,254}")
_LOOPBACK = ("localhost", "127.0.0.1", "::1", "0:0:0:0:0:0:0:1")


@dataclass(frozen=True)
class ClientOptions:
    """The user's options (authority, key, local port), and the advice of messages.

    `key_hint`: where to get a key. `fix`: what repairs a certificate that cannot be used, and
    `takes_ca`: whether --ca may be the fix.
    """

    ca: Path | None = None
    key: str | None = None
    key_file: Path | None = None
    port: int | None = None
    key_hint: str | None = None
    fix: str = "kimi-prov apply"
    takes_ca: bool = True


@dataclass(frozen=True)
class Served:
    """A server, how it is reached from here, and further facts of its host.

    `networks`: those that may reach its port, None if unknown. `hint`: the command that shows
    whether the model serves.
    """

    host: str
    server: Server
    endpoint: api_client.Endpoint
    models: tuple[str, ...] = ()
    engine: Mapping[str, str] | None = None
    page_url: str | None = None
    networks: tuple[str, ...] | None = None
    login: str | None = None
    stand_ins: tuple[str, ...] = ()
    hint: str = "kimi-prov status shows whether it serves"


def choose_name(address: str, names: Sequence[str], port: int) -> str:
    """Choose the address or name of a server for clients, which its certificate must cover.

    The address that Ansible uses is preferred, then a name that this computer can resolve.
    """
    if trust.is_covered(names, address):
        return address
    plain = [name for name in names if _HOST.fullmatch(name) and name not in _LOOPBACK]
    return next((name for name in plain if _is_resolved(name, port)), (plain or [address])[0])


def _is_resolved(name: str, port: int) -> bool:
    try:
        return bool(socket.getaddrinfo(name, port))
    except (OSError, UnicodeError):
        return False


def find_files(path: Path, host: str) -> Path:
    """Return the folder of the files for clients of an inventory's host."""
    mark = hashlib.sha256(str(path.resolve()).encode()).hexdigest()[:8]
    plain = (
        host if addresses.PLAIN_NAME.fullmatch(host) else hashlib.sha256(host.encode()).hexdigest()
    )
    return find_state_home() / "connect" / f"{path.resolve().name}-{mark}" / plain


def describe_host(
    host: str,
    found: Mapping[str, Any],
    files: Path | None,
    given: ClientOptions,
    *,
    forwarded: int | None = None,
) -> Served:
    """Return a served host as its clients see it; its certificate is written for them.

    `found`: the answer of `kimi_connect`. `forwarded`: the local port that is forwarded to it.
    Raises UserError where clients would refuse its certificate. Without `files` only this program
    sends requests and pins the certificate: nothing is written and nothing refused.
    """
    chain, port = found["certificate"], found["port"]
    about = certificate.read(chain)
    if about is None:
        raise UserError(
            f"{host}: its certificate cannot be read",
            fix=given.fix,
            exit_code=ExitCode.FAILED,
        )
    address = tunnel.ADDRESS if forwarded else found["address"]
    called = choose_name(address, about.names, forwarded or port)
    if forwarded and trust.is_covered(about.names, "localhost") and called != address:
        called = "localhost"
    resolve = None
    if forwarded and called not in _LOOPBACK:
        resolve = Resolve(called, tunnel.ADDRESS, forwarded)
    asked = api_client.Endpoint(
        tunnel.ADDRESS if resolve else called,
        forwarded or port,
        compute_fingerprint(chain),
        _TIMEOUT_S,
    )
    server = Server(
        # The URL for clients has a name of the certificate.
        base_url=replace(asked, host=called).url,
        model=clean_text.clean_line(found["model"]),
        certificate_file=_write_trusted(host, chain, called, files, given) if files else None,
        key_file=str(given.key_file.absolute()) if given.key_file else None,
        key_hint=given.key_hint,
        context=found["context"],
        resolve=resolve,
    )
    page = None
    if found["page_port"] and not forwarded:
        page = f"{replace(asked, host=called, port=found['page_port']).url.removesuffix('v1')}"
    return Served(
        host,
        _add_catalogue(server, found),
        asked,
        tuple(found["models"]),
        found["engine"] or {},
        page,
        tuple(found["allowed_networks"]),
        str(found["login"][-1]) if forwarded and found["login"] else None,
        tuple(found["stand_ins"]),
    )


def _add_catalogue(server: Server, found: Mapping[str, Any]) -> Server:
    """Add the catalogue's values of the model and its engine."""
    row = find_model(found["catalog_name"])
    # A gateway alone does not report the engine behind it.
    engine = found["engine"] or {}
    known = load_catalogue().engine(**engine) if engine else None
    return replace(
        server,
        engine=f"{engine['name']} {engine['version']}" if engine else None,
        messages_api=known.messages_api if known and known.version == engine["version"] else None,
        usage=row.usage if row else None,
        sees=bool(row.architecture.vision_params) if row else None,
    )


@dataclass(frozen=True)
class Rendered:
    """A rendered folder whose model serves: its name in messages, its plan, and its certificate.

    `login`: the node through which its port is reached. `forwarded`: to a local port.
    """

    name: str
    plan: MachinePlan
    certificate: str
    hint: str
    login: str | None = None
    forwarded: bool = True


def describe_folder(
    folder: Rendered, there: api_client.Endpoint, files: Path | None, given: ClientOptions
) -> Served:
    """Return the server of a folder at its address, as its clients see it. Raises UserError."""
    found = describe_server(folder.plan, folder.certificate) | {
        "address": there.host,
        "port": there.port,
        "page_port": None,
        "login": [folder.login] if folder.login else None,
        "stand_ins": list_stand_ins(folder.plan, {}),
    }
    forwarded = there.port if folder.forwarded else None
    served = describe_host(folder.name, found, files, given, forwarded=forwarded)
    # The networks of its plan are for a machine of one's own.
    return replace(served, networks=None, hint=folder.hint)


def _write_trusted(
    host: str, chain: str, called: str, files: Path, given: ClientOptions
) -> str | None:
    """Return the file of certificates to trust; None where the system trusts the server."""
    if (ca := given.ca) is not None:
        why = trust.explain_refusal(chain, called, trust.read_authority(ca))
        if why:
            raise UserError(
                f"--ca {ca}: the certificate of {host} does not verify under it as {called}: {why}",
                fix="name the authority that signed it, or leave out --ca",
                exit_code=ExitCode.FAILED,
            )
        return str(ca.absolute())
    if not trust.explain_refusal(chain, called, chain):
        make_private(files)
        file = files / "certificate.pem"
        replace_file(file, chain, 0o644)
        return str(file)
    why = trust.explain_refusal(chain, called, None)
    if why:
        raise UserError(
            f"{host}: clients refuse its certificate as {called}: {why}",
            fix="give the certificate of the authority that signed it: --ca FILE"
            if given.takes_ca
            else given.fix,
            exit_code=ExitCode.FAILED,
        )
    return None


def prove(served: Served, key: str | None) -> None:
    """Test that the server answers with its own certificate and accepts the key, if there is one.

    Raises UserError: exit 4 without an answer, 1 for another answer.
    """
    try:
        if key is None:
            api_client.connect(served.endpoint).close()
            return
        reply = api_client.call(served.endpoint, "GET", "/v1/models", key)
    except api_client.ApiError as error:
        told = clean_text.clean_line(error)
        silent = told.startswith("no answer")
        fix = served.hint
        if silent and not served.login and served.networks is not None:
            networks = ", ".join(served.networks) or "none"
            fix = f"from a network that may not (kimi_allowed_networks: {networks}) give --tunnel; "
            fix += served.hint
        raise UserError(
            f"{served.host}: {told}",
            fix=fix,
            exit_code=ExitCode.UNREACHABLE if silent else ExitCode.FAILED,
        ) from None
    key_check.check_models(reply, served.endpoint.url)


def is_url(text: str) -> bool:
    """Whether a target is a URL, and no path."""
    return re.match(r"(?i)https?://", text) is not None


def describe_url(text: str, given: ClientOptions) -> Served:
    """Return the server at a URL; its certificate is verified as clients do, and then pinned.

    Raises UserError for a refused certificate, without an answer, and for another URL.
    """
    fix = "give it as https://HOST:PORT/v1"
    try:
        parts = urlsplit(text)
        port = parts.port or (443 if parts.scheme.lower() == "https" else 80)
        host = parts.hostname or ""
    except ValueError:
        host, port = "", 0
    if not host or parts.path.rstrip("/") not in ("", "/v1") or parts.query or parts.username:
        raise UserError(f"{text}: expected the base URL of a served model", fix=fix)
    pin = None
    if parts.scheme.lower() == "https":
        pin = _verify_url(text, host, port, given.ca)
    elif addresses.is_sent_in_clear(text):
        raise UserError(f"{text}: the key would go over the network in clear", fix=fix)
    endpoint = api_client.Endpoint(host, port, pin, _TIMEOUT_S)
    server = Server(
        base_url=endpoint.url,
        model="",
        certificate_file=str(given.ca.absolute()) if given.ca else None,
        key_file=str(given.key_file.absolute()) if given.key_file else None,
        key_hint=given.key_hint,
    )
    return Served(host, server, endpoint)


def _verify_url(url: str, host: str, port: int, ca: Path | None) -> str:
    """Return the fingerprint of a server that a client with these authorities accepts."""
    authorities = trust.read_authority(ca) if ca else None
    context = ssl.create_default_context(cadata=authorities)
    try:
        with (
            socket.create_connection((host, port), timeout=_TIMEOUT_S) as plain,
            context.wrap_socket(plain, server_hostname=host) as secure,
        ):
            return hashlib.sha256(secure.getpeercert(binary_form=True) or b"").hexdigest()
    except ssl.SSLCertVerificationError as error:
        under = f"--ca {ca}: " if ca else ""
        raise UserError(
            f"{under}{url}: its certificate is refused: "
            f"{clean_text.clean_line(error.verify_message)}",
            fix="give the server's own certificate, or its authority's: --ca FILE",
            exit_code=ExitCode.FAILED,
        ) from None
    except OSError as error:
        raise UserError(
            f"no answer at {url}: {clean_text.clean_line(api_client.describe_error(error))}",
            fix="see whether it serves, and whether this network may reach it",
            exit_code=ExitCode.UNREACHABLE,
        ) from None


def choose_model(served: Served, key: str, wanted: str | None) -> Served:
    """Return the server with the wanted model, or with the first that it lists.

    Raises UserError where it lists no model, or not the wanted one.
    """
    prove(served, key)
    reply = api_client.call(served.endpoint, "GET", "/v1/models", key)
    rows = reply.json().get("data")
    listed = rows if isinstance(rows, list) else []
    told = [str(row["id"]) for row in listed if isinstance(row, dict) and "id" in row]
    # A name that is no plain text cannot be in a command to paste.
    names = [name for name in told if name == clean_text.clean_line(name)]
    model = wanted or (names[0] if names else "")
    if model not in names:
        shown = clean_text.clean_line(", ".join(names))[:300] or "none"
        raise UserError(
            f"{served.endpoint.url}: it serves no model {clean_text.clean_line(model)}".rstrip(),
            fix=f"take one of: {shown}",
        )
    row = find_model(model)
    context = next(
        (r.get("max_model_len") for r in listed if isinstance(r, dict) and r.get("id") == model),
        None,
    )
    server = replace(
        served.server,
        model=model,
        context=context if isinstance(context, int) else None,
        usage=row.usage if row else None,
        sees=bool(row.architecture.vision_params) if row else None,
    )
    return replace(served, server=server, models=tuple(names))


@dataclass
class Way:
    """The tunnel to a host of an inventory, which is opened again when it ends."""

    found: Mapping[str, Any]
    password: str | None
    port: int
    # Apart from signals of the terminal.
    apart: bool = False
    _tunnel: tunnel.Tunnel | None = field(default=None, init=False)
    _lost: UserError | None = field(default=None, init=False)

    def open(self) -> None:
        """Open the tunnel. Raises UserError where ssh fails."""
        self.close()
        login, port = self.found["login"], self.found["port"]
        try:
            with _write_askpass(self.password) as program:
                self._tunnel = tunnel.open_to_host(
                    login, self.port, port, program, apart=self.apart
                )
                self._tunnel.opens(self.port)
        except BaseException as error:
            self.close()
            self._lost = error if isinstance(error, UserError) else None
            raise

    def check(self) -> None:
        """Raise UserError where the tunnel has ended, or could not be opened again."""
        if self._tunnel:
            self._tunnel.check()
        elif self._lost:
            raise self._lost

    def again(self, there: Served, key: str) -> tuple[Served, str]:
        """Open the tunnel again at its port; the server is the same. Raises UserError."""
        self.open()
        return there, key

    def close(self) -> None:
        """Close the tunnel."""
        if self._tunnel:
            self._tunnel.close()
        self._tunnel = None


@contextmanager
def _write_askpass(password: str | None) -> Iterator[Path | None]:
    """Give the program that passes ssh the password at login; None without a password."""
    if password is None:
        yield None
        return
    with tempfile.TemporaryDirectory(prefix="kimi-login-") as name:
        folder = Path(name)
        write_private(folder / "password", f"{password}\n")
        program = folder / "askpass"
        replace_file(program, f"#!/bin/sh\nexec cat '{folder}/password'\n", 0o700)
        yield program
