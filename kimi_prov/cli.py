"""The command line: one function per command. A command's code is imported when it runs.

Decides: commands and options.
Applied by: playbooks.
Held by: tests/component/commands/test_commands.py.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

from kimi_prov import __version__
from kimi_prov.commands.access.connection_options import (
    PATH,
    clustered,
    connected,
    connected_beside_key,
)
from kimi_prov.commands.common.bench_load import loaded
from kimi_prov.commands.common.option_types import Day, Expiry, FiniteRange, key_limits

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kimi_prov.commands.render.folder import Kind
    from kimi_prov.errors import ExitCode
    from kimi_prov.operate.kubernetes.kubectl import Target
    from kimi_prov.runner.connection import ConnectionOptions
    from kimi_prov.show.output import Output

INVENTORY = click.argument("inventory", type=PATH)
# An inventory, or a folder that a render made.
APPLIED = click.argument("path", type=PATH, metavar="INVENTORY|DIR")
SUITES = click.Choice(["basic", "full"])
LIMIT = click.option("--limit", metavar="PATTERN", help="Only these hosts or groups.")
FORMAT = click.option(
    "--format", "form", type=click.Choice(["text", "json"]), default="text", show_default=True
)
OUTPUT = click.option(
    "--output", type=PATH, metavar="FILE", help="Write the report there, not to standard output."
)


YEARS = FiniteRange(0.1, 20)
SHARE = FiniteRange(0, 1, min_open=True)
DOLLARS = FiniteRange(0, 10)
# As wide as the schema of a load file.
USERS = click.IntRange(1, 1_000_000)
TOKENS = click.IntRange(1, 100_000_000)
DAILY = FiniteRange(1, 1e15)
SECONDS = FiniteRange(0.001, 86_400)
MILLISECONDS = FiniteRange(0.001, 3_600_000)
EXTRA = click.option(
    "-e", "--extra-vars", "extra", multiple=True, metavar="@FILE", help="Variables from a file."
)


def _overlay(_context: click.Context, _option: click.Parameter, value: Path | None) -> None:
    """Hand the site's rows on by the environment, which reaches Ansible's processes too."""
    if value is not None:
        os.environ["KIMI_PROV_CATALOG"] = str(value.absolute())


CATALOG = click.option(
    "--catalog",
    type=PATH,
    metavar="DIR",
    callback=_overlay,
    expose_value=False,
    is_eager=True,
    help="Rows of your own over the catalogue's.  [env: KIMI_PROV_CATALOG]",
)


def _output(form: str, file: Path | None) -> Output:
    from kimi_prov.show.output import Output

    return Output("json" if form == "json" else "text", file)


class _Commands(click.Group):
    """The commands: their help says where the docs lie, and none has `destroy` proposed for it."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, or say which ones are near."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near: list[str] = getattr(error, "possibilities", None) or []
            near[:] = [name for name in near if name != "destroy"]
            raise

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        from kimi_prov.packaging import resources

        super().format_epilog(ctx, formatter)
        formatter.write(f"\n  Docs: {resources.page('README.md')}\n")


@click.group(
    cls=_Commands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done; 1 it failed; 2 bad input; 3 blocked; 4 a host was unreachable; "
    "130 interrupted.",
)
@click.version_option(__version__, prog_name="kimi-prov")
def cli() -> None:
    """Take a bare Linux server to a served, verified Kimi model."""


@cli.command()
@INVENTORY
@LIMIT
@EXTRA
@CATALOG
@FORMAT
@OUTPUT
@connected
def plan(inventory: Path, form: str, output: Path | None, **options: Any) -> ExitCode:  # noqa: ANN401
    """Print what would be done and why; changes nothing. Exits 3 where that is blocked."""
    from kimi_prov.commands import plan as command
    from kimi_prov.commands.common.playbook_run import PlaybookOptions

    return command.run(inventory, PlaybookOptions(**options), _output(form, output))


@cli.command()
@click.argument("targets", nargs=-1, type=PATH, metavar="[TARGET]...")
@click.option(
    "--inventory",
    "inventories",
    multiple=True,
    type=PATH,
    metavar="PATH",
    help="Probe an inventory's hosts too; Ansible runs what it says. May be repeated.",
)
@CATALOG
@click.option("--model", metavar="NAME", help="The model to serve.  [default: kimi-k2.5]")
@click.option("--engine", metavar="auto|vllm|ktransformers", help="The engine.")
@click.option("--context", metavar="N|auto", help="Tokens of one conversation.")
@click.option("--concurrency", metavar="N", help="Requests at the same time.")
@click.option(
    "--hosts-per-model",
    metavar="N",
    help="Equal machines that serve the model together.  [default: as a sheet says, else 1]",
)
@click.option("--weights-format", metavar="auto|int4|nvfp4|...", help="Format of the experts.")
@click.option("--kv-dtype", metavar="auto|bf16|fp8", help="Number format of the cache.")
@click.option(
    "--amortise-years", type=YEARS, metavar="YEARS", help="A purchase is paid off in.  [default: 4]"
)
@click.option(
    "--utilisation",
    type=SHARE,
    metavar="SHARE",
    help="Share of all hours that it works, 0 to 1.  [default: 0.3]",
)
@click.option("--power-price", type=DOLLARS, metavar="USD", help="Dollars a kWh.  [default: 0.15]")
@click.option(
    "--users", type=USERS, metavar="N", help="Requests in flight at peak, on all machines."
)
@click.option(
    "--tokens-per-day", type=DAILY, metavar="N", help="Output tokens a day, of all requests."
)
@click.option(
    "--ttft-s", type=SECONDS, metavar="S", help="The longest time to the first token, in seconds."
)
@click.option(
    "--tpot-ms",
    type=MILLISECONDS,
    metavar="MS",
    help="The longest time between two tokens of a request, in milliseconds.",
)
@click.option(
    "--input-tokens", type=TOKENS, metavar="N", help="Of a typical prompt.  [default: 8192]"
)
@click.option(
    "--output-tokens", type=TOKENS, metavar="N", help="Of a typical answer.  [default: 1024]"
)
@click.option(
    "--load",
    "load_file",
    type=PATH,
    metavar="FILE",
    help="All of these from a file of the schema kimi-prov/load/v1; options win over it.",
)
@click.option(
    "--suggest", is_flag=True, help="Name the least machines of the catalogue that will do, too."
)
@click.option(
    "--measured",
    multiple=True,
    type=PATH,
    metavar="BENCH",
    help="What `bench --format json` wrote of a target's own machine. May be repeated.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "markdown", "html"]),
    help="The report's form.  [default: by the suffix of --output, else text]",
)
@OUTPUT
@connected
def check(
    targets: tuple[Path, ...],
    inventories: tuple[Path, ...],
    connection: ConnectionOptions,
    form: str | None,
    output: Path | None,
    **options: Any,  # noqa: ANN401
) -> ExitCode:
    """Say whether machines can serve the model, how fast, at what cost, and what is in the way.

    A TARGET is data: a spec sheet, a facts file that `probe` wrote, or a recorded folder. The
    hosts of `--inventory` are probed and not changed. Exits 3 where any of them is blocked.

    With `--users` or `--tokens-per-day` it says how many machines carry that load.
    """
    from kimi_prov.commands.check import check as command
    from kimi_prov.show.report.forms import form_of

    chosen = command.options(**options)
    form = form or form_of(output)
    return command.run(targets, inventories, chosen, _output(form, output), form, connection)


