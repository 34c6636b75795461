"""`kimi-prov tune`: try other settings of the engines, and say which are better."""

from __future__ import annotations

import contextlib
import json
import tempfile
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from kimi_prov.commands.common import (
    bench_load,
    confirmation,
    host_reports,
    inventory_writes,
    playbook_run,
)
from kimi_prov.commands.common.command import Command
from kimi_prov.commands.common.option_types import FiniteRange, Span
from kimi_prov.commands.common.options import PATH, YES, add_inventory_options, add_report_options
from kimi_prov.contract import clean_text
from kimi_prov.contract.rendered_kinds import KUBERNETES, SLURM
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.planner.tuning import candidates, inventory_lines
from kimi_prov.render import folder_writer
from kimi_prov.show.output import say
from kimi_prov.show.text import tune as tune_text

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kimi_prov.commands.common.bench_load import BenchLoad
    from kimi_prov.commands.common.playbook_run import PlaybookOptions
    from kimi_prov.contract.documents.load import BenchLoad as BenchLoadDocument
    from kimi_prov.contract.documents.load import Load
    from kimi_prov.contract.documents.tune import Tune, TunedHost
    from kimi_prov.contract.documents.tune.jobs import TuneOptions
    from kimi_prov.runner.run import FinishedRun
    from kimi_prov.show.output import Output

# Where the inventory's number is smaller: as many as kimi_concurrency is by default.
_USUAL_USERS = 16
_DRAIN_S = {"drain": 300, "refuse": 0}


@click.command(cls=Command)
@add_inventory_options(
    click.option(
        "--for",
        "purpose",
        type=click.Choice(["latency", "throughput", "balanced"]),
        help="What the winner is best for.  [default: kimi_optimise]",
    ),
    click.option("--users", type=click.IntRange(1, 10_000), metavar="N",
        help="Requests at once of the load.  [default: for latency 1, else 16 or more]"),
    click.option("--ttft-s", type=FiniteRange(0.001, 86_400), metavar="S",
        help="The longest median time to the first token."),
    click.option("--tpot-ms", type=FiniteRange(0.001, 3_600_000), metavar="MS",
        help="The longest median time between two tokens."),
    click.option("--load", "load_file", type=PATH, metavar="FILE",
        help="The load from a file of the schema kimi-prov/load/v1; options win over it."),
    click.option("--input-tokens", type=click.IntRange(1, 10_000_000), metavar="N",
        help="Tokens of each prompt.  [default: as predicted]"),
    click.option("--output-tokens", type=click.IntRange(1, 10_000_000), metavar="N",
        help="Tokens of each answer.  [default: as predicted]"),
    click.option("--prompts", type=PATH, metavar="FILE",
        help="Prompts in ShareGPT's form, instead of random words."),
    click.option("--within", "within_s", type=Span(), default="45m", show_default=True,
        metavar="TIME", help="The tune ends in that time."),
    click.option("--only", metavar="SETTING[,SETTING...]",
        help=f"Try only these: {', '.join(candidates.NAMES)}."),
    click.option("--clients", type=click.Choice(["drain", "refuse"]), default="drain",
        show_default=True, help="Answers under way may end first, or are cut."),
    click.option("--write", is_flag=True,
        help="Write the winner into host_vars; the next apply keeps it."),
    YES,
    report=add_report_options("text", "json", "html", by_suffix=True),
)  # fmt: skip
def tune(
    path: Path,
    options: PlaybookOptions,
    output: Output,
    *,
    write: bool,
    yes: bool,
    **values: Any,  # noqa: ANN401
) -> ExitCode:
    """Try other settings of the served engine on each machine, and say which are better.

    Each candidate passes the engine's parser, starts, answers as before and is measured under the
    load. Then what was applied serves again, also after an error or a signal, and after a power cut
    by itself. Gains within the noise are none. Nothing is applied: the winner is printed as lines
    of the inventory, or written with --write.
    """
    _refuse_folder(path)
    output.check()
    load, request = _build_request(values)
    with _write_request(load, request) as file:
        variables = {"tune_request": str(file)}
        preview = host_reports.collect("tune", path, options, {**variables, "tune_step": "plan"})
        code = _show_preview(preview)
        if code is not ExitCode.OK:
            return code
        _confirm(path, preview, yes=yes)
        finished = _run_step(path, options, {**variables, "tune_step": "run"})
    if finished.outcome.exit_code() is ExitCode.INTERRUPTED:
        say("interrupted: what was applied comes back")
        ended = _run_step(path, options, {"tune_step": "end"})
        playbook_run.conclude(ended)
        return playbook_run.conclude(finished)
    for host, document in finished.outcome.documents.items():
        document |= {**split_load(request["load"]), "prompts_of_file": load.prompts is not None}
        _add_lines(path, host, document, write=write)
    return host_reports.publish("tune", finished, output, _find_writer(output.format))


def _refuse_folder(path: Path) -> None:
    kind = folder_writer.find_kind(path)
    if kind == SLURM:
        raise UserError(
            f"{path}: this folder was rendered for SLURM: a job has its settings from it, and a "
            "tune restarts an engine that is installed on a machine",
            fix="measure jobs with other settings by jobs/bench.sbatch: render, submit, compare",
        )
    if kind == KUBERNETES:
        raise UserError(
            f"{path}: this folder was rendered for Kubernetes: a pod has its settings from its "
            "object, and a tune restarts an engine that is installed on a machine",
            fix="render with other settings, apply and measure each",
        )


