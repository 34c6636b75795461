"""`kimi-prov verify` of a folder that `render kubernetes` made: the acceptance checks."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from kimi_prov.acceptance import suite
from kimi_prov.commands.kubernetes import access
from kimi_prov.errors import ExitCode
from kimi_prov.on_host.acceptance import expectations
from kimi_prov.on_host.acceptance import run as acceptance
from kimi_prov.on_host.acceptance.catalogue import FULL, Exam
from kimi_prov.on_host.acceptance.target import MachineTarget
from kimi_prov.on_host.cluster.accept import build_subject
from kimi_prov.operate.kubernetes import answers, diagnosis, observe
from kimi_prov.operate.kubernetes.folder import Folder
from kimi_prov.show.output import say
from kimi_prov.show.text import verify

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kimi_prov.contract.documents.verify import VerifiedHost, Verify
    from kimi_prov.on_host.acceptance.catalogue import Selection
    from kimi_prov.operate.kubernetes.kubectl import Target
    from kimi_prov.show.output import Output

# A model on CPUs may take minutes for one whole answer.
_ANSWER_TIMEOUT_S = 600.0
_CLOSED = MachineTarget(None, "a pod is reached only through its service")


def run(
    path: Path,
    target: Target,
    output: Output,
    key_file: Path | None,
    chosen: Selection,
    also: Callable[[Verify], None],
) -> ExitCode:
    """Check the model through a forwarded port of its service; exit 1 if a check fails.

    `also` writes the document in another form.
    """
    output.check()
    folder = Folder.read(path, target)
    found = observe.take_snapshot(folder)
    standing = diagnosis.judge_status(found)
    if standing.state != "serving":
        raise access.make_silent_error(folder, found, standing)
    plan, key = folder.plan, access.read_key(folder, key_file)
    with access.open_way(folder, None, _ANSWER_TIMEOUT_S) as way:
        exam = Exam(build_subject(plan, way.endpoint, key), expectations.from_plan(plan), _CLOSED)
        tell = say if chosen.suite == FULL else _ignore
        rows = acceptance.run_selection(
            chosen, exam, lambda names: acceptance.run(exam, names, tell)
        )
    service = answers.read_name(folder.service)
    host = suite.make_document(
        endpoint=folder.urls[0],
        seen_from="control",
        reason=f"kubectl port-forward to service/{service} in {folder.kubectl.where}; the "
        f"certificate is held to {way.vouched}",
        checks=rows,
        stand_ins=suite.list_stand_ins(plan, {}),
        suite=chosen.suite,
    )
    document: Verify = {
        "schema": "kimi-prov/verify/v1",
        "ok": host["ok"],
        "hosts": {folder.name: cast("VerifiedHost", host)},
    }
    also(document)
    output.write(document, lambda: verify.format_text(document))
    return ExitCode.OK if host["ok"] else ExitCode.FAILED


def _ignore(_: str) -> None:
    pass
