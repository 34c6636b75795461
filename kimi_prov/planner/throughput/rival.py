"""What aiconfigurator, NVIDIA's estimator, says about the same rows.

It is no dependency, because it is large and pins its own packages. Another interpreter that has it
runs `rival_bridge.py`, which calls its public interface. None of its tables is read here, and no
fit uses its answers: they are data, limited in time and size, and are only scored.

Decides: the score of speeds (another program's estimates beside ours).
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import tempfile
import time
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kimi_prov.contract import clean_text
from kimi_prov.documents import Document
from kimi_prov.errors import UserError
from kimi_prov.planner.throughput.formats import find_weight_format

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from kimi_prov.planner.throughput.calibrate import Prediction
    from kimi_prov.planner.throughput.cases import Case

SETUP_HELP = (
    "python3.12 -m venv RIVAL && RIVAL/bin/pip install aiconfigurator==0.12.0 (0.9 GB; Python 3.11 "
    "to 3.13), then make score RIVAL=RIVAL/bin/python"
)
LIMIT_S = 1800.0
_BRIDGE = Path(__file__).with_name("rival_bridge.py")
# Most bytes of each answer, and of the program's name.
_MAX_BYTES = 2048
_KEPT_ENVIRONMENT = ("HOME", "LANG", "LD_LIBRARY_PATH", "PATH", "TMPDIR")
_MAX_REASON_LENGTH = 100
_MAX_MS = 1e9

# aiconfigurator's names of systems, by the catalogue's names of cards.
_SYSTEMS = {
    "A100 PCIe 80GB": "a100_pcie",
    "A100 SXM 80GB": "a100_sxm",
    "B200 SXM": "b200_sxm",
    "B300 SXM": "b300_sxm",
    "GB200 (per GPU)": "gb200",
    "GB300 (per GPU)": "gb300",
    "H100 PCIe 80GB": "h100_pcie",
    "H100 SXM 80GB": "h100_sxm",
    "H200 SXM": "h200_sxm",
    "L40S": "l40s",
    "RTX PRO 6000 Blackwell (Server)": "rtx_pro_6000_server",
}
# The start of a model's name and its format of weights; then aiconfigurator's name of the model,
# and the format to pass where it is not the model's own. Kimi K2 to K2.7 have the same dimensions,
# so have DeepSeek R1 and V3.1, and MiniMax M2 and M2.5. It does not know all of them offline.
_MODELS: tuple[tuple[str, str, str, str | None], ...] = (
    ("kimi-k2", "int4", "moonshotai/Kimi-K2.5", None),
    ("kimi-k2", "fp8", "moonshotai/Kimi-K2.5", "fp8_block"),
    ("kimi-k2", "nvfp4", "nvidia/Kimi-K2.5-NVFP4", None),
    ("kimi-k3", "mxfp4", "moonshotai/Kimi-K3", None),
    ("deepseek-v3.2", "fp8", "deepseek-ai/DeepSeek-V3.2", None),
    ("deepseek-v3.2", "nvfp4", "nvidia/DeepSeek-V3.2-NVFP4", None),
    ("deepseek-v3", "fp8", "deepseek-ai/DeepSeek-V3", None),
    ("deepseek-v3", "nvfp4", "nvidia/DeepSeek-V3.1-NVFP4", None),
    ("deepseek-r1", "fp8", "deepseek-ai/DeepSeek-R1", None),
    ("deepseek-r1", "nvfp4", "nvidia/DeepSeek-V3.1-NVFP4", None),
    ("minimax-m2", "fp8", "MiniMaxAI/MiniMax-M2.5", None),
    ("minimax-m2", "nvfp4", "nvidia/MiniMax-M2.5-NVFP4", None),
    ("gpt-oss-120b", "mxfp4", "openai/gpt-oss-120b", None),
    ("qwen3-235b-a22b", "bf16", "Qwen/Qwen3-235B-A22B", None),
    ("qwen3-235b-a22b", "fp8", "Qwen/Qwen3-235B-A22B-FP8", None),
    ("qwen3-235b-a22b", "nvfp4", "nvidia/Qwen3-235B-A22B-NVFP4", None),
    ("glm-5.2", "fp8", "zai-org/GLM-5.2-FP8", None),
    ("glm-5.2", "nvfp4", "nvidia/GLM-5.2-NVFP4", None),
)
_FORMATS = ("int4", "fp8", "nvfp4", "mxfp4", "bf16")
_INSTALL = f"give --rival-python the interpreter of an environment that has it: {SETUP_HELP}"


@dataclass(frozen=True)
class Question:
    """One row in the rival's words; `row` is its index among the predictions."""

    row: int
    model: str
    weights: str | None
    cache: str | None
    system: str
    backend: str
    tensor_parallel: int
    batch: int
    input_tokens: int
    output_tokens: int