def _build_request(options: Mapping[str, Any]) -> tuple[BenchLoad, TuneOptions]:
    """Sort the options: the load of the bench client, and what a tune asks beside it."""
    sizes = _read_sizes(options["load_file"])
    names = ("load_file", "input_tokens", "output_tokens", "prompts")
    load = bench_load.parse_load({name: options[name] for name in names})
    # The numbers at once and the rounds are the tune's own.
    chosen = ("concurrency", "rounds", "profile")
    own = {k: v for k, v in load.request.items() if v is not None and k not in chosen}
    tpot_ms = options["tpot_ms"] or sizes.get("tpot_ms")
    return load, {
        "purpose": options["purpose"],
        "users": options["users"] or sizes.get("users"),
        "usual_users": _USUAL_USERS,
        "ttft_s": options["ttft_s"] or sizes.get("ttft_s"),
        "tpot_s": tpot_ms / 1000 if tpot_ms else None,
        "within_s": options["within_s"],
        "drain_s": _DRAIN_S[options["clients"]],
        "only": _split_settings(options["only"]),
        "load": cast("BenchLoadDocument", own),
    }


def split_load(load: Mapping[str, object]) -> dict[str, object]:
    """Return what a report says of a load: how it is put on, and beside it the sizes asked for."""
    sizes = {key: load[key] for key in ("input_tokens", "output_tokens") if key in load}
    return {"load": {key: load[key] for key in load if key not in sizes}, **sizes}


def _read_sizes(file: Path | None) -> Load:
    if file is None:
        return {"schema": "kimi-prov/load/v1"}
    from kimi_prov.sizing import load_file  # noqa: PLC0415

    return cast("Load", load_file.read_load(file))


def _split_settings(text: str | None) -> list[str]:
    names = [word.strip() for word in text.split(",")] if text else []
    for name in names:
        if name not in candidates.NAMES:
            raise UserError(
                f"--only: there is no setting {clean_text.clean_line(name)!r}",
                fix=f"some of: {', '.join(candidates.NAMES)}",
            )
    return names


@contextlib.contextmanager
def _write_request(load: BenchLoad, request: TuneOptions) -> Iterator[Path]:
    """Write the request to a file that only this user can read, and remove it at the end."""
    with tempfile.TemporaryDirectory(prefix="kimi-prov-tune-") as folder:
        file = Path(folder) / "request.json"
        rows = list(load.prompts.rows) if load.prompts else []
        file.write_text(json.dumps({**request, "prompts": rows}), encoding="utf-8")
        yield file


def _make_preview(documents: Mapping[str, TunedHost]) -> Tune:
    return {"schema": "kimi-prov/tune/v1", "ok": True, "preview": True, "hosts": dict(documents)}


def _show_preview(finished: FinishedRun) -> ExitCode:
    documents = finished.outcome.documents
    if documents:
        say(tune_text.format_preview(_make_preview(documents)).rstrip())
    code = playbook_run.conclude(finished)
    if code is ExitCode.OK and not any(
        row["reason"] is None for host in documents.values() for row in host["candidates"]
    ):
        raise UserError(
            "there is no candidate to try on these machines",
            fix="leave out --only, or set what the reasons above name and apply",
        )
    return code


def _confirm(path: Path, finished: FinishedRun, *, yes: bool) -> None:
    names = clean_text.clean_line(", ".join(finished.outcome.documents))
    if yes:
        return
    confirmation.require_terminal(
        f"a tune stops the model on {names} again and again", ["tune", str(path)]
    )
    confirmation.confirm(f"Tune {names}? The model is away meanwhile.", "not tuned")


def _run_step(path: Path, options: PlaybookOptions, variables: Mapping[str, str]) -> FinishedRun:
    inventory, request = playbook_run.prepare("tune", "tune", path, options, variables)
    return playbook_run.run_locked(path, request, inventory)


def _add_lines(path: Path, host: str, document: TunedHost, *, write: bool) -> None:
    """Add the winner's lines to a host's document, and to its file where that is asked for."""
    winner, served = document.get("winner"), document.get("served")
    best, now = winner and winner["rate"], served and served["rate"]
    if not winner or not best or not now:
        return
    day = datetime.now(UTC).strftime("%Y-%m-%d")
    rates = f"{best['median']:.4g} tokens/s, {now['median']:.4g} before"
    if winner["setting"] == candidates.BY_START:
        rates = winner["reason"] or rates
    notes = [
        f"kimi-prov tune of {day} on {host}, for {document['purpose']}: {winner['gain']:+.1%}",
        f"{rates}, {document['users']} requests at once",
    ]
    variables = {name.removeprefix("kimi_"): value for name, value in winner["variables"].items()}
    document["lines"] = lines = inventory_lines.build_lines(variables, notes)
    if not write:
        return
    try:
        document["written"] = str(inventory_writes.add_host_lines(path, host, lines))
    except UserError as error:
        say(f"not written: {error.message}; {error.fix}")


def _find_writer(form: str) -> Callable[[Tune], str]:
    if form == "html":
        from kimi_prov.show.report import tune_html  # noqa: PLC0415

        return tune_html.render_page
    return tune_text.format_text
