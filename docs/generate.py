"""Makes pages of docs, the manual page and the diagram from what the code defines: `make docs`.

The rules, dashboards, consoles and pages of alerts too, from kimi_prov/monitoring, and the rows of
troubles as machines have them, from kimi_prov/catalog/troubles.

`--check` writes nothing, names each page that is stale and exits 1. Nothing of the product imports
this file.

Decides: the generated pages of the docs.
Held by: tests/unit/docs/test_docs.py, tests/component/docs/test_generated_docs.py,
  tests/component/docs/test_manual.py.
"""

from __future__ import annotations

import sys
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import decided
import document_schemas
import engine_versions
import evidence
import features
import gpu_reports
import loaders
import plan_changes
import recipes
import troubles
import yaml
from diagram import packages
from manual import commands as all_commands
from manual import page as manual
from markup import anchor, table

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.cli import cli
from kimi_prov.monitoring import generated
from kimi_prov.on_host.troubles.rows import ROWS_FILE, pack_rows
from kimi_prov.planner.registry import DEFINITIONS, SUBJECTS
from kimi_prov.planner.registry.definition import CONCERNS, REMEDIES, SEVERITIES
from kimi_prov.planner.settings.definitions import VARIABLES

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kimi_prov.planner.registry.definition import Definition
    from kimi_prov.planner.settings.definitions.variable import Variable

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
REFERENCE = DOCS / "reference"
SCHEMAS = ROOT / "kimi_prov" / "schemas"
# Around a part of a page that is made; the rest of it is written by hand.
_MADE = "<!-- Made from the types by `make docs`; do not edit. -->"
_MADE_END = "<!-- End of what is made. -->"
# The role `plan` sets these; nobody writes them in an inventory.
_INPUTS = {"kimi_plan", "kimi_facts"}


def pages() -> dict[Path, str]:
    """Return every generated page with its text."""
    return {
        REFERENCE / "variables.md": variables(),
        REFERENCE / "role-options.md": role_options(),
        REFERENCE / "findings.md": findings(),
        REFERENCE / "commands.md": commands(),
        REFERENCE / "recipes.md": compare_recipes(),
        REFERENCE / "engine-versions.md": compare_versions(),
        REFERENCE / "plan-changes.md": compare_plans(),
        REFERENCE / "loaders.md": measured_loaders(),
        REFERENCE / "json-documents.md": json_documents(),
        DOCS / "contributing" / "where-decided.md": where_decided(),
        DOCS / "contributing" / "features.md": where_features(),
        DOCS / "contributing" / "slow-tests.md": slow_tests(),
        DOCS / "evidence.md": what_is_proven(),
        REFERENCE / "facts.md": facts(),
        DOCS / "real-gpus.md": real_gpus(),
        DOCS / "man" / "kimi-prov.1": manual(cli, "kimi-prov"),
        DOCS / "images" / "packages.svg": packages(ROOT / "kimi_prov"),
        **generated.make_files(),
        **troubles.pages(),
        ROOT / "kimi_prov" / "on_host" / "troubles" / ROWS_FILE: pack_rows(
            load_catalogue().troubles
        ),
        **{SCHEMAS / name: text for name, text in document_schemas.format_shipped().items()},
    }


def where_decided() -> str:
    """Return the page of what is decided where, from the `Decides:` lines of the files."""
    lines = [
        *_head("Where things are decided"),
        "A decision is made in one place, a role or a playbook applies it, and a test holds it.",
        "The table is made from the docstrings of the modules (`Decides:`, `Applied by:`,",
        "`Held by:`); `docs/decided.py` explains the form. A path that does not exist is refused.",
        "The first file of a row decides; each file after it decides the part in parentheses. The",
        "files of a feature in all layers are on [another page](features.md).",
        *decided.lines(),
    ]
    return _text(lines)


def what_is_proven() -> str:
    """Return the page of every claim with the test that proves it."""
    lines = [
        *_head("Evidence"),
        "What the tests prove of this project, and when they last ran. A claim that no test",
        "repeats says so. The lab's hosts are containers and emulated machines; its models are",
        "tiny. Runs on GPUs were started by hand: the tests of `make gpu`, packed by",
        "`tests/gpu/carry/pack.py`, on machines without a network ([reports](real-gpus.md)).",
        "",
        "The data is in `docs/data/claims.yaml` and `docs/data/runs.yaml`; a claim whose test does",
        "not exist is refused.",
        *evidence.lines(),
    ]
    return _text(lines)


