"""Test that a server accepts an API key, at the address by which it is reached from here."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kimi_prov.contract import clean_text
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.on_host.endpoint import api_client

if TYPE_CHECKING:
    from collections.abc import Callable

# Limit of the wait for a tunnel's first answer.
_OPENS_S = 30.0
_POLL_INTERVAL_S = 0.2
_HTTP_OK, _UNAVAILABLE = 200, 503


def prove(here: api_client.Endpoint, key: str, check: Callable[[], None]) -> None:
    """Request the list of models once, as soon as the tunnel accepts a connection.

    `check` raises where the tunnel has ended. Raises UserError, exit 1, for any other answer, and
    at once for another certificate, which more time does not make right.
    """
    until = time.monotonic() + _OPENS_S
    while True:
        try:
            reply = api_client.call(here, "GET", "/v1/models", key)
            break
        except api_client.ApiError as error:
            check()
            final = isinstance(error, api_client.OtherCertificateError)
            if final or time.monotonic() > until:
                raise UserError(
                    f"the server does not answer: {clean_text.clean_line(error)}",
                    fix="look at its log",
                    exit_code=ExitCode.FAILED,
                ) from None
            time.sleep(_POLL_INTERVAL_S)
    check_models(reply, here.url)


def check_models(reply: api_client.Reply, url: str) -> None:
    """Raise UserError, exit 1, where the reply is no list of models."""
    if reply.status != _HTTP_OK:
        error = reply.json().get("error")
        said = clean_text.clean_line(str(error.get("message"))) if isinstance(error, dict) else ""
        told = f": {said}" if said and reply.status == _UNAVAILABLE else ""
        raise UserError(
            f"{url}/models: HTTP {reply.status}{told}",
            fix="wait, or look at its log"
            if told
            else "look at its log; with 401 or 403 at the key",
            exit_code=ExitCode.FAILED,
        )