@dataclass(frozen=True)
class Answer:
    """Milliseconds of one output token and to the first one; `mode` is the rival's name for it."""

    tpot_ms: float
    ttft_ms: float
    mode: str

    def tokens_s(self, case: Case) -> float:
        """Convert to tokens a second of the case's quantity."""
        if case.quantity == "prefill":
            return case.serving.input_tokens / self.ttft_ms * 1000
        prompt = self.ttft_ms / case.serving.output_tokens if case.end_to_end else 0.0
        return 1000 / (self.tpot_ms + prompt)


@dataclass(frozen=True)
class ComparedRow:
    """A row with both estimates: ours, and the rival's in tokens a second."""

    ours: Prediction
    expected: float
    mode: str

    @property
    def error(self) -> float:
        """The relative error of the rival's estimate."""
        return abs(self.expected / self.ours.case.value - 1)


@dataclass(frozen=True)
class Comparison:
    """All rows on GPUs: the answered ones, and the number of others for each reason."""

    name: str
    compared: list[ComparedRow]
    unanswered: Counter[str]


def compare_with_rival(
    python: Path, predictions: Sequence[Prediction], limit_s: float
) -> Comparison:
    """Ask the rival about every row on GPUs. Raises UserError where it cannot be run."""
    rows = [p for p in predictions if p.case.machine.cpu is None and p.case.quantity != "load"]
    questions, silent = make_questions([p.case for p in rows])
    name, answers, reasons, ended = _ask_rival(python, questions, limit_s)
    compared = []
    for question in questions:
        ours, answer = rows[question.row], answers.get(question.row)
        if answer is None:
            silent[reasons.get(question.row, ended)] += 1
        else:
            compared.append(ComparedRow(ours, answer.tokens_s(ours.case), answer.mode))
    return Comparison(name, compared, silent)


def make_questions(cases: Sequence[Case]) -> tuple[list[Question], Counter[str]]:
    """Translate cases to the rival's words; count the others for each reason."""
    questions: list[Question] = []
    silent: Counter[str] = Counter()
    for row, case in enumerate(cases):
        gpus, serving = case.machine.gpus, case.serving
        system = _SYSTEMS.get(gpus.name) if gpus else None
        model = _find_model(case)
        if gpus is None or system is None:
            silent[f"it has no {gpus.name if gpus else 'processors'}"] += 1
        elif serving.engine not in {"vllm", "sglang"}:
            silent[f"it has no {serving.engine}"] += 1
        elif model is None:
            silent[f"it has no {case.model.name} in this format"] += 1
        else:
            questions.append(
                Question(
                    row=row,
                    model=model[0],
                    weights=model[1],
                    cache="fp8" if serving.kv_dtype_bytes == 1 else None,
                    system=system,
                    backend=serving.engine,
                    tensor_parallel=serving.tensor_parallel or gpus.count,
                    batch=max(1, round(serving.running)),
                    input_tokens=max(1, round(serving.input_tokens)),
                    output_tokens=max(2, round(serving.output_tokens)),
                )
            )
    return questions, silent