@cli.command()
@APPLIED
@LIMIT
@click.option("--tags", metavar="TAGS", help="Only these parts, by role name.")
@click.option("--skip-tags", metavar="TAGS", help="All but these parts.")
@click.option("--check", is_flag=True, help="Change nothing, say what would change.")
@click.option("--diff", is_flag=True, help="Show what changes in files.")
@EXTRA
@CATALOG
@clustered
@connected
def apply(path: Path, target: Target, **options: Any) -> ExitCode:  # noqa: ANN401
    """Bring machines, or a cluster, to a served model; the same command again changes nothing.

    DIR is a folder that `render kubernetes` made: it goes to a cluster through kubectl, and the
    weights are fetched before the engine starts.
    """
    from kimi_prov.commands import apply as command
    from kimi_prov.commands.common.playbook_run import PlaybookOptions

    return command.run(path, PlaybookOptions(**options), target)


@cli.command()
@APPLIED
@LIMIT
@FORMAT
@OUTPUT
@clustered
@click.option(
    "--api-key-file",
    type=PATH,
    metavar="FILE",
    help="API key for a cluster's service.  [default: KIMI_API_KEY, else the cluster's secret]",
)
@click.option(
    "--suite",
    type=SUITES,
    default="basic",
    show_default=True,
    help="full: long prompts, images, tools, code and more; minutes to hours.",
)
@click.option("--only", multiple=True, metavar="NAME", help="Only checks of this name; * fits any.")
@click.option("--skip", multiple=True, metavar="NAME", help="All but checks of this name.")
@click.option("--junit", type=PATH, metavar="FILE", help="Write the result there as JUnit XML too.")
@connected
def verify(  # noqa: PLR0913
    path: Path,
    *,
    form: str,
    output: Path | None,
    target: Target,
    api_key_file: Path | None,
    suite: str,
    only: tuple[str, ...],
    skip: tuple[str, ...],
    junit: Path | None,
    **options: Any,  # noqa: ANN401
) -> ExitCode:
    """Check that the served model answers rightly, and who can reach its port.

    DIR is a folder that `render kubernetes` made: the checks go through a forwarded port of its
    service.

    What was not run is told as skipped, with the reason: neither failed nor passed.
    """
    from kimi_prov.commands import verify as command
    from kimi_prov.commands.common.playbook_run import PlaybookOptions

    return command.run(
        path,
        PlaybookOptions(**options),
        _output(form, output),
        target,
        chosen=command.selection(suite, only, skip),
        key_file=api_key_file,
        junit_file=junit,
    )


@cli.command()
@APPLIED
@LIMIT
@click.option("--sbom", is_flag=True, help="Write what the engines are made of: CycloneDX JSON.")
@click.option("--watch", is_flag=True, help="Go on showing what each machine does, until Ctrl-C.")
@click.option(
    "--interval",
    type=click.FloatRange(1, 3600),
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="Between two looks of --watch.",
)
@FORMAT
@OUTPUT
@clustered
@connected
@click.pass_context
def status(
    context: click.Context,
    /,
    path: Path,
    *,
    sbom: bool,
    watch: bool,
    form: str,
    output: Path | None,
    target: Target,
    **options: Any,  # noqa: ANN401
) -> ExitCode:
    """Say what runs: units, versions, model, RAM disk, port. Exits 1 when a host does not serve.

    DIR is a folder that `render kubernetes` made: its pods, restarts, nodes and state are told, and
    what was stopped on purpose exits 0.

    With `--watch` it shows tokens a second, requests, cache, GPUs and memory anew every few
    seconds: as one picture on a terminal, as a line for each look elsewhere.

    With `--sbom` it writes a software bill of materials instead, for all hosts in one document: a
    list of packages with `--format text`. Exits 1 when a host is not provisioned.
    """
    from kimi_prov.commands import status as command
    from kimi_prov.commands.common.playbook_run import PlaybookOptions

    interval = options.pop("interval")
    chosen = PlaybookOptions(**options)
    if sbom and watch:
        raise click.UsageError("--sbom and --watch: a list of packages does not change by itself")
    if watch:
        return command.watch(path, chosen, _output(form, output), target, interval)
    if not sbom:
        return command.run(path, chosen, _output(form, output), target)
    asked = context.get_parameter_source("form") is not click.core.ParameterSource.DEFAULT
    written = _output(form if asked else "json", output)
    return command.bill_of_materials(path, chosen, written, target)


@cli.command()
@INVENTORY
@LIMIT
@click.option("--weights", is_flag=True, help="Read every byte of the weights again: minutes.")
@EXTRA
@CATALOG
@FORMAT
@OUTPUT
@connected
def drift(
    inventory: Path,
    *,
    weights: bool,
    form: str,
    output: Path | None,
    **options: Any,  # noqa: ANN401
) -> ExitCode:
    """Say what on the machines is not as it was applied, since when and through what.

    Changes nothing. Exits 1 where something differs, and where not all could be looked at
    (`complete: false`). What `apply` would decide otherwise today is told apart and is no drift.
    """
    from kimi_prov.commands import drift as command
    from kimi_prov.commands.common.playbook_run import PlaybookOptions

    chosen = PlaybookOptions(**options)
    return command.run(inventory, chosen, _output(form, output), weights=weights)


