"""The command line: the list of commands. A command is imported when it runs.

Decides: commands and options.
Applied by: playbooks.
Held by: tests/unit/commands/test_command_results.py, tests/component/commands/test_commands.py.
"""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Any, NoReturn

import click

from kimi_prov import __version__
from kimi_prov.commands.common.lazy_group import LazyGroup, Row

if TYPE_CHECKING:
    from collections.abc import Sequence


def _group(name: str, text: str, rows: Sequence[Row]) -> LazyGroup:
    return LazyGroup(name, {"Commands": rows}, help=text)


_WEIGHTS = _group(
    "weights",
    "Weights in a bucket, for machines that do not live long.",
    (Row("seed", "weights_seed:weights_seed", "Fill a bucket from the hub, verified"),),
)
_WEB = _group(
    "web",
    "Carry what the web UI keeps, accounts, chats and uploads, to this computer and back.",
    (
        Row("backup", "web:backup", "Copy accounts, chats and uploads to a file"),
        Row("restore", "web:restore", "Put such a backup back on one host"),
    ),
)
_RENDER = _group(
    "render",
    "Write files by which a model is served where this program does not provision.",
    (
        Row("cloud-init", "render.cloud:render_cloud_init", "Write user data for a cloud"),
        Row(
            "kubernetes",
            "render.kubernetes:render_kubernetes",
            "Write objects for Kubernetes",
        ),
        Row("skypilot", "render.cloud:render_skypilot", "Write a task for SkyPilot"),
        Row("slurm", "render.slurm:render_slurm", "Write jobs for a SLURM cluster"),
    ),
)
_LAB = _group(
    "lab",
    "Stand-in machines: real systemd, sshd and apt, without the hardware.",
    (
        Row("down", "lab:down", "Take the lab away, with all that it made"),
        Row("list", "lab:list_hosts", "List lab hosts, addresses and states"),
        Row("ssh", "lab:ssh", "Open a session on a lab host"),
        Row("up", "lab:up", "Bring the inventory's lab hosts up"),
    ),
)
SECTIONS = {
    "Buy": (
        Row("check", "check.check:check", "Say whether machines can serve the model"),
        Row("probe", "probe:probe", "Describe this machine as JSON"),
        Row("catalog", "catalog:catalog", "Show known models, GPUs, engines, prices"),
        Row("contribute", "contribute:contribute", "Make rows of speeds from bench results"),
    ),
    "Provision": (
        Row("init", "init:init", "Write an inventory or spec sheet to edit"),
        Row("plan", "plan:plan", "Print what apply would do, and why"),
        Row("bundle", "bundle:bundle", "Gather all for machines offline"),
        Row("apply", "apply:apply", "Bring machines to a served model"),
        Row("verify", "verify:verify", "Check that the served model answers rightly"),
        Row("bench", "bench:bench", "Measure memory, kernel and served model"),
        Row("tune", "tune:tune", "Find better settings of a served engine"),
        Row("destroy", "destroy:destroy", "Put the machines back as they were"),
    ),
    "Use": (
        Row("connect", "connect:connect", "Say what clients need, or print a snippet"),
        Row("chat", "chat:chat", "Talk to a served model in the terminal"),
        Row("key", "key:key", "Show, make, change and remove API keys"),
        Row("usage", "usage:usage", "Count what each key used"),
        Row("completion", "shell:completion", "Print the completion of a shell"),
        Row("help", "shell:show_help", "Show the help of a command", hidden=True),
        Row("version", "shell:version", "Show the version", hidden=True),
    ),
    "Operate": (
        Row("status", "status:status", "Say what runs on each host"),
        Row("logs", "logs:logs", "Show what the units of all hosts write"),
        Row("diagnose", "diagnose:diagnose", "Write a bundle for a bug report"),
        Row("drift", "drift:drift", "Say what differs from what was applied"),
        Row("stop", "power:stop", "Stop what is served, on purpose"),
        Row("start", "power:start", "Start what was stopped or is asleep"),
        Row("restart", "power:restart", "Restart what is served, one by one"),
        Row("update", "update:update", "Install security updates and the driver"),
        Row("history", "history:history", "Say what was applied when, and by whom"),
        Row("rollback", "history:rollback", "Put back what an earlier apply installed"),
        Row("clean", "clean:clean", "Free weights and versions no longer needed"),
        Row("backup", "backup:backup", "Copy keys, certificate and data to a file"),
        Row("restore", "backup:restore", "Put a backup back on one host"),
        Row("web", _WEB, "Back up and restore the web UI's data"),
        Row("playbooks", "playbooks:playbooks", "Say where Ansible finds our playbooks"),
    ),
    "Clusters": (
        Row("render", _RENDER, "Write files for SLURM, Kubernetes or a cloud"),
        Row("image", "image:image", "Write the folder of an image for pods"),
        Row("submit", "slurm.jobs:submit", "Submit jobs of a folder for SLURM"),
        Row("jobs", "slurm.jobs:jobs", "Say what the jobs of such a folder do"),
        Row("cancel", "slurm.jobs:cancel", "End jobs of such a folder"),
        Row("weights", _WEIGHTS, "Fill a bucket with weights"),
        Row("sessions", "sessions:sessions", "List what sessions of machines cost"),
    ),
    "Lab": (Row("lab", _LAB, "Run stand-in machines for tests"),),
}


_FIRST = (
    ("kimi-prov check SHEET", "Can this machine serve it, and how fast?"),
    ("kimi-prov init DIR --profile lab", "Write an inventory to try it with"),
    ("kimi-prov apply DIR", "Bring its machines to a served model"),
)


class _KimiProv(LazyGroup):
    """The commands: their help says where the docs lie, and none has `destroy` proposed for it."""

    def main(self, args: Sequence[str] | None = None, *rest: Any, **settings: Any) -> Any:  # noqa: ANN401  (click's own types)
        """Run a command line. Raises UserError for one that is wrong."""
        try:
            return super().main(args, *rest, **settings)
        except click.exceptions.NoArgsIsHelpError:
            raise
        except click.ClickException as error:
            from kimi_prov.commands.common.usage_errors import explain

            raise explain(error, sys.argv[1:] if args is None else args) from None

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

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the three commands to begin with, then all."""
        with formatter.section("Begin with"):
            formatter.write_dl(_FIRST, col_max=len(_FIRST[1][0]))
        super().format_commands(ctx, formatter)

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the exit codes, and where the docs lie."""
        from kimi_prov.packaging import resources

        super().format_epilog(ctx, formatter)
        formatter.write(f"\n  Docs: {resources.find_page('README.md')}\n")


@click.group(
    cls=_KimiProv,
    sections=SECTIONS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="Exit codes: 0 done; 1 it failed; 2 bad input; 3 blocked; 4 a host was unreachable; "
    "130 interrupted.",
)
@click.version_option(__version__, prog_name="kimi-prov")
def cli() -> None:
    """Take a bare Linux server to a served, verified Kimi model."""


def main() -> NoReturn:
    """Run the command line; every end has its documented exit code and none a traceback."""
    from kimi_prov.show.exit_handling import run_guarded

    sys.exit(run_guarded(_run))


def _run() -> Any:  # noqa: ANN401  (what a command returns)
    from kimi_prov.runner import signals

    # Here and no earlier: what they raise is caught from here on.
    for number in signals.list_ending_signals():
        signal.signal(number, signals.end)
    return cli.main(standalone_mode=False)