def where_features() -> str:
    """Return the page of the files that carry the name of each feature."""
    lines = [
        *_head("Where a feature lies"),
        "A feature has one name in every layer: its command, what runs on the managed machine, its",
        "playbook or role, its text and its guide. Which file decides what is on",
        "[another page](where-decided.md).",
        "",
        *features.lines(),
    ]
    return _text(lines)


def slow_tests() -> str:
    """Return the page of the groups of slow tests, and of what asks for each."""
    groups = yaml.safe_load((ROOT / "tests" / "slow_groups.yaml").read_text())
    lines = [
        *_head("Slow tests"),
        "`make test` leaves out emulated machines, large installs and what takes many minutes.",
        "`make test-slow GROUP=NAME` runs one group of these, `make test-slow` all of them, one",
        "after the other. A group is to take at most 45 minutes on two quiet cores; what it took",
        "is in the table once it was measured.",
        "",
        "`python tests/slow_groups.py` prints the groups that your branch asks for, and",
        "`python tests/slow_groups.py COMMIT` those of all changes since a commit. Run each of",
        "them once after the last change that asks for it. A new slow test is put into a group,",
        "in `tests/slow_groups.yaml`; a test fails for one that is in none.",
        "",
        *table(
            ("group", "tests", "minutes", "asked for by a change of"),
            (
                (
                    f"`{name}`",
                    row["about"],
                    str(row["minutes"] or "not measured"),
                    ", ".join(f"`{path}`" for path in row["asked_by"]),
                )
                for name, row in groups.items()
            ),
        ),
    ]
    return _text(lines)


def compare_versions() -> str:
    """Return the page of what an upgrade of vLLM brings."""
    lines = [
        *_head("Engine versions"),
        "What each version of vLLM brings on the shipped sheets: kimi-k2.5, 16 requests at once,",
        "all else `auto`. All figures are estimates by the rows of the catalogue. The largest",
        "difference is the start: 0.32 and newer bring packed experts into the kernels' order on",
        "the GPU. The rows that are known do not tell speeds of versions apart.",
        "`kimi_engine_version` pins a version; a machine that serves keeps its own until",
        "`kimi_choose_anew` ([upgrades](../guides/upgrades.md)).",
        "",
        *engine_versions.lines(ROOT / "inventories" / "specs"),
    ]
    return _text(lines)


def compare_plans() -> str:
    """Return the page of what the search of layouts changed."""
    lines = [
        *_head("Plans before and after"),
        "What the search of layouts, and all that came since, changed on the shipped sheets:",
        "kimi-k2.5, all else `auto`, for one person, sixteen and sixty-four at once. A figure that",
        "changed stands there with that of before. Speeds are estimates; those of before are the",
        "estimates of that time. `$ a million` is of a million tokens of answers at full use; a",
        "purchase counts over three years, without power.",
        "",
        *plan_changes.lines(ROOT),
    ]
    return _text(lines)


def measured_loaders() -> str:
    """Return the page of loaders on real cards."""
    lines = [
        *_head("Loaders"),
        "How weights came into real cards, by loader and source, by `tests/gpu/loaders.py`. GB are",
        "10^9 bytes. Phases: *answer* is from the command to the first answer, *weights* what the",
        "engine says, *copied* and *written* those of prepared weights.",
        *loaders.lines(ROOT / "tests" / "data" / "recordings" / "loaders"),
    ]
    return _text(lines)


def compare_recipes() -> str:
    """Return the page of vLLM's recipes beside what is planned."""
    lines = [
        *_head("Recipes"),
        "What vLLM's recipes for Kimi set, and what a plan of the same machine has. What a kernel",
        "brings in speed is not said here: none of them was measured by this project.",
        "",
        *recipes.lines(DOCS / "data" / "recipes.yaml"),
    ]
    return _text(lines)


def real_gpus() -> str:
    """Return the page of what was proven on real GPUs, from the reports that were kept."""
    lines = [
        *_head("On real GPUs"),
        "What `make gpu` proved: the product itself, from a booted host to a chat, its failures,",
        "and back to nothing. It needs root on a machine with GPUs, see [the lab's",
        "page](guides/lab.md#on-your-own-gpu-server). Models are cut, with random weights. A test",
        "that ran several times counts by its last run.",
        "",
        "Each report is a folder of `tests/data/recordings/gpu-reports`; its `note.yaml` says what",
        "stood in for what, and what was learned. A report that you send in is put there, and is",
        "here with the next `make docs`. What no report names was not run on a GPU by `apply`.",
        *gpu_reports.lines(ROOT / "tests" / "data" / "recordings" / "gpu-reports"),
    ]
    return _text(lines)


