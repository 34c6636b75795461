"""A machine that a cloud takes, and one that gives itself back, against stand-ins of the clouds."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from kimi_prov.contract.errors import HostError
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.cloud import main, metadata

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TOKEN = "token-of-the-stand-in"


class _Handler(BaseHTTPRequestHandler):
    server: Cloud

    def log_message(self, *args: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        self._answer()

    def do_PUT(self) -> None:
        self._answer()

    def do_DELETE(self) -> None:
        self._answer()

    def _answer(self) -> None:
        self.server.asked.append((self.command, self.path))
        status, text = self.server.answer(self.command, self.path, self.headers)
        body = text.encode()
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


class Cloud(ThreadingHTTPServer):
    """The metadata servers of both clouds, and Google's API of machines."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.asked: list[tuple[str, str]] = []
        #: What the next looks find, the last for ever: a status, and the text of a notice.
        self.notices: list[tuple[int, str]] = []
        self.delete_status = 200
        self.host = f"127.0.0.1:{self.server_address[1]}"
        threading.Thread(target=self.serve_forever, args=(0.05,), daemon=True).start()

    def answer(self, method: str, path: str, headers: Any) -> tuple[int, str]:
        if path.startswith("/compute/"):
            known = headers.get("Authorization") == f"Bearer {TOKEN}" and method == "DELETE"
            return (self.delete_status, "{}") if known else (401, "")
        if path == "/latest/api/token":
            return (200, "session") if method == "PUT" else (405, "")
        if path.startswith("/latest/"):
            known = headers.get("X-aws-ec2-metadata-token") == "session"
            return self._notice() if known else (401, "")
        if headers.get("Metadata-Flavor") != "Google":
            return 403, ""
        return self._of_google(path)

    def _of_google(self, path: str) -> tuple[int, str]:
        entry = path.removeprefix("/computeMetadata/v1/")
        if entry == "instance/preempted":
            return self._notice()
        found = {
            "instance/service-accounts/default/token": json.dumps({"access_token": TOKEN}),
            "project/project-id": "site-1",
            "instance/zone": "projects/42/zones/us-central1-a",
            "instance/name": "kimi-spot",
        }
        return (200, found[entry]) if entry in found else (404, "")

    def _notice(self) -> tuple[int, str]:
        return self.notices.pop(0) if len(self.notices) > 1 else self.notices[0]


@pytest.fixture
def cloud(monkeypatch: pytest.MonkeyPatch) -> Iterator[Cloud]:
    found = Cloud()
    monkeypatch.setenv("GCE_METADATA_HOST", found.host)
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", f"http://{found.host}")
    # What would lead a request astray, and a token with it.
    monkeypatch.setenv("http_proxy", "http://127.0.0.1:9")
    yield found
    found.shutdown()
    found.server_close()


NOTICES = {
    "gcp": ([(200, "FALSE"), (503, ""), (200, "FALSE"), (200, "TRUE")], "Google takes"),
    "aws": (
        [(404, ""), (500, ""), (200, '{"action": "terminate", "time": "2026-11-24T16:00:00Z"}')],
        "AWS will terminate the machine at 2026-11-24T16:00:00Z",
    ),
}


@pytest.mark.parametrize("provider", metadata.PROVIDERS)
def test_the_notice_is_waited_for_through_answers_that_fail(cloud: Cloud, provider: str) -> None:
    cloud.notices, expected = list(NOTICES[provider][0]), NOTICES[provider][1]
    told: list[str] = []
    assert main.wait(provider, told.append, look_s=0.01, most=100).startswith(expected)
    # One that failed is told once, and what it was.
    assert len(told) == 1
    assert "no answer of the metadata server" in told[0]


@pytest.mark.parametrize(("provider", "quiet"), [("gcp", (200, "FALSE")), ("aws", (404, ""))])
def test_without_a_notice_nothing_is_done(
    cloud: Cloud, provider: str, quiet: tuple[int, str]
) -> None:
    cloud.notices = [quiet]
    told: list[str] = []
    with pytest.raises(HostError, match="no notice came"):
        main.wait(provider, told.append, look_s=0, most=5)
    assert told == []


def test_a_machine_without_a_proxy_leaves_at_once(tmp_path: Path) -> None:
    told: list[str] = []
    assert main.leave(Paths(str(tmp_path)), "taken", 22.0, told.append) == 0
    first, last = told
    assert first == "taken: no new requests, and 22 s for those under way"
    assert last == "all answers have ended"


def test_a_machine_of_google_deletes_itself(
    cloud: Cloud, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main.main(["release", "--provider", "gcp", "--api", f"http://{cloud.host}"]) == 0
    place = "projects/site-1/zones/us-central1-a/instances/kimi-spot"
    assert ("DELETE", f"/compute/v1/{place}") in cloud.asked
    told = capsys.readouterr().out
    assert told == "Google deletes kimi-spot\n"
    assert TOKEN not in told


def test_one_that_may_not_says_what_to_grant(cloud: Cloud) -> None:
    cloud.delete_status = 403
    with pytest.raises(HostError, match="kimi-spot was not deleted") as caught:
        main.release("gcp", f"http://{cloud.host}")
    assert caught.value.fix
    assert "Compute Instance Admin" in caught.value.fix
    assert "gcloud compute instances delete kimi-spot --zone us-central1-a" in caught.value.fix
    assert TOKEN not in caught.value.line
