"""The answer of `diagnose --log` as text."""

from __future__ import annotations

import re
import textwrap
from typing import TYPE_CHECKING

from kimi_prov.contract import clean_text
from kimi_prov.show.text.lines import WIDTH, wrap

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kimi_prov.contract.documents.diagnose_log import DiagnoseLog, LogEvidence, LogFinding

_SURE = {"certain": "certain", "likely": "likely", "possible": "one of several possible causes"}
_QUOTED_LINES = 3
# What vLLM writes before each line of a traceback: process, level, time, file.
_PREFIX = re.compile(r"^(?:\(\w+ pid=\d+\) )?[A-Z]+ \d\d-\d\d \d\d:\d\d:\d\d \[\w+\.py:\d+\] ?")


def format_text(document: DiagnoseLog, followed: Mapping[str, str], around: Sequence[str]) -> str:
    """Write causes, what followed, and what is harmless; or the lines around the first error."""
    lines: list[str] = []
    for position, finding in enumerate(document["findings"], start=1):
        lines += [*_format_finding(position, finding, followed), ""]
    if document["first_error"] or not document["findings"]:
        lines += [*_format_unknown(document["first_error"], around), ""]
    if document["harmless"]:
        lines.append("Harmless, although it may not look so:")
        for row in document["harmless"]:
            at = row["evidence"][0]
            lines += wrap(f"{row['title']} ({at['source']}:{at['line']})", "  ", "    ")
    return "\n".join(lines).rstrip() + "\n"


def _format_finding(position: int, finding: LogFinding, followed: Mapping[str, str]) -> list[str]:
    lines = wrap(f"{position}. {finding['title']} [{_SURE[finding['confidence']]}]", "", "   ")
    lines += wrap(f"cause: {finding['cause']}", "   ", "          ")
    lines += wrap(f"fix: {finding['fix']}", "   ", "        ")
    lines.append("   seen:")
    for line in finding["evidence"]:
        lines += _quote(line)
    if finding["followed_by"]:
        lines.append("   what followed from it:")
        for name in finding["followed_by"]:
            lines += wrap(followed[name], "     ", "       ")
    lines += wrap(f"id: {finding['id']}", "   ", "       ")
    return lines


def _quote(line: LogEvidence) -> list[str]:
    """Return a line of a log with its number, shortened to a few lines of the terminal."""
    text = clean_text.clean_row(line["text"])
    head = f"     {line['source']}:{line['line']}: "
    shown = textwrap.wrap(
        text, WIDTH, initial_indent=head, subsequent_indent="       ", break_on_hyphens=False
    )
    return (
        shown[:_QUOTED_LINES]
        if len(shown) <= _QUOTED_LINES
        else [*shown[:_QUOTED_LINES], "       ..."]
    )


def _format_unknown(error: LogEvidence | None, around: Sequence[str]) -> list[str]:
    if error is None:
        return ["Nothing wrong was recognised in these lines."]
    where = f"{error['source']}:{error['line']}"
    head = f"No known cause was recognised. The first error is {where}:"
    lines = wrap(head)
    for line in around:
        text = _PREFIX.sub("", clean_text.clean_row(line))
        lines += wrap(text, "> ", "    ") if line == error["text"] else [f"  {text:.{WIDTH - 2}}"]
    return lines