@cli.command()
@INVENTORY
@LIMIT
@click.option("--follow", is_flag=True, help="Go on as they grow, until Ctrl-C.")
@click.option(
    "--unit",
    "units",
    multiple=True,
    metavar="NAME",
    help="Only this one: serve, serve@0, proxy, fetch, ...; may be given again.",
)
@click.option(
    "--since", metavar="TIME", help="No older lines: 10min, 2h, 3d, 14:05, '2026-11-24 14:05'."
)
@click.option(
    "--lines",
    type=click.IntRange(1, 20_000),
    metavar="N",
    help="The last N of each host.  [default: 100; all, with --since]",
)
@FORMAT
@OUTPUT
@connected
def logs(
    inventory: Path,
    *,
    follow: bool,
    units: tuple[str, ...],
    since: str | None,
    lines: int | None,
    form: str,
    output: Path | None,
    **options: Any,  # noqa: ANN401
) -> ExitCode:
    """Show what the units of all hosts write, in one order of time; secrets are masked.

    With `--format json` each line is a document of its own.
    """
    from kimi_prov.commands import logs as command
    from kimi_prov.commands.common.playbook_run import PlaybookOptions

    return command.run(
        inventory,
        PlaybookOptions(**options),
        _output(form, output),
        units=units,
        since=since,
        lines=lines,
        follow=follow,
    )


@cli.command()
@INVENTORY
@LIMIT
@click.option(
    "--to",
    type=PATH,
    metavar="FILE",
    help="The bundle to write.  [default: kimi-diagnose-TIME.tar.gz here]",
)
@FORMAT
@OUTPUT
@connected
def diagnose(
    inventory: Path,
    to: Path | None,
    form: str,
    output: Path | None,
    **options: Any,  # noqa: ANN401
) -> ExitCode:
    """Write a bundle for a bug report, and say what is recognised in logs and metrics.

    The bundle has facts, plan, units, logs, metrics and versions of each host, secrets masked; only
    you may read it. Exits 3 where something was recognised that keeps the model from serving.
    """
    from kimi_prov.commands import diagnose as command
    from kimi_prov.commands.common.playbook_run import PlaybookOptions

    return command.run(inventory, to, PlaybookOptions(**options), _output(form, output))


@cli.command()
@INVENTORY
@LIMIT
@loaded
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "markdown", "html"]),
    help="The report's form.  [default: by the suffix of --output, else text]",
)
@OUTPUT
@connected
def bench(
    inventory: Path,
    limit: str | None,
    form: str | None,
    output: Path | None,
    connection: ConnectionOptions,
    **asked: Any,  # noqa: ANN401
) -> ExitCode:
    """Measure memory, the kernel and the served model, and say whether that is normal here.

    The model is asked by the engine's own client, with random words, all at once; the options say
    with what else. What the client, the model or its context cannot do is refused beforehand.
    """
    from kimi_prov.commands import bench as command
    from kimi_prov.commands.common import bench_load
    from kimi_prov.commands.common.playbook_run import PlaybookOptions
    from kimi_prov.show.report.forms import form_of

    options = PlaybookOptions(limit=limit, connection=connection)
    form = form or form_of(output)
    return command.run(inventory, options, bench_load.of(asked), _output(form, output), form)


@cli.command()
@click.argument("results", type=PATH, metavar="BENCH")
@CATALOG
@OUTPUT
def contribute(results: Path, output: Path | None) -> None:
    """Write rows of the catalogue's speeds from results of `bench`, without names or addresses.

    BENCH is what `bench --format json` wrote. Keep the rows as speeds.yaml in a catalogue of your
    own (`--catalog`), or send them in as a pull request. Stand-ins are no measurement: refused.
    """
    from kimi_prov.commands import contribute as command

    command.run(results, _output("text", output))


@cli.command()
@INVENTORY
@LIMIT
@click.option("--rotate", is_flag=True, help="Make a new key; the engine is not restarted.")
@click.option("--list", "listed", is_flag=True, help="Print the keys: made, expires, limits, used.")
@click.option("--add", metavar="NAME", help="Make a key of this name, and print it once.")
@click.option("--set", "change", metavar="NAME", help="Change when a key ends, or its limits.")
@click.option("--remove", metavar="NAME", help="Take a key away, and print those that are left.")
@click.option(
    "--expires", type=Expiry(), metavar="TIME", help="30d, 12h, 45m, a day as 2027-01-31, or never."
)
@key_limits
@connected
def key(
    inventory: Path,
    *,
    expires: dict[str, int | None] | None,
    limits: dict[str, int | None],
    **options: Any,  # noqa: ANN401
) -> ExitCode:
    """Print `HOST KEY` for the API key that nobody has seen yet. It is shown once.

    So is the password of a page's first administrator that was made. A limit of 0 is none. Limits
    and expiry hold from a key's next request on.
    """
    from kimi_prov.commands import key as command
    from kimi_prov.commands.common.playbook_run import PlaybookOptions

    did = {name: options.pop(name) for name in ("rotate", "listed", "add", "change", "remove")}
    given = [name for name, value in did.items() if value not in (None, False)]
    if len(given) > 1:
        raise click.UsageError("give one of --rotate, --list, --add, --set and --remove")
    wish = {**(expires or {}), **({"limits": limits} if limits else {})}
    if wish and not {"add", "change"} & {*given}:
        raise click.UsageError("--expires and limits go with --add or --set")
    if given == ["change"] and not wish:
        raise click.UsageError("--set: give --expires or a limit")
    play = PlaybookOptions(**options)
    if did["add"] is not None or did["change"] is not None:
        named = did["change"] if did["add"] is None else did["add"]
        return command.ruled(inventory, play, named, wish, add=did["add"] is not None)
    if did["listed"] or did["remove"] is not None:
        return command.names(inventory, play, remove=did["remove"])
    return command.run(inventory, play, rotate=did["rotate"])


@cli.command()
@INVENTORY
@LIMIT
@click.option("--since", type=Day(), metavar="DAY", help="First day, as 2026-11-24 or 30d (UTC).")
@click.option("--until", type=Day(), metavar="DAY", help="Last day.  [default: today]")
@click.option("--by", type=click.Choice(["key", "day", "host"]), default="key", show_default=True)
@click.option(
    "--format",
    "form",
    type=click.Choice(["text", "json", "csv"]),
    default="text",
    show_default=True,
)
@OUTPUT
@connected
def usage(
    inventory: Path,
    *,
    since: str | None,
    until: str | None,
    by: str,
    form: str,
    output: Path | None,
    **options: Any,  # noqa: ANN401
) -> ExitCode:
    """Say what each key used: requests, tokens in and out, and requests that a limit kept out."""
    from kimi_prov.commands import usage as command
    from kimi_prov.commands.common.playbook_run import PlaybookOptions

    span = command.Span(since, until, by)
    return command.run(
        inventory, span, PlaybookOptions(**options), _output(form, output), csv=form == "csv"
    )


