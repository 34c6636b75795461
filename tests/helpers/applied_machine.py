"""A machine of files with a plan applied, whose systemctl says what a test tells it."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import paths as layout
from kimi_prov.on_host.history import entries

if TYPE_CHECKING:
    from pathlib import Path

    from kimi_prov.contract.paths import Paths

UNIT = "kimi-serve@0.service"
DROP_IN = f"{layout.UNITS}/{UNIT}.d/10-plan.conf"
TEMPLATE = f"{layout.UNITS}/kimi-serve@.service"


@dataclass
class Applied:
    """The machine: versions are applied to it as far as files go."""

    places: Paths

    def put(self, name: str, text: str, mode: int = 0o644) -> Path:
        """Write a file of the machine."""
        path = self.places.locate(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
        path.chmod(mode)
        return path

    def version(self, version: str, model: str = "a") -> None:
        """Leave what an apply of a version leaves."""
        found = plan(version, model)
        self.put(layout.PLAN, json.dumps(found), 0o640)
        self.put(DROP_IN, f"[Service]\nEnvironment=KIMI_STAMP={version}\n")
        self.put(TEMPLATE, "[Service]\n")
        self.put(f"{found['engine']['env_dir']}/{layout.ENV_COMPLETE}", "")
        self.put(f"{found['model']['dir']}/{layout.MODEL_VERIFIED}", "")
        link = self.places.locate(layout.ENGINE)
        link.unlink(missing_ok=True)
        link.symlink_to(found["engine"]["env_dir"])

    @property
    def in_place(self) -> str:
        """The version whose plan is in place."""
        return str(json.loads(self.places.plan.read_text())["engine"]["version"])

    def entry(self, result: str = entries.DONE) -> dict[str, Any]:
        """Make an entry of what is in place."""
        opened = entries.open_entry(self.places, entries.APPLY, {"by": None})
        ended = {**entries.capture_files(self.places, opened), "result": result}
        entries.write(self.places, ended)
        return ended

    def runs(self, state: str, version: str = "", sub: str = "") -> None:
        """Say in which state the engine is, and with which version it was started."""
        process = self.places.locate("/proc/4711")
        process.mkdir(parents=True, exist_ok=True)
        (process / "environ").write_bytes(f"KIMI_STAMP={version}\0".encode())
        pid = 4711 if version else 0
        rows = {"Id": UNIT, "LoadState": "loaded", "ActiveState": state, "MainPID": pid}
        rows["SubState"] = sub
        text = "".join(f"{name}={value}\n" for name, value in rows.items())
        self.places.locate("/said").write_text(text)

    @property
    def told(self) -> list[str]:
        """What systemctl was told to do."""
        log = self.places.locate("/told")
        return log.read_text().splitlines() if log.exists() else []


def plan(version: str, model: str) -> dict[str, Any]:
    """The parts of a plan that history reads."""
    directory = f"{layout.MODELS}/{model}/r"
    return {
        "engine": {
            "name": "vllm",
            "variant": "cpu",
            "version": version,
            "env_name": f"vllm-{version}",
            "env_dir": f"{layout.ENGINES}/vllm-{version}",
        },
        "model": {
            "name": model,
            "revision": "r",
            "dir": directory,
            "serve_dir": directory,
            "weights_format": "int4",
            "context": 4096,
            "served_names": ["m"],
        },
        "weights": {"draft": None, "converted": None},
        "conversion": None,
        "instances": [{"index": 0}],
        "timeouts": {"start_s": 60},
        "firewall": {"manager": "nftables", "ipv4": [], "ipv6": [], "ports": []},
    }
