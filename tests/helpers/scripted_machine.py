"""A machine of files that serves the scripted model: its plan, its weights, its keys.

Its systemd is a stand-in: the units confine nothing.
"""

from __future__ import annotations

import hashlib
import json
import sys
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import scripted_model
from scripted_model import SPECIAL, TEMPLATE, Model
from systemd_stand_in import systemd_stand_in

from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.acceptance import code_unit, run
from kimi_prov.on_host.acceptance.catalogue import FULL, LEFT_OUT, Exam, Selection

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    import pytest

CONTEXT = 24_000


@dataclass
class Served:
    """The machine, its model's script, and its plan, all to be changed by a test."""

    root: Path
    model: Model
    plan: dict[str, Any]
    told: list[str] = field(default_factory=list)

    @property
    def weights(self) -> Path:
        return self.root / "srv/kimi/models/kimi-test/1"

    def exam(self) -> Exam:
        """As the machine itself makes it."""
        paths = Paths(self.root)
        self.model.context = self.plan["model"]["context"]
        paths.plan.write_text(json.dumps(self.plan))
        return run.build_exam(paths)

    def rows(self, *only: str, leave: tuple[str, ...] = ()) -> dict[str, dict[str, Any]]:
        """Run checks of the full suite; each row by its name."""
        exam = self.exam()
        found = run.run_selection(
            Selection(FULL, only, leave), exam, lambda names: run.run(exam, names, self.told.append)
        )
        return {row["name"]: row for row in found if row["detail"] != LEFT_OUT}


@contextmanager
def machine(
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    certificate: str,
    model: Model | None = None,
) -> Iterator[Served]:
    """A good model, or the one that is given, on a machine below `folder`."""
    systemd_stand_in(folder / "systemd", monkeypatch)
    monkeypatch.setattr(code_unit, "_SYSTEMD", str(folder / "systemd"))
    model = model or Model()
    serving = scripted_model.serving(folder, certificate, model)
    with serving as port, scripted_model.engine(model) as engine:
        served = Served(folder / "root", model, _plan(folder, port, engine))
        _files(served, certificate)
        _environment(folder / "env" / "bin" / "python")
        yield served


def _environment(python: Path) -> None:
    """In place of the engine's own Python: ours, which has jinja2 as well."""
    python.parent.mkdir(parents=True)
    python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
    python.chmod(0o755)


def _plan(folder: Path, port: int, engine: int) -> dict[str, Any]:
    where = "/srv/kimi/models/kimi-test/1"
    argv = ["--reasoning-parser", "kimi_k2", "--tool-call-parser", "kimi_k2"]
    return {
        "engine": {"name": "vllm", "env_dir": str(folder / "env")},
        "model": {
            "served_names": ["kimi-test"],
            "random_weights": False,
            "context": CONTEXT,
            "architecture": "KimiK25ForConditionalGeneration",
            "dir": where,
            "serve_dir": where,
        },
        "instances": [
            {
                "index": 0,
                "numactl": [],
                "numa_nodes": [],
                "cpus": "",
                "argv": [*argv, "--enable-prefix-caching"],
                "port": engine,
            }
        ],
        "speculative": {"name": "draft"},
        "tuning": {"thp": "never"},
        "throughput": {"concurrency": 8, "prefill_tok_s": {"expected": 1000.0}},
        "proxy": {"port": port, "allowed_networks": []},
    }


def _files(served: Served, certificate: str) -> None:
    paths = Paths(served.root)
    for folder in (paths.keys, paths.proxy, served.weights):
        folder.mkdir(parents=True)
    paths.verify_key.write_text(served.model.key)
    paths.tls_crt.write_text(certificate)
    (served.weights / "chat_template.jinja").write_text(TEMPLATE)
    rows = {str(number): {"content": text} for text, number in SPECIAL.items()}
    config = json.dumps({"added_tokens_decoder": rows, "eos_token": "<|im_end|>"})
    (served.weights / "tokenizer_config.json").write_text(config)
    seen = {
        file.name: {
            "size": file.stat().st_size,
            "mtime_ns": file.stat().st_mtime_ns,
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        }
        for file in served.weights.iterdir()
    }
    (served.weights / ".kimi-verified").write_text(json.dumps({"verified": seen}))