@cli.command()
@INVENTORY
@LIMIT
@FORMAT
@OUTPUT
@connected
def history(inventory: Path, *, form: str, output: Path | None, **options: Any) -> ExitCode:  # noqa: ANN401
    """Say what was applied when, by whom and from where, what served, how fast, how it ended."""
    from kimi_prov.commands import history as command
    from kimi_prov.commands.common.playbook_run import PlaybookOptions

    return command.run(inventory, PlaybookOptions(**options), _output(form, output))


@cli.command()
@INVENTORY
@LIMIT
@click.option(
    "--to",
    "number",
    type=click.IntRange(1),
    metavar="N",
    help="The entry of `history`.  [default: the last that served something else]",
)
@FORMAT
@OUTPUT
@connected
def rollback(
    inventory: Path,
    *,
    number: int | None,
    form: str,
    output: Path | None,
    **options: Any,  # noqa: ANN401
) -> ExitCode:
    """Put back the files of an entry of the history, start what they say, and verify it.

    Keys, certificates, packages and the driver stay as they are, and nothing is planned anew. Where
    it does not serve, the machine goes back by itself to what served, and the command exits 1. The
    inventory still says otherwise: change it too, or the next `apply` upgrades again.
    """
    from kimi_prov.commands import history as command
    from kimi_prov.commands.common.playbook_run import PlaybookOptions

    chosen = PlaybookOptions(**options)
    return command.rollback(inventory, number, chosen, _output(form, output))


