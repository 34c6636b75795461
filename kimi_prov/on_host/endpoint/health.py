"""`gateway-health answers|serves PORT`: keepalived's check before it takes the shared address.

`answers`: the proxy of this gateway answers at all. `serves`: it sends requests to a host. Exit 0
or 1.
"""

from __future__ import annotations

import http
import http.client
import ssl

from kimi_prov.contract.errors import HostError

_QUESTIONS = ("answers", "serves")
_TIMEOUT_S = 3.0


def read_status(port: int) -> int:
    """Return the HTTP status of this machine's proxy for its health; 0 without an answer."""
    # The certificate is not checked: it is for the clients' name, not for the loopback. Nothing is
    # sent, and only a number is read.
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    line = http.client.HTTPSConnection("127.0.0.1", port, timeout=_TIMEOUT_S, context=context)
    try:
        line.request("GET", "/health")
        return line.getresponse().status
    except (OSError, http.client.HTTPException):
        return 0
    finally:
        line.close()


def has_server(port: int) -> bool:
    """Return whether this machine's proxy sends requests to a host."""
    return read_status(port) == http.HTTPStatus.OK


def main(argv: list[str]) -> int:
    """Ask once."""
    if len(argv) != 2 or argv[0] not in _QUESTIONS or not argv[1].isdigit():
        raise HostError("usage: gateway-health answers|serves PORT")
    port = int(argv[1])
    return 0 if (has_server(port) if argv[0] == "serves" else read_status(port)) else 1
