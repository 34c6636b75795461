"""What is judged about a model's answers, asked of a server that computes nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING

import model_stand_in
import pytest

from kimi_prov.on_host.endpoint import checks, tls
from kimi_prov.on_host.endpoint.api_client import Endpoint

if TYPE_CHECKING:
    from pathlib import Path

KEY = "sk-kimi-of-the-test"


@pytest.mark.parametrize(
    ("answer", "random_weights", "status"),
    [("yes", False, "ok"), ("yes</think>", False, "fail"), ("zx </think> q", True, "ok")],
)
def test_marks_of_thinking_in_an_answer_are_a_fault_unless_weights_are_random(
    tmp_path: Path, answer: str, random_weights: bool, status: str
) -> None:
    pem = tls.make_self_signed(["kimi"])
    fingerprint = tls.compute_fingerprint(tls.extract_certificates(pem))
    with model_stand_in.serving(tmp_path, pem, key=KEY, model="kimi", answer=answer) as port:
        subject = checks.Subject(
            endpoint=Endpoint("127.0.0.1", port, fingerprint),
            key=KEY,
            model="kimi",
            names=("kimi",),
            random_weights=random_weights,
            reasons=True,
            tools=True,
        )
        assert checks.check_reasoning(subject)[0] == status