@cli.command()
@INVENTORY
@LIMIT
@click.option("--check", is_flag=True, help="Only say what would be freed.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@FORMAT
@OUTPUT
@connected
def clean(
    inventory: Path,
    *,
    check: bool,
    yes: bool,
    form: str,
    output: Path | None,
    **options: Any,  # noqa: ANN401
) -> ExitCode:
    """Say which weights and environments no version needs that `rollback` can put back; free them.

    `kimi_keep_versions` says how many versions those are.
    """
    from kimi_prov.commands import clean as command
    from kimi_prov.commands.common.playbook_run import PlaybookOptions

    chosen = PlaybookOptions(**options)
    return command.run(inventory, chosen, _output(form, output), confirmed=yes, check=check)


@cli.command()
@INVENTORY
@LIMIT
@click.option("--yes", is_flag=True, help="Do not ask.")
@click.option("--purge-weights", is_flag=True, help="Remove the weights too.")
@click.option("--purge-web", is_flag=True, help="Remove the page's chats and accounts too.")
@connected
def destroy(
    inventory: Path,
    *,
    yes: bool,
    purge_weights: bool,
    purge_web: bool,
    **options: Any,  # noqa: ANN401
) -> ExitCode:
    """Put the machines back as they were.

    The weights stay unless `--purge-weights` is given, and what the page's accounts keep unless
    `--purge-web` is.
    """
    from kimi_prov.commands import destroy as command
    from kimi_prov.commands.common.playbook_run import PlaybookOptions

    chosen = PlaybookOptions(**options)
    return command.run(inventory, chosen, confirmed=yes, purge=purge_weights, purge_web=purge_web)


@cli.command()
@click.argument("directory", type=PATH, required=False)
@click.option("--profile", metavar="NAME", help="lab, localhost, ...")
@click.option("--spec", type=PATH, metavar="FILE", help="Write a spec sheet for `check` instead.")
@click.option(
    "--system",
    metavar="NAME",
    help="What the sheet starts from: cpu-server, gpu-server, dgx-h200, ...",
)
@CATALOG
def init(
    directory: Path | None, profile: str | None, spec: Path | None, system: str | None
) -> None:
    """Write an inventory to start from, with its variables explained; or a spec sheet.

    An inventory needs DIRECTORY and `--profile`. A spec sheet needs `--spec FILE`: it describes a
    server of `kimi-prov catalog servers`, says in comments what to change, and `check` takes it.
    """
    from kimi_prov.commands import init as command

    if spec is not None:
        if directory is not None or profile is not None:
            raise click.UsageError("--spec takes neither DIRECTORY nor --profile.")
        command.run_spec(spec, system if system is not None else command.DEFAULT_SYSTEM)
        return
    if system is not None:
        raise click.UsageError("--system belongs to --spec FILE.")
    if directory is None:
        raise click.UsageError("Missing argument 'DIRECTORY', or --spec FILE.")
    if profile is None:
        raise click.UsageError("Missing option '--profile'.")
    command.run(directory, profile)


@cli.command()
@OUTPUT
@click.option("--bundle", type=PATH, metavar="FILE", help="Write one file that does it elsewhere.")
@click.option("--measure", is_flag=True, help="Time memory, disk, hashing and GPUs too.")
def probe(output: Path | None, bundle: Path | None, *, measure: bool) -> None:
    """Describe this machine as JSON; needs no root and changes nothing."""
    from kimi_prov.commands import probe as command

    if bundle is not None and (output is not None or measure):
        raise click.UsageError("--bundle takes neither --output nor --measure: it probes nothing.")
    command.run(_output("json", output), bundle, measure=measure)


@cli.command()
@click.argument("kind", required=False)
@click.argument("name", required=False)
@CATALOG
@FORMAT
@OUTPUT
@click.option("--hf-token-file", type=PATH, metavar="FILE", help="The hub's token, for `pin`.")
@click.option("--ca-bundle", type=PATH, metavar="FILE", help="Certificates, for `pin`.")
def catalog(
    kind: str | None,
    name: str | None,
    form: str,
    output: Path | None,
    hf_token_file: Path | None,
    ca_bundle: Path | None,
) -> None:
    """Show what is known: models, cpus, gpus, engines, flags, drivers, prices, broken, ...

    `catalog pin hf://OWNER/NAME@REVISION` writes a manifest for kimi_weights_manifest instead: size
    and SHA-256 of each file, from the hub (or from the one that HF_ENDPOINT names).
    """
    from kimi_prov.commands import catalog as command
    from kimi_prov.commands import pin

    if kind == "pin":
        pin.run(name or "", _output(form, output), hf_token_file, ca_bundle)
    else:
        command.run(kind, name, _output(form, output))


def _to_bucket(credentials: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Give a command the options by which a bucket is reached; `credentials`: what these may do."""
    options = (
        click.option(
            "--credentials-file",
            type=PATH,
            metavar="FILE",
            help=f"The bucket's, to {credentials} it.  [default: this machine's role]",
        ),
        click.option(
            "--endpoint", metavar="URL", help="A server of the protocol, in place of theirs."
        ),
        click.option("--region", metavar="NAME", help="Region of an s3:// bucket."),
        click.option(
            "--ca-bundle", type=PATH, metavar="FILE", help="Certificates of the site's own."
        ),
    )

    def decorated(function: Callable[..., Any]) -> Callable[..., Any]:
        for option in reversed(options):
            function = option(function)
        return function

    return decorated


@cli.command()
@click.argument("bucket", metavar="s3://BUCKET|gs://BUCKET")
@_to_bucket("read")
@FORMAT
@OUTPUT
def sessions(
    bucket: str,
    form: str,
    output: Path | None,
    **options: Any,  # noqa: ANN401
) -> None:
    """List what sessions of machines cost that took their weights from a bucket."""
    from kimi_prov.commands import sessions as command
    from kimi_prov.commands.common import bucket_access

    command.run(bucket, bucket_access.Options(**options), _output(form, output))


@cli.group()
def weights() -> None:
    """Weights in a bucket, for machines that do not live long."""


@weights.command("seed")
@click.argument("address", metavar="hf://OWNER/NAME@REVISION")
@click.argument("bucket", metavar="s3://BUCKET/FOLDER|gs://BUCKET/FOLDER")
@_to_bucket("write to")
@click.option("--hf-token-file", type=PATH, metavar="FILE", help="The hub's token.")
@click.option(
    "--workers",
    type=click.IntRange(1, 64),
    default=4,
    metavar="N",
    help="Files at a time.  [default: 4]",
)
@click.option("--estimate", is_flag=True, help="Only say what is missing and what it costs.")
@CATALOG
@FORMAT
@OUTPUT
def weights_seed(
    address: str,
    bucket: str,
    form: str,
    output: Path | None,
    **options: Any,  # noqa: ANN401
) -> None:
    """Fill a bucket from the hub, each file verified on the way; whole files are kept."""
    from kimi_prov.commands import weights_seed as command

    command.run(address, bucket, command.Options(**options), _output(form, output))


@cli.command()
@INVENTORY
@LIMIT
@click.option(
    "--reboot-ok",
    is_flag=True,
    help="Restart the machines that have to.  [default: as update_reboot_ok says]",
)
@click.option(
    "--defer-restart", is_flag=True, help="Leave out what takes effect by a restart alone."
)
@EXTRA
@CATALOG
@FORMAT
@OUTPUT
@connected
def update(
    inventory: Path,
    *,
    reboot_ok: bool,
    defer_restart: bool,
    form: str,
    output: Path | None,
    **options: Any,  # noqa: ANN401
) -> ExitCode:
    """Install security packages, kernel, microcode and the planned driver, a machine at a time.

    Before a restart no more requests are sent to the engines, and those under way may end;
    afterwards the model has to pass `verify`. Gateways come at last, one by one. The first machine
    that fails ends it: those after it stay as they are. Without consent to a restart a machine that
    needs one is refused: exit 3.
    """
    from kimi_prov.commands import update as command
    from kimi_prov.commands.common.playbook_run import PlaybookOptions

    return command.run(
        inventory,
        PlaybookOptions(**options),
        _output(form, output),
        reboot_ok=reboot_ok,
        defer_restart=defer_restart,
    )


@cli.command()
@INVENTORY
@LIMIT
@click.option(
    "--to",
    type=PATH,
    metavar="FILE",
    help="The file to write, of one host.  [default: HOST-backup-TIME.tar.gz here]",
)
@click.option(
    "--recipient",
    "recipients",
    multiple=True,
    metavar="KEY",
    help="Encrypt it to age1..., an SSH public key, a gpg fingerprint, or a file of such. "
    "May be repeated.",
)
@FORMAT
@OUTPUT
@connected
def backup(
    inventory: Path,
    to: Path | None,
    recipients: tuple[str, ...],
    form: str,
    output: Path | None,
    **options: Any,  # noqa: ANN401
) -> ExitCode:
    """Copy what of each host cannot be made again into a file here that only you may read.

    That is the hashes of the API keys, the certificate with its key, the ACME account, the history,
    and the page's accounts, chats and uploads. Everything runs on meanwhile.
    """
    from kimi_prov.commands import backup as command
    from kimi_prov.commands.common.playbook_run import PlaybookOptions

    chosen = PlaybookOptions(**options)
    return command.backup(inventory, to, recipients, chosen, _output(form, output))


@cli.command()
@INVENTORY
@click.argument("file", type=PATH)
@LIMIT
@click.option(
    "--identity", type=PATH, metavar="FILE", help="The private key of a backup encrypted by age."
)
@click.option("--yes", is_flag=True, help="Do not ask.")
@FORMAT
@OUTPUT
@connected
def restore(
    inventory: Path,
    file: Path,
    *,
    identity: Path | None,
    yes: bool,
    form: str,
    output: Path | None,
    **options: Any,  # noqa: ANN401
) -> ExitCode:
    """Put a backup back on one host on which `apply` has run: its own, or a fresh one.

    What is in it is checked before anything is changed. What the plan has no place for is left out
    and told.
    """
    from kimi_prov.commands import backup as command
    from kimi_prov.commands.common.playbook_run import PlaybookOptions

    chosen = PlaybookOptions(**options)
    return command.restore(inventory, file, identity, chosen, _output(form, output), confirmed=yes)


@cli.group()
def web() -> None:
    """Carry what the page keeps, accounts, chats and uploads, to this computer and back."""


@web.command("backup")
@INVENTORY
@LIMIT
@click.option(
    "--to",
    type=PATH,
    metavar="FILE",
    help="The archive to write, of one host.  [default: HOST-web-TIME.tar.gz here]",
)
@FORMAT
@OUTPUT
@connected
def web_backup(
    inventory: Path,
    to: Path | None,
    form: str,
    output: Path | None,
    **options: Any,  # noqa: ANN401
) -> ExitCode:
    """Copy it from each host while the page runs, into a file here that only you may read."""
    from kimi_prov.commands import web as command
    from kimi_prov.commands.common.playbook_run import PlaybookOptions

    return command.backup(inventory, to, PlaybookOptions(**options), _output(form, output))


@web.command("restore")
@INVENTORY
@click.argument("file", type=PATH)
@LIMIT
@click.option("--yes", is_flag=True, help="Do not ask.")
@FORMAT
@OUTPUT
@connected
def web_restore(
    inventory: Path,
    file: Path,
    *,
    yes: bool,
    form: str,
    output: Path | None,
    **options: Any,  # noqa: ANN401
) -> ExitCode:
    """Put a backup in the place of what the page of one host keeps, on any machine.

    A page that does not answer with it gets its own again.
    """
    from kimi_prov.commands import web as command
    from kimi_prov.commands.common.playbook_run import PlaybookOptions

    chosen = PlaybookOptions(**options)
    return command.restore(inventory, file, chosen, _output(form, output), confirmed=yes)


_DESCRIBED = (
    click.argument("target", type=PATH, required=False),
    click.option(
        "--inventory",
        type=PATH,
        metavar="PATH",
        help="Probe a host of an inventory instead; Ansible runs what it says.",
    ),
    click.option(
        "--host", metavar="NAME", help="Which host of the inventory, where it has several."
    ),
    click.option(
        "--output", type=PATH, required=True, metavar="DIR", help="The folder that is written."
    ),
    click.option(
        "--vars",
        "vars_file",
        type=PATH,
        metavar="FILE",
        help="YAML with variables kimi_*; options win over it.",
    ),
    click.option("--force", is_flag=True, help="Overwrite files that were changed by hand, too."),
    CATALOG,
    click.option("--model", metavar="NAME", help="The model to serve.  [default: kimi-k2.5]"),
    click.option("--context", metavar="N|auto", help="Tokens of one conversation."),
    click.option("--concurrency", metavar="N", help="Requests at the same time."),
    click.option(
        "--hosts-per-model",
        metavar="N",
        help="Equal machines that serve the model together.  [default: as a sheet says, else 1]",
    ),
    click.option("--weights-format", metavar="auto|int4|nvfp4|...", help="Format of the experts."),
    click.option("--kv-dtype", metavar="auto|bf16|fp8", help="Number format of the cache."),
)


def _described(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of every kind of folder that is rendered."""
    for option in reversed(_DESCRIBED):
        function = option(function)
    return function


@cli.group()
def render() -> None:
    """Write files by which a model is served where this program does not provision."""


@render.command("slurm")
@_described
@click.option("--root", "slurm_root", metavar="DIR", help="Folder on the shared file system.")
@connected
def render_slurm(
    target: Path | None,
    inventory: Path | None,
    host: str | None,
    connection: ConnectionOptions,
    **options: Any,  # noqa: ANN401
) -> ExitCode:
    """Write jobs for a SLURM cluster: environment, weights, server, tuner, benchmark, checks.

    TARGET is data that describes one node: a spec sheet, a facts file that `probe` wrote there, or
    a recorded folder. The same input gives the same bytes; files that were changed by hand since
    stay. Nothing is written where the plan has a blocker: exit 3.
    """
    from kimi_prov.commands.render import slurm as command

    return _rendered(command.kind(), target, inventory, host, connection, options)


@render.command("kubernetes")
@_described
@click.option("--image", "kubernetes_image", metavar="IMAGE", help="The image with the engine.")
@click.option(
    "--name", "kubernetes_name", metavar="NAME", help="Name of the objects.  [default: kimi]"
)
@click.option(
    "--namespace",
    "kubernetes_namespace",
    metavar="NAME",
    help="Their namespace.  [default: kubectl's]",
)
@click.option(
    "--storage-class",
    "kubernetes_storage_class",
    metavar="NAME",
    help="Class of the volumes.  [default: the cluster's]",
)
@click.option(
    "--hostname",
    "kubernetes_hostname",
    metavar="NAME",
    help="Name of the API for clients outside the cluster.",
)
@click.option("--ingress-class", "kubernetes_ingress_class", metavar="NAME", help="Its Ingress.")
@click.option(
    "--gateway-class", "kubernetes_gateway_class", metavar="NAME", help="Its Gateway instead."
)
@click.option(
    "--quota",
    type=PATH,
    multiple=True,
    metavar="FILE",
    help="ResourceQuota and LimitRange of the namespace, as `kubectl get -o yaml` gives them.",
)
@connected
def render_kubernetes(
    target: Path | None,
    inventory: Path | None,
    host: str | None,
    quota: tuple[Path, ...],
    connection: ConnectionOptions,
    **options: Any,  # noqa: ANN401
) -> ExitCode:
    """Write objects for a Kubernetes cluster: volume, fetching Job, server, Service and the rest.

    TARGET is data that describes one node: a spec sheet, a facts file that `probe` wrote there, or
    a recorded folder. The same input gives the same bytes; files that were changed by hand since
    stay. No cluster is asked; what it must have is told. Nothing is written where the plan or a
    quota has a blocker: exit 3.
    """
    from kimi_prov.commands.render import kubernetes as command

    return _rendered(command.kind(quota), target, inventory, host, connection, options)


_OF_CLOUD = (
    click.option("--cloud", "cloud", metavar="gcp|aws", help="Whose machine.  [default: gcp]"),
    click.option(
        "--terms",
        "cloud_terms",
        metavar="spot-first|spot|on-demand",
        help="On which terms.  [default: spot-first]",
    ),
    click.option(
        "--package", "cloud_package", metavar="WHAT", help="What pip installs as kimi-prov there."
    ),
)


def _of_cloud(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a cloud's machine."""
    for option in reversed(_OF_CLOUD):
        function = option(function)
    return function


@render.command("cloud-init")
@_described
@_of_cloud
@connected
def render_cloud_init(
    target: Path | None,
    inventory: Path | None,
    host: str | None,
    connection: ConnectionOptions,
    **options: Any,  # noqa: ANN401
) -> ExitCode:
    """Write user data by which a cloud's machine brings itself up, and ends when nobody asks.

    TARGET is data that describes the machine: a spec sheet, a facts file that `probe` wrote there,
    or a recorded folder. No cloud is asked; check.sh in the folder does. Nothing is written where
    the plan has a blocker: exit 3.
    """
    from kimi_prov.commands.render import cloud as command

    return _rendered(command.cloud_init(), target, inventory, host, connection, options)


@render.command("skypilot")
@_described
@_of_cloud
@connected
def render_skypilot(
    target: Path | None,
    inventory: Path | None,
    host: str | None,
    connection: ConnectionOptions,
    **options: Any,  # noqa: ANN401
) -> ExitCode:
    """Write a task for SkyPilot: a machine that brings itself up, and ends when nobody asks.

    TARGET is data that describes the machine: a spec sheet, a facts file that `probe` wrote there,
    or a recorded folder. No cloud is asked. Nothing is written where the plan has a blocker: exit
    3.
    """
    from kimi_prov.commands.render import cloud as command

    return _rendered(command.skypilot(), target, inventory, host, connection, options)


def _rendered(
    kind: Kind,
    target: Path | None,
    inventory: Path | None,
    host: str | None,
    connection: ConnectionOptions,
    options: dict[str, Any],
) -> ExitCode:
    from kimi_prov.commands.render import folder as command

    if (target is None) == (inventory is None):
        raise click.UsageError("give TARGET or --inventory PATH")
    if host is not None and inventory is None:
        raise click.UsageError("--host belongs to --inventory PATH.")
    chosen = command.options(**options)
    if target is not None:
        return command.of_target(target, kind, chosen)
    assert inventory is not None  # noqa: S101  (one of the two)
    return command.of_inventory(inventory, host, kind, chosen, connection)


@cli.command()
@click.argument("engine", metavar="ENGINE")
@click.option(
    "--output", type=PATH, required=True, metavar="DIR", help="The folder that is written."
)
@click.option(
    "--python",
    type=click.Choice(["3.11", "3.12"]),
    default="3.11",
    show_default=True,
    help="The Python of the base image.",
)
@click.option(
    "--base",
    metavar="IMAGE",
    help="The base image, of Debian's kind.  [default: Debian 12; for Python 3.12 Ubuntu 24.04]",
)
@click.option(
    "--find-links",
    type=PATH,
    metavar="DIR",
    help="Wheels that no index has: those that the locks name are taken along.",
)
@click.option("--force", is_flag=True, help="Overwrite files that were changed by hand, too.")
@CATALOG
def image(
    engine: str,
    output: Path,
    python: str,
    base: str | None,
    find_links: Path | None,
    *,
    force: bool,
) -> ExitCode:
    """Write the folder that an image for pods is built from, by buildah, podman or docker.

    ENGINE: vllm-cuda, vllm-cpu, or one with its version, as vllm-cuda-0.32.0. The image holds the
    engine by the locks of the catalogue, what runs in its pods, and its bill of materials.
    """
    from kimi_prov.commands import image as command

    return command.run(engine, output, python=python, base=base, find_links=find_links, force=force)


RENDERED = click.argument("directory", type=PATH, metavar="DIR")
LOGIN = click.option(
    "--login",
    metavar="USER@HOST",
    help="The cluster's login node; '' for this machine.  [default: KIMI_LOGIN in cluster.env]",
)


@cli.command()
@RENDERED
@click.argument("jobs", nargs=-1, metavar="[JOB]...")
@LOGIN
@click.option(
    "--suite",
    type=SUITES,
    help="The checks of the job accept; full asks SLURM for a walltime of 4 hours.  "
    "[default: basic]",
)
@click.option("--force", is_flag=True, help="Overwrite files that were changed there, too.")
@FORMAT
@OUTPUT
def submit(
    directory: Path,
    jobs: tuple[str, ...],
    login: str | None,
    suite: str | None,
    *,
    force: bool,
    form: str,
    output: Path | None,
) -> ExitCode:
    """Submit jobs of a folder that `render slurm` made: environment, weights and server.

    JOB names others: environment, weights, serve, tune, bench, accept. What is complete, or waits
    or runs already, is named and left out. With `--login` the folder is copied to the cluster
    first, to renders/ below its root.
    """
    from kimi_prov.commands.slurm import jobs as command

    target = _output(form, output)
    return command.submit(directory, login, jobs, target, force=force, suite=suite)


@cli.command()
@RENDERED
@LOGIN
@FORMAT
@OUTPUT
def jobs(directory: Path, login: str | None, form: str, output: Path | None) -> ExitCode:
    """Say what the jobs of a rendered folder do: state, nodes, address, time left, successor.

    Exits 1 where the newest server failed or was lost.
    """
    from kimi_prov.commands.slurm import jobs as command

    return command.jobs(directory, login, _output(form, output))


@cli.command()
@RENDERED
@click.argument("jobs", nargs=-1, metavar="[JOB|ID]...")
@LOGIN
@click.option("--now", is_flag=True, help="Kill a server too, with the answers that it gives.")
@FORMAT
@OUTPUT
def cancel(
    directory: Path,
    jobs: tuple[str, ...],
    login: str | None,
    *,
    now: bool,
    form: str,
    output: Path | None,
) -> ExitCode:
    """End jobs of a rendered folder, by name or number; without either, all of them.

    A server takes no more requests, lets answers end, and has no successor.
    """
    from kimi_prov.commands.slurm import jobs as command

    return command.cancel(directory, login, jobs, _output(form, output), now=now)


API_KEY_FILE = click.option(
    "--key-file",
    type=PATH,
    metavar="FILE",
    help="File of the API key.  [default: KIMI_API_KEY; of a cluster's service also its secret]",
)
AUTHORITY = click.option(
    "--ca",
    type=PATH,
    metavar="FILE",
    help="The authority whose certificates clients trust, not the server's own.",
)
TUNNEL = click.option(
    "--tunnel", is_flag=True, help="Reach the port through SSH, as the inventory logs in."
)
LOCAL_PORT = click.option(
    "--port",
    type=click.IntRange(1, 65535),
    metavar="N",
    help="Port of this computer.  [default: 8000, or a free one]",
)


SERVERS_JOB = click.option(
    "--job", type=click.IntRange(min=1), metavar="ID", help="The server's job.  [default: newest]"
)


def _snippet(context: click.Context, option: click.Parameter, value: str | None) -> str | None:
    """Take the name of a snippet; `list` prints them all."""
    from kimi_prov.clients import snippets
    from kimi_prov.contract import clean_text
    from kimi_prov.show.output import show

    if value is None or value in snippets.SNIPPETS:
        return value
    if value == "list":
        show(snippets.listed() + "\n")
        context.exit()
    raise click.BadParameter(
        f"{clean_text.clean_line(value)}: take one of {', '.join(snippets.SNIPPETS)}",
        context,
        option,
    )


@cli.command()
@click.argument("place", metavar="INVENTORY|DIR|URL")
@LIMIT
@EXTRA
@click.option(
    "--for",
    "snippet",
    metavar="NAME",
    callback=_snippet,
    is_eager=True,
    help="Print a snippet to paste: curl, python, claude-code, tools, ...; `list` lists them.",
)
@AUTHORITY
@TUNNEL
@API_KEY_FILE
@LOCAL_PORT
@LOGIN
@SERVERS_JOB
@clustered
@click.option(
    "--every",
    type=FiniteRange(0.2, 3600),
    default=15,
    show_default=True,
    metavar="S",
    help="Seconds between two looks at jobs or cluster, or two tries of a tunnel.",
)
@FORMAT
@OUTPUT
@connected_beside_key
def connect(
    place: str,
    form: str,
    output: Path | None,
    **options: Any,  # noqa: ANN401
) -> ExitCode:
    """Say what clients of a served model need: base URL, model, certificate; or print a snippet.

    Of an INVENTORY for each host that serves. With a key it is proven by a question; --tunnel keeps
    a port of this computer open to a host until Ctrl-C. A DIR that `render` made is reached through
    ssh or kubectl until Ctrl-C: it waits for a server that loads, and follows its successor. A URL
    is for those who have no inventory.
    """
    from kimi_prov.commands import connect_target as command
    from kimi_prov.commands.access.connect_inventory import ConnectOptions
    from kimi_prov.commands.common.playbook_run import PlaybookOptions
    from kimi_prov.commands.connect_folder import FolderOptions

    own = {name: options.pop(name) for name in ("login", "job", "target")}
    shared = {name: options.pop(name) for name in ("key_file", "ca", "port", "every")}
    chosen = ConnectOptions(**shared, **{name: options.pop(name) for name in ("tunnel", "snippet")})
    return command.run(
        place,
        PlaybookOptions(**options),
        FolderOptions(**own, **shared),
        chosen,
        _output(form, output),
    )


@cli.command()
@click.argument("place", metavar="INVENTORY|DIR|URL")
@LIMIT
@EXTRA
@click.option("--model", metavar="NAME", help="One of the names that are served.")
@click.option("--system", metavar="TEXT", help="The system prompt.  [default: the makers']")
@click.option("--instant", is_flag=True, help="Answers without reasoning.")
@click.option(
    "--image",
    "images",
    type=PATH,
    multiple=True,
    metavar="FILE",
    help="Goes with the first question.  May be repeated.",
)
@click.option(
    "--reasoning/--no-reasoning",
    default=None,
    help="Show the reasoning.  [default: on a terminal alone]",
)
@AUTHORITY
@TUNNEL
@API_KEY_FILE
@LOCAL_PORT
@LOGIN
@SERVERS_JOB
@clustered
@connected_beside_key
def chat(place: str, **options: Any) -> ExitCode:  # noqa: ANN401
    """Talk to a served model: answers as they come, reasoning dimmed, tokens and speed at the end.

    /help lists what is typed there. Without a terminal standard input is one prompt, and standard
    output the answer alone. The key comes from KIMI_API_KEY or --key-file. A DIR that `render` made
    is reached as `connect DIR` reaches it; there the key is found on the cluster.
    """
    from kimi_prov.commands import chat as command
    from kimi_prov.commands.access.connect_inventory import ConnectOptions
    from kimi_prov.commands.common.playbook_run import PlaybookOptions
    from kimi_prov.commands.connect_folder import FolderOptions

    own = {name: options.pop(name) for name in ("login", "job", "target")}
    shared = {name: options.pop(name) for name in ("key_file", "ca", "port")}
    tunnel = options.pop("tunnel")
    of_chat = {
        name: options.pop(name) for name in ("model", "system", "instant", "images", "reasoning")
    }
    return command.run(
        place,
        PlaybookOptions(**options),
        FolderOptions(**own, **shared),
        ConnectOptions(**shared, tunnel=tunnel),
        command.ChatOptions(**of_chat),
    )


DRAIN = click.option(
    "--drain",
    "drain_s",
    type=click.IntRange(0, 86_400),
    metavar="SECONDS",
    help="What answers under way have before they are cut.  [default: 300]",
)


@cli.command()
@APPLIED
@LIMIT
@DRAIN
@FORMAT
@OUTPUT
@clustered
@connected
def stop(
    path: Path,
    target: Target,
    drain_s: int | None,
    form: str,
    output: Path | None,
    **options: Any,  # noqa: ANN401
) -> ExitCode:
    """End what is served, on purpose, over reboots too; `start` or `apply` starts it again.

    Answers under way may end first. Memory and GPUs are free then; weights, keys, page, history and
    certificate stay, and the port answers 503 with the reason. DIR is a folder that `render
    kubernetes` made: its volume stays.
    """
    from kimi_prov.commands import power as command
    from kimi_prov.commands.common.playbook_run import PlaybookOptions

    chosen = PlaybookOptions(**options)
    return command.stop(path, chosen, _output(form, output), target, drain_s)


@cli.command()
@APPLIED
@LIMIT
@FORMAT
@OUTPUT
@clustered
@connected
def start(
    path: Path,
    target: Target,
    form: str,
    output: Path | None,
    **options: Any,  # noqa: ANN401
) -> ExitCode:
    """Start what was stopped or is asleep, and wait until it answers.

    It says how long that will take, by what the last starts on the machine took.
    """
    from kimi_prov.commands import power as command
    from kimi_prov.commands.common.playbook_run import PlaybookOptions

    return command.start(path, PlaybookOptions(**options), _output(form, output), target)


@cli.command()
@INVENTORY
@LIMIT
@DRAIN
@FORMAT
@OUTPUT
@connected
def restart(
    inventory: Path,
    drain_s: int | None,
    form: str,
    output: Path | None,
    **options: Any,  # noqa: ANN401
) -> ExitCode:
    """Restart what is served: instance after instance, so that the others go on serving."""
    from kimi_prov.commands import power as command
    from kimi_prov.commands.common.playbook_run import PlaybookOptions

    chosen = PlaybookOptions(**options)
    return command.restart(inventory, chosen, _output(form, output), drain_s)


@cli.group()
def lab() -> None:
    """Stand-in machines: real systemd, sshd and apt, without the hardware."""


@lab.command("up")
@INVENTORY
def lab_up(inventory: Path) -> None:
    """Bring the inventory's lab hosts up; those that are up stay as they are."""
    from kimi_prov.commands import lab as command

    command.up(inventory)


@lab.command("down")
@INVENTORY
def lab_down(inventory: Path) -> None:
    """Take the inventory's lab away, with all that it made."""
    from kimi_prov.commands import lab as command

    command.down(inventory)


@lab.command("list")
@INVENTORY
@FORMAT
@OUTPUT
def lab_list(inventory: Path, form: str, output: Path | None) -> None:
    """Say which lab hosts the inventory has, where they answer, and whether they are up."""
    from kimi_prov.commands import lab as command

    command.print_hosts(inventory, _output(form, output))


@lab.command("ssh", context_settings={"ignore_unknown_options": True})
@INVENTORY
@click.argument("host")
@click.argument("command", nargs=-1, type=click.UNPROCESSED)
def lab_ssh(inventory: Path, host: str, command: tuple[str, ...]) -> NoReturn:
    """Open a session on a lab host, or run COMMAND there."""
    from kimi_prov.commands import lab as labs

    labs.ssh(inventory, host, command)


def main() -> NoReturn:
    """Run the command line; every end has its documented exit code and none a traceback."""
    from kimi_prov.show.exit_handling import guarded

    sys.exit(guarded(_run))


def _run() -> Any:  # noqa: ANN401  (what a command returns)
    from kimi_prov.runner import signals

    # Here and no earlier: what they raise is caught from here on.
    for number in signals.ending():
        signal.signal(number, signals.end)
    return cli.main(standalone_mode=False)
