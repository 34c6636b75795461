"""A real Prometheus on the loopback, with the rules and consoles that are handed out."""

from __future__ import annotations

import json
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from ports import free_port
from waiting import until

from kimi_prov.monitoring import CONSOLES

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def get(url: str) -> Any:
    """The JSON at an address; None where nothing answers."""
    try:
        with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310  (a server of the test)
            return json.loads(answer.read() or "null")
    except (urllib.error.URLError, OSError, ValueError):
        return None


def shown(url: str) -> str:
    """The text at an address."""
    with urllib.request.urlopen(url, timeout=30) as answer:  # noqa: S310  (a server of the test)
        text: str = answer.read().decode()
    return text


@contextmanager
def program(folder: Path, *argv: str, ready: str) -> Iterator[None]:
    """Run a program until the block ends; it is there when an address answers with 200."""
    log = folder / f"{argv[0]}.log"
    with log.open("w") as told:
        running = subprocess.Popen(argv, stdout=told, stderr=subprocess.STDOUT, cwd=folder)

    def answers() -> bool:
        assert running.poll() is None, log.read_text()
        try:
            with urllib.request.urlopen(ready, timeout=5) as answer:  # noqa: S310  (as above)
                return bool(answer.status == 200)
        except (urllib.error.URLError, OSError):
            return False

    try:
        assert until(answers), log.read_text()
        yield
    finally:
        running.terminate()
        running.wait(60)


def stored(folder: Path, openmetrics: str) -> None:
    """Put series where `prometheus` has those of a folder."""
    (folder / "series").write_text(openmetrics)
    command = ["promtool", "tsdb", "create-blocks-from", "openmetrics", "series", "data"]
    subprocess.run(command, cwd=folder, check=True, capture_output=True)


@contextmanager
def prometheus(folder: Path, config: dict[str, Any], *options: str) -> Iterator[str]:
    """Run Prometheus; gives its address. What lies in `folder`/data already are its series."""
    port = free_port()
    address = f"http://127.0.0.1:{port}"
    (folder / "prometheus.yml").write_text(json.dumps(config))
    argv = [
        "prometheus",
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'data'}",
        f"--web.listen-address=127.0.0.1:{port}",
        f"--web.console.templates={CONSOLES}",
        f"--web.console.libraries={CONSOLES}",
        "--log.level=warn",
        *options,
    ]
    with program(folder, *argv, ready=f"{address}/-/ready"):
        yield address


def query(address: str, expression: str) -> list[dict[str, Any]]:
    """The series that an expression gives now."""
    found = get(f"{address}/api/v1/query?{urllib.parse.urlencode({'query': expression})}")
    return found["data"]["result"] if found and found["status"] == "success" else []
