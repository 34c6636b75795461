"""Why the experts are not served: one message, and the process ends."""

from __future__ import annotations


class Refusal(SystemExit):
    """Ends the process with one line: what was found, what is needed, how to go on without."""

    def __init__(self, found: str, needed: str, mend: str = "") -> None:
        self.message = f"kimi-kt-experts: {found}; needed: {needed}" + (f"; {mend}" if mend else "")
        super().__init__(self.message)