def variables() -> str:
    """Return the page of the inventory variables, one table a group."""
    lines = [
        *_head("Variables"),
        "Settings in an inventory. Every variable except `kimi_model` has a default. A value in",
        "the inventory overrides the planner's choice; where the two contradict each other, the",
        "plan has a [finding](findings.md). Paths on the control machine are relative to the",
        "inventory's directory.",
        "",
        "The roles have options of their own: [role-options.md](role-options.md).",
    ]
    for group in dict.fromkeys(variable.group for variable in VARIABLES):
        lines += ["", f"## {group}", ""]
        lines += table(
            ("variable", "type", "default", "what it does", "example"),
            (_variable(v) for v in VARIABLES if v.group == group),
        )
    return _text(lines)


def _variable(variable: Variable) -> tuple[str, ...]:
    kinds = [*(variable.choices or (variable.kind,)), *(["auto"] if variable.auto else [])]
    default = "" if variable.default in (None, [], {}) else f"`{variable.default}`"
    name, example = f"`{variable.name}`", f"`{variable.example}`"
    return name, " | ".join(dict.fromkeys(kinds)), default, variable.help, example


def findings() -> str:
    """Return the page of every finding, by subject, from the registry."""
    lines = [
        *_head("Findings"),
        "What `check`, `plan` and `apply` report of a machine, by subject. An id never changes:",
        "scripts may compare it. Words in italics are filled in; slashes part the titles of one",
        "finding. Where the remedy costs nothing but work, or has a price, the finding has",
        "`cost_usd` and `cost_basis`.",
        "",
        *table(("severity", "what it does"), SEVERITIES.items()),
        "",
        *table(("remedy", "what it takes"), REMEDIES.items()),
        "",
        *table(("concerns", "what that means"), CONCERNS.items()),
        "",
        "Two marks stand beside a severity:",
        "",
        "- *blocks apply*: `check` and `plan` go on, and `apply` refuses the host all the same.",
        "- *apply fixes it*: `apply` does not refuse the host for it. For what goes with the",
        "  driver this holds where the plan installs it or restarts the machine for it.",
    ]
    ordered = sorted(DEFINITIONS.values(), key=lambda row: (_subject(row), row.id))
    for subject, rows in groupby(ordered, key=_subject):
        lines += ["", f"## {SUBJECTS[subject]}", ""]
        head = ("id", "title", "severity", "remedy", "concerns", "source")
        lines += table(head, (_finding(row) for row in rows))
    return _text(lines)


def _subject(definition: Definition) -> str:
    return definition.id.partition(".")[0]


def _finding(definition: Definition) -> tuple[str, ...]:
    titles = [*definition.shown_titles()]
    titles += ["the title of a row of the catalogue"] if definition.own_title else []
    severity = ", ".join(definition.severities)
    severity += "; *blocks apply*" if definition.blocks_apply else ""
    severity += "; *apply fixes it*" if definition.fixed_by_apply else ""
    shown = f"`{definition.id}`", " / ".join(titles), severity, definition.remedy
    return *shown, definition.concerns, definition.source


def role_options() -> str:
    """Return the page of every role: its entry points and the options that an inventory may set."""
    lines = [
        *_head("Role options"),
        "Set these options in the inventory beside the `kimi_` variables. A role's name is its",
        "tag too: `kimi-prov apply INVENTORY --tags serve`. Roles read the plan (`kimi_plan`) and",
        "the facts (`kimi_facts`), which the role `plan` sets; do not set these two yourself.",
        "",
        "`plan` and `apply` refuse a value of another type, and a name that is a letter or two",
        "away from an option of its role. Other names that begin as a role does are left alone:",
        "they are a site's own.",
    ]
    # What begins with "_" is no role for users: other roles include its tasks.
    for folder in sorted((ROOT / "roles").glob("[!_]*")):
        lines += _role(folder)
    return _text(lines)


def _role(folder: Path) -> Iterator[str]:
    spec = yaml.safe_load((folder / "meta" / "argument_specs.yml").read_text())["argument_specs"]
    file = folder / "defaults" / "main.yml"
    defaults = (yaml.safe_load(file.read_text()) if file.exists() else None) or {}
    yield from ("", f"## {folder.name}", "")
    options: dict[str, dict[str, Any]] = {}
    for name, entry in spec.items():
        yield f"- `{name}`: {entry['short_description']}."
        options |= entry.get("options") or {}
    rows = [
        (f"`{name}`", option["type"], _default(defaults[name]), _line(option["description"]))
        for name, option in options.items()
        if name not in _INPUTS
    ]
    yield ""
    if rows:
        yield from table(("option", "type", "default", "what it does"), rows)
    else:
        yield "No options."