def _find_model(case: Case) -> tuple[str, str | None] | None:
    format_ = next((f for f in _FORMATS if find_weight_format(f) == case.serving.weights), None)
    name = case.model.name.lower()
    known = (row[2:] for row in _MODELS if name.startswith(row[0]) and row[1] == format_)
    return next(known, None)


def _ask_rival(
    python: Path, questions: Sequence[Question], limit_s: float
) -> tuple[str, dict[int, Answer], dict[int, str], str]:
    """Return the rival's name, its answers, its reasons, and the reason for all other rows."""
    text = json.dumps([asdict(question) for question in questions])
    limit = (len(questions) + 1) * _MAX_BYTES
    # It is started in another folder, so a relative path is resolved here.
    program = Path(shutil.which(python) or python).absolute()
    said, ended = _run_bridge([str(program), "-I", str(_BRIDGE)], text, limit, limit_s)
    name, rows = "aiconfigurator", {question.row for question in questions}
    answers: dict[int, Answer] = {}
    reasons: dict[int, str] = {}
    for line in _parse_lines(said):
        if "missing" in line:
            raise UserError(f"{python}: aiconfigurator is not installed for it", fix=_INSTALL)
        if isinstance(line.get("name"), str):
            name = clean_text.clean_line(line["name"])[:_MAX_REASON_LENGTH]
        row = line.get("row")
        if not isinstance(row, int) or row not in rows:
            continue
        if isinstance(line.get("why"), str):
            reasons[row] = clean_text.clean_line(line["why"])[:_MAX_REASON_LENGTH]
            continue
        answer = _parse_answer(line)
        if answer is None:
            reasons[row] = "its answer is none that can be read"
        else:
            answers[row] = answer
    return name, answers, reasons, ended


def _parse_answer(line: dict[str, Any]) -> Answer | None:
    times = [line.get(key) for key in ("tpot_ms", "ttft_ms")]
    tpot, ttft = (
        float(t) if isinstance(t, (int, float)) and not isinstance(t, bool) else 0.0 for t in times
    )
    if not (0 < tpot < _MAX_MS and 0 < ttft < _MAX_MS):
        return None
    return Answer(tpot, ttft, clean_text.clean_line(line.get("mode", ""))[:_MAX_REASON_LENGTH])


def _parse_lines(said: bytes) -> Iterator[dict[str, Any]]:
    """Yield each line that is a JSON object."""
    for line in said.decode("utf-8", "replace").splitlines():
        if not line.startswith("{"):
            continue
        try:
            value = Document("an answer", line).json("")
        except UserError:
            continue
        yield value


def _run_bridge(command: list[str], text: str, limit: int, limit_s: float) -> tuple[bytes, str]:
    """Run the command with a text as input; return its output, and the reason why it ended.

    It ends by itself, after about `limit` bytes of output, or after `limit_s` seconds.
    """
    kept = {key: os.environ[key] for key in _KEPT_ENVIRONMENT if key in os.environ}
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile() as input_file:
        input_file.write(text.encode())
        input_file.seek(0)
        try:
            process = subprocess.Popen(
                command,
                stdin=input_file,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd=folder,
                env=kept,
                start_new_session=True,
            )
        except OSError as error:
            raise UserError(
                f"{command[0]}: cannot be started: {error.strerror}", fix=_INSTALL
            ) from None
        with process:
            try:
                return _read_output(process, limit, limit_s)
            finally:
                # This also ends the processes that it started.
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)


def _read_output(process: subprocess.Popen[bytes], limit: int, limit_s: float) -> tuple[bytes, str]:
    if process.stdout is None:
        raise ValueError("its output is not read")
    said, end = b"", time.monotonic() + limit_s
    with selectors.DefaultSelector() as selector:
        selector.register(process.stdout, selectors.EVENT_READ)
        while len(said) < limit:
            if not selector.select(max(0.0, end - time.monotonic())):
                return said, f"no answer within {limit_s:g} s"
            chunk = os.read(process.stdout.fileno(), 1 << 16)
            if not chunk:
                return said, "it ended without an answer"
            said += chunk
    return said, "it says more than answers can be"
