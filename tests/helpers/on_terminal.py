"""A program on a terminal of its own: what it shows, what is typed, and Ctrl-C as a key."""

from __future__ import annotations

import os
import pty
import re
import threading
from typing import TYPE_CHECKING

import forked
from waiting import until

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

CTRL_C, CTRL_D = "\x03", "\x04"


# What a chat shows once it reads from the terminal: keys that are pressed earlier may be lost.
PROMPT = "> "


class OnTerminal:
    """The command line on a pseudo terminal; `text` is all that it showed."""

    def __init__(self, words: Sequence[object], cwd: Path, env: Mapping[str, str]) -> None:
        self._master, slave = pty.openpty()
        # The terminal has to be the program's own, for Ctrl-C to be a signal.
        self.process = forked.Process(
            *words,
            env={"TERM": "xterm", **env},
            cwd=cwd,
            stdin=slave,
            stdout=slave,
            stderr=slave,
            terminal=True,
        )
        os.close(slave)
        self.text = ""
        self._seen = 0
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        while True:
            try:
                data = os.read(self._master, 65536)
            except OSError:  # the other side is closed
                return
            if not data:
                return
            self.text += data.decode(errors="replace")

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._master, text.encode())

    def shows(self, words: str) -> bool:
        """Wait until these words come after those that were waited for before."""
        found = until(lambda: words in self.text[self._seen :] or self._thread_ended())
        at = self.text.find(words, self._seen)
        if at >= 0:
            self._seen = at + len(words)
        return found and at >= 0

    def _thread_ended(self) -> bool:
        return not self._thread.is_alive()

    def ends(self) -> int:
        """Wait for its end; the exit status."""
        status = self.process.wait(60)
        self._thread.join()
        os.close(self._master)
        return status

    def kill(self) -> None:
        """End what is left."""
        if self.process.poll() is None:
            self.process.kill()
            self.ends()

    @property
    def plain(self) -> str:
        """What it showed, without colours and the marks of bracketed paste."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.text).replace("\r\n", "\n")