def _default(value: object) -> str:
    return f"`{str(value).lower() if isinstance(value, bool) else value}`" if value != "" else ""


def commands() -> str:
    """Return the page of every command with its arguments and options."""
    lines = [
        *_head("Commands"),
        f"{cli.epilog} [exit-codes.md](exit-codes.md) explains each.",
        "",
        "`kimi-prov --version` prints the version; `-h` and `--help` work on every command.",
        "",
    ]
    found = list(all_commands(cli, "kimi-prov"))
    lines += [f"- [`{name}`](#{anchor(name)}): {_first(command)}" for name, command in found]
    for name, command in found:
        lines += _command(name, command)
    return _text(lines)


def _command(name: str, command: click.Command) -> Iterator[str]:
    context = click.Context(command, info_name=name)
    usage = " ".join(command.collect_usage_pieces(context))
    yield from ("", f"## {name}", "", f"    {name} {usage}", "")
    for paragraph in (command.help or "").replace("\b", "").split("\n\n"):
        yield from (_line(paragraph), "")
    rows = []
    for option in (p for p in command.params if isinstance(p, click.Option)):
        record = option.get_help_record(context)
        # A hidden option is the former name of another.
        if record is not None:
            rows.append((f"`{record[0]}`", _line(record[1])))
    if rows:
        yield from table(("option", "what it does"), rows)
    else:
        yield "No options."


def _first(command: click.Command) -> str:
    return _line((command.help or "").split("\n\n")[0])


def json_documents() -> str:
    """Return the page of every JSON document: its schema's file and its keys."""
    lines = [
        *_head("JSON documents"),
        "Every document begins with `schema`. Sizes are bytes and rates are per second, unless the",
        "key names another unit. `null` means unknown, never none. The schemas (JSON Schema",
        "2020-12) have every nested key. Within `v1` keys are added, never removed or renamed.",
        "Characters that would steer a terminal, or that nobody sees, are escaped (`\\u001b`):",
        "[runs](../guides/runs.md#output).",
    ]
    for name, (file, schema) in sorted(document_schemas.make_all().items()):
        said = [schema[key] for key in ("title", "description") if schema.get(key)]
        lines += ["", f"## {name}", "", *[f"{_line(text).removesuffix('.')}." for text in said]]
        lines += ["", f"Schema: `kimi_prov/schemas/{file}`. Keys, required ones in bold:", ""]
        forms = schema.get("anyOf", [schema])
        needed = set.intersection(*(set(form["required"]) for form in forms))
        keys = dict.fromkeys(key for form in forms for key in form["properties"])
        lines += [", ".join(f"**`{key}`**" if key in needed else f"`{key}`" for key in keys) + "."]
    return _text(lines)


def facts() -> str:
    """Return the page of the facts; the table of what their keys mean is made."""
    page = REFERENCE / "facts.md"
    before, _, rest = page.read_text(encoding="utf-8").partition(_MADE)
    _, _, after = rest.partition(_MADE_END)
    rows = document_schemas.list_meanings(document_schemas.make_schema("facts"))
    made = "\n".join(table(("key", "meaning"), ((f"`{key}`", text) for key, text in rows)))
    return f"{before}{_MADE}\n{made}\n{_MADE_END}{after}"


def _head(title: str) -> list[str]:
    return [f"# {title}", "", "<!-- Made from the definitions by `make docs`; do not edit. -->", ""]


def _line(text: str) -> str:
    return " ".join(text.split())


def _text(lines: Iterable[str]) -> str:
    return "\n".join(lines) + "\n"


def main(argv: list[str]) -> int:
    """Write the pages that differ; with `--check`, only name them and return 1."""
    check = argv == ["--check"]
    stale = [
        (path, text)
        for path, text in pages().items()
        if not path.exists() or path.read_text(encoding="utf-8") != text
    ]
    for path, text in stale:
        sys.stdout.write(f"{'stale' if check else 'wrote'}: {path.relative_to(ROOT)}\n")
        if not check:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text, encoding="utf-8")
    for path in sorted(set(troubles.FOLDER.glob("*.md")) - set(troubles.pages())):
        stale.append((path, ""))
        sys.stdout.write(f"{'stale' if check else 'removed'}: {path.relative_to(ROOT)}\n")
        if not check:
            path.unlink()
    return 1 if check and stale else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
