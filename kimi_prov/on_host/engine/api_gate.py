"""`cluster engine` and `pod engine -m MODULE ARGUMENT...`: an engine behind a check of API keys.

The engines' own keys leave some paths open, and sglang logs its key. So a middleware in the web
server of either checks keys, whether it speaks TLS itself or has a TLS proxy before it: `/health`
is open, `/v1/` needs the API key, `/metrics` the monitoring's key if there is one, and all else the
key of the job or the pod. The keys are read from files that the environment names; a new key is
valid at once.

Decides: what runs in a pod (who asks for keys).
"""

from __future__ import annotations

import hmac
import os
from pathlib import Path
from typing import TYPE_CHECKING

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.engine import gate, launch
from kimi_prov.on_host.engine.request_bounds import RequestBounds
from kimi_prov.on_host.system.files import read_text

if TYPE_CHECKING:
    from kimi_prov.on_host.engine.asgi import App, Receive, Scope, Send

API_KEY_FILE = "KIMI_API_KEY_FILE"
JOB_KEY_FILE = "KIMI_JOB_KEY_FILE"
# The path of Prometheus' requests.
METRICS_KEY_FILE = "KIMI_METRICS_KEY_FILE"
_METRICS = "/metrics"
_WITHOUT_KEY = (
    b'{"error":{"message":"Missing or incorrect API key.","type":"invalid_request_error",'
    b'"param":null,"code":"invalid_api_key"}}'
)
_ELSEWHERE = (
    b'{"error":{"message":"There is only /v1/ here.","type":"invalid_request_error",'
    b'"param":null,"code":"not_found"}}'
)


class KeyFile:
    """A key as its file has it now; the last known one while the file is gone."""

    def __init__(self, path: str) -> None:
        self._path = Path(path)
        self._read_at: tuple[int, int] | None = None
        self._key = ""
        if not path or not self.matches(self._current()):
            raise HostError(f"there is no key in {path or 'no file'}")

    @property
    def text(self) -> str:
        """The key."""
        return self._current().decode()

    def matches(self, given: bytes) -> bool:
        """Return whether this is the key; False where there is no key."""
        key = self._current()
        return bool(key) and hmac.compare_digest(given, key)

    def _current(self) -> bytes:
        try:
            state = os.stat(str(self._path))
        except OSError:
            return self._key.encode()
        if (state.st_ino, state.st_mtime_ns) != self._read_at:
            self._key = read_text(self._path).strip() or self._key
            self._read_at = (state.st_ino, state.st_mtime_ns)
        return self._key.encode()


class ApiGate:
    """ASGI middleware between an engine and the clients on the cluster's network."""

    def __init__(self, app: App) -> None:
        self._app = RequestBounds(app)
        self._api = KeyFile(os.environ.get(API_KEY_FILE, ""))
        self._job = KeyFile(os.environ.get(JOB_KEY_FILE, ""))
        metrics = os.environ.get(METRICS_KEY_FILE)
        self._metrics = KeyFile(metrics) if metrics else None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, or refuse it in the form that OpenAI clients read."""
        if scope["type"] == "lifespan" or gate.is_open(scope):
            await self._app(scope, receive, send)
            return
        given = gate.get_bearer_key(scope)
        measures = scope["path"] == _METRICS and self._metrics and self._metrics.matches(given)
        if measures or self._job.matches(given):
            await self._app(scope, receive, send)
        elif not self._api.matches(given):
            await gate.refuse(scope, send, 401, _WITHOUT_KEY)
        elif ".." in scope["path"] or not scope["path"].startswith("/v1/"):
            await gate.refuse(scope, send, 404, _ELSEWHERE)
        else:
            await self._app(scope, receive, send)


# vLLM imports it by this name.
GATE = f"{ApiGate.__module__}.{ApiGate.__qualname__}"


def main(argv: list[str]) -> int:
    """Run the engine as python itself would, in its own python; return when it ends."""
    if len(argv) < 2 or argv[0] != "-m" or argv[1].partition(".")[0] not in ("vllm", "sglang"):
        raise HostError("usage: engine -m vllm.MODULE|sglang.MODULE ARGUMENT...")
    module, arguments = argv[1], argv[2:]
    if module.startswith("sglang"):
        launch.guard_sglang(KeyFile(os.environ.get(JOB_KEY_FILE, "")).text, ApiGate)
        return launch.start(module, arguments)
    if "--headless" in arguments:
        return launch.main(argv)
    return launch.start(module, [*arguments, "--middleware", GATE])
