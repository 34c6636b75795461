"""A machine of files that serves the scripted model: its plan, its weights, its keys."""

from __future__ import annotations

import hashlib
import json
import sys
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import pytest
import scripted_model
from scripted_model import SPECIAL, TEMPLATE, Model
from systemd_stand_in import systemd_stand_in

from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.acceptance import code_unit, machine, run
from kimi_prov.on_host.acceptance.catalogue import FULL, Exam, Selection
from kimi_prov.on_host.acceptance.door import Door
from kimi_prov.on_host.gateway import tls

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

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
        """As the machine itself makes it, with the scripted engine on its loopback."""
        paths = Paths(self.root)
        paths.plan.write_text(json.dumps(self.plan))
        found = run.here(paths)
        place = machine.Place(paths, self.plan, self.model.engine)
        return Exam(found.subject, found.promise, Door(lambda asked: machine.answer(place, asked)))

    def rows(self, *only: str) -> dict[str, dict[str, Any]]:
        """Run checks of the full suite; each row by its name."""
        exam = self.exam()
        found = run.whole(
            Selection(FULL, only), exam, lambda names: run.run(exam, names, self.told.append)
        )
        return {
            row["name"]: row for row in found if row["detail"] != "left out by --only or --skip"
        }


@pytest.fixture(scope="session")
def certificate() -> str:
    return tls.self_signed(["localhost"])


@pytest.fixture
def served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, certificate: str) -> Iterator[Served]:
    """A good model on a machine whose systemd is a stand-in: its units confine nothing."""
    systemd_stand_in(tmp_path / "systemd", monkeypatch)
    monkeypatch.setattr(code_unit, "_SYSTEMD", str(tmp_path / "systemd"))
    root, model = tmp_path / "root", Model()
    with scripted_model.serving(tmp_path, certificate, model) as port:
        served = Served(root, model, _plan(tmp_path, port))
        _files(served, certificate)
        python = tmp_path / "env" / "bin" / "python"
        python.parent.mkdir(parents=True)
        python.write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        python.chmod(0o755)
        yield served


def _plan(folder: Path, port: int) -> dict[str, Any]:
    where = "/srv/kimi/models/kimi-test/1"
    argv = ["--reasoning-parser", "kimi_k2", "--tool-call-parser", "kimi_k2"]
    return {
        "engine": {"name": "vllm", "env_dir": str(folder / "env")},
        "model": {
            "served_names": ["kimi-test"],
            "random_weights": False,
            "context": CONTEXT,
            "vision": True,
            "dir": where,
            "serve_dir": where,
        },
        "instances": [{"argv": [*argv, "--enable-prefix-caching"], "port": 1}],
        "speculative": {"name": "draft"},
        "throughput": {"concurrency": 8, "prefill_tok_s": {"expected": 1000.0}},
        "proxy": {"port": port},
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
