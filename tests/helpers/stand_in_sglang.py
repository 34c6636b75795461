"""sglang's server in the place of KTransformers': a stand-in that computes nothing.

It parses its words by argparse and puts a middleware before its application by its own function, as
sglang-kt 0.7.2 does: that is where the gate comes in (tests/engines asks the real one). It speaks
no TLS.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import stand_in_engine

if TYPE_CHECKING:
    from pathlib import Path

SAYS = "a stand-in for sglang: it computes nothing"
MODULE = "sglang.launch_server"
# The others are flags that take any number of values.
_PARSED = """
import sys
for word in sys.argv[1:]:
    if word.startswith("--") and word not in parser._option_string_actions:
        parser.add_argument(word, nargs="*")
given = parser.parse_args()
"""
_GATED = """
class Application:
    def add_middleware(self, guard):
        self.guarded = guard(app)


application = Application()
auth = importlib.import_module("sglang.srt.utils.auth")
auth.add_api_key_middleware(application, api_key=str(given.api_key), admin_api_key=None)
gated = application.guarded
"""


def _make_server() -> str:
    """Return the stand-in of vLLM with sglang's flags, metrics and way to its middleware."""
    text = stand_in_engine.SERVER.replace(stand_in_engine.SAYS, SAYS)
    text = text.replace('"middleware", "master-addr"', '"api-key", "master-addr"')
    text = text.replace("given, _ = parser.parse_known_args()", _PARSED)
    before, _, rest = text.partition("module, _, name = given.middleware")
    text = before + _GATED + rest.partition("gated = ")[2].partition("\n")[2]
    names = {
        "vllm:num_requests_running": "sglang:num_running_reqs",
        "vllm:num_requests_waiting": "sglang:num_queue_reqs",
        "vllm:generation_tokens_total": "sglang:generation_tokens_total",
        "vllm:prompt_tokens_total": "sglang:prompt_tokens_total",
    }
    for old, new in names.items():
        text = text.replace(old, new)
    return text


_AUTH = "def add_api_key_middleware(app, **_):\n    raise SystemExit('no gate')\n"


FILES = {
    **{f"{name}/__init__.py": "" for name in ("sglang", "sglang/srt", "sglang/srt/utils")},
    "sglang/launch_server.py": _make_server(),
    "sglang/srt/utils/auth.py": _AUTH,
}


def install(environment: Path) -> None:
    """Put the stand-in into a virtual environment that is there."""
    packages = next(environment.glob("lib/python*/site-packages"))
    for name, text in FILES.items():
        path = packages / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
