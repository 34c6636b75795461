"""`kimi-prov chat`: talk to a served model in the terminal, or ask it once from a pipe."""

from __future__ import annotations

import os
import signal
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from kimi_prov.clients import answers, conversation
from kimi_prov.clients.conversation import Conversation
from kimi_prov.commands.access import connect_inventory, served_model
from kimi_prov.commands.common.command import Command
from kimi_prov.commands.common.options import (
    EXTRA,
    LIMIT,
    PATH,
    add_playbook_options_beside_api_key,
)
from kimi_prov.commands.connect import PLACE, add_server_options, classify, open_folder
from kimi_prov.contract import clean_text
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.errors import ExitCode, UserError
from kimi_prov.on_host.endpoint import api_client
from kimi_prov.runner import signals
from kimi_prov.show.live.chat_line import LEAVES, ChatLine
from kimi_prov.show.live.chat_screen import ChatScreen
from kimi_prov.show.output import check_file
from kimi_prov.user_dirs import find_state_home

if TYPE_CHECKING:
    from collections.abc import Callable

    from kimi_prov.commands.access.connect_inventory import ConnectOptions, Link
    from kimi_prov.commands.common.playbook_run import PlaybookOptions
    from kimi_prov.commands.connect import FolderOptions

# A model on CPUs may take minutes before the first token.
_ANSWER_TIMEOUT_S = 600.0
_PROMPT_BYTES = 32 << 20
HELP = """\
/image FILE    attach an image to the next question
/instant       answer without reasoning; /thinking goes back
/system TEXT   set the system prompt; alone it shows it, with - it takes it away
/clear         forget the conversation
/save FILE     write the conversation: Markdown, or JSON for FILE.json
/quit          leave, as Ctrl-D does
Ctrl-C ends an answer, and at an empty line the chat. A line that ends with \\
goes on in the next. A question that begins with / is written with //."""


@dataclass(frozen=True)
class ChatOptions:
    """Options of the chat. `reasoning`: whether it is shown; None means only on a terminal."""

    model: str | None = None
    system: str | None = None
    instant: bool = False
    images: tuple[Path, ...] = ()
    reasoning: bool | None = None


@click.command(cls=Command)
@PLACE
@click.argument("prompt", required=False, metavar="[PROMPT]")
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
    help="Attach it to the first question.  May be repeated.",
)
@click.option(
    "--reasoning/--no-reasoning",
    default=None,
    help="Show the reasoning.  [default: only on a terminal]",
)
@add_server_options
@add_playbook_options_beside_api_key
def chat(
    place: str,
    prompt: str | None,
    options: PlaybookOptions,
    chosen: ConnectOptions,
    of_folder: FolderOptions,
    **begin: Any,  # noqa: ANN401
) -> ExitCode:
    """Talk to a served model: streamed answers, dimmed reasoning, tokens and speed at the end.

    /help lists the commands of the chat. PROMPT is asked once; without a terminal standard input
    is one prompt, and standard output only the answer. The key comes from KIMI_API_KEY or
    --api-key-file. A DIR that `render` made is reached as by `connect DIR`, with the key of its
    cluster.
    """
    start = ChatOptions(**begin)
    images = [conversation.read_image(file) for file in start.images]
    for number in signals.list_ending_signals():
        signal.signal(number, _end)
    kind = classify(place, options, of_folder, chosen)
    if kind == "url":
        given = chosen.make_client_options(None)
        key = connect_inventory.require_key(given, "ask the server's administrator for one")
        there = served_model.choose_model(served_model.describe_url(place, given), key, start.model)
        link = connect_inventory.Link(there, key)
        return _run_chat(link, start, images, prompt)
    path = Path(place)
    way = (
        open_folder(path, of_folder)
        if kind == "folder"
        else connect_inventory.open_host(path, options, chosen, "chat")
    )
    with way as link:
        if start.model is not None:
            link.there = served_model.choose_model(link.there, link.key, start.model)
            link.chosen = True
        return _run_chat(link, start, images, prompt)


def _end(_number: int, _frame: object) -> None:
    """End the whole chat; Ctrl-C only ends its answer."""
    raise click.exceptions.Abort


def _read_prompt() -> str:
    """Return standard input as one prompt."""
    text = sys.stdin.buffer.read(_PROMPT_BYTES).decode(errors="replace").strip()
    if not text:
        raise UserError(
            "standard input has no prompt",
            fix='echo "Say hello." | kimi-prov chat INVENTORY, or run it in a terminal',
        )
    return text


def _run_chat(
    link: Link, chat: ChatOptions, images: list[conversation.Image], prompt: str | None
) -> ExitCode:
    terminal = sys.stdin.isatty() and sys.stdout.isatty()
    if prompt is None and not terminal:
        prompt = _read_prompt()
    usage = link.there.server.usage
    system = chat.system if chat.system is not None else (usage.system_prompt if usage else None)
    talk = Conversation(link.there.server, system or None, images=images)
    screen = ChatScreen(
        terminal=terminal, reasoning=terminal if chat.reasoning is None else chat.reasoning
    )
    held = _Chat(link, talk, screen)
    if chat.instant:
        held.instant("")
    if images:
        held.require_sight()
    if prompt is not None:
        talk.ask(prompt)
        held.answer()
        return ExitCode.OK
    return held.loop(ChatLine(find_state_home() / "chat_history", link.key))


class _Chat:
    """A conversation on a terminal: lines in, answers out."""

    def __init__(self, link: Link, talk: Conversation, screen: ChatScreen) -> None:
        self._link, self._talk, self._screen = link, talk, screen
        self._commands: dict[str, Callable[[str], None]] = {
            "image": self._image,
            "instant": self.instant,
            "thinking": self._thinking,
            "system": self._system,
            "clear": self._clear,
            "save": self._save,
            "help": lambda _text: self._screen.note(HELP),
        }

    def loop(self, lines: ChatLine) -> ExitCode:
        """Read and answer until the user leaves."""
        server = self._talk.server
        self._screen.note(
            f"{clean_text.clean_line(server.model)} at {server.base_url}\n"
            "/help lists the commands, Ctrl-D leaves"
        )
        for told in self._link.there.stand_ins:
            self._screen.note(f"stand-in: {clean_text.clean_line(told)}")
        while True:
            try:
                line = lines.read()
            except KeyboardInterrupt:
                return ExitCode.OK
            if line is None:
                return ExitCode.OK
            text = line.strip()
            if not text:
                continue
            name, _, rest = text[1:].partition(" ")
            try:
                if text.startswith("/") and not text.startswith("//"):
                    if text in LEAVES:
                        return ExitCode.OK
                    self._command(name, rest.strip())
                    continue
                self._talk.ask(text[1:] if text.startswith("//") else text)
                self.answer()
            except UserError as error:
                fix = f"\n  fix: {error.fix}" if error.fix else ""
                self._screen.note(f"{error.message}{fix}")

    def answer(self) -> None:
        """Send the question and show the answer as it arrives; Ctrl-C ends it and keeps its text.

        Raises UserError where the request fails.
        """
        text: list[str] = []
        taken = answers.AnswerStats()
        try:
            self._reach()
            body = self._talk.request()
            endpoint = replace(self._link.there.endpoint, timeout_s=_ANSWER_TIMEOUT_S)
            for piece in answers.stream_answer(endpoint, self._link.key, body, taken):
                if piece.kind == "text":
                    text.append(piece.text)
                self._screen.piece(piece)
        except KeyboardInterrupt:
            self._talk.answered("".join(text))
            self._screen.done(None)
            if not sys.stdin.isatty():
                raise
            self._screen.note("interrupted")
            return
        except (api_client.ApiError, UserError) as error:
            self._talk.answered("".join(text))
            self._screen.done(None)
            if isinstance(error, UserError):
                raise
            told = clean_text.clean_block(error).strip()[:2000]
            silent = told.startswith("no answer")
            raise UserError(
                told,
                fix=self._link.there.hint if silent else None,
                exit_code=ExitCode.UNREACHABLE if silent else ExitCode.FAILED,
            ) from None
        self._talk.answered("".join(text))
        self._screen.done(taken)

    def _reach(self) -> None:
        """Make sure that a server answers, which may be another than before. Raises UserError."""
        self._link.ensure()
        before, server = self._talk.server, self._link.there.server
        self._talk.server = server
        if server.model != before.model:
            self._tell(f"{clean_text.clean_line(server.model)} answers now")

    def _command(self, name: str, text: str) -> None:
        if name not in self._commands:
            shown = clean_text.clean_line(name)
            self._screen.note(f"there is no /{shown}; /help lists the commands, // asks with a /")
            return
        self._commands[name](text)

    def require_sight(self) -> None:
        """Raise UserError where the model is known to take no images."""
        if self._talk.server.sees is False:
            raise UserError(f"{clean_text.clean_line(self._talk.server.model)} takes no images")

    def _image(self, text: str) -> None:
        self.require_sight()
        if not text:
            raise UserError("/image FILE: which file?")
        found = conversation.read_image(Path(text.strip("'\"")).expanduser())
        self._talk.images.append(found)
        size = format_bytes(found.size_bytes)
        self._screen.note(
            f"{clean_text.clean_line(found.name)}, {size}: attached to the next question"
        )

    def instant(self, _text: str) -> None:
        """Answer without reasoning. Raises UserError where the model always thinks."""
        server = self._talk.server
        if not server.switches:
            does = "always thinks" if server.thinks else "never thinks"
            raise UserError(f"{clean_text.clean_line(server.model)} {does}")
        self._talk.instant = True
        self._tell("instant: answers come without reasoning; /thinking goes back")

    def _thinking(self, _text: str) -> None:
        self._talk.instant = False
        self._tell("thinking: answers come after reasoning; /instant leaves it out")

    def _tell(self, text: str) -> None:
        if sys.stdout.isatty():
            self._screen.note(text)

    def _system(self, text: str) -> None:
        if text:
            self._talk.system = None if text == "-" else text
        shown = self._talk.system or "none"
        self._screen.note(f"system prompt: {shown}")

    def _clear(self, _text: str) -> None:
        self._talk.clear()
        self._screen.note("the conversation is forgotten")

    def _save(self, text: str) -> None:
        if not text:
            raise UserError("/save FILE: which file?")
        file = Path(text.strip("'\"")).expanduser()
        check_file("/save", file)
        whole = self._talk.markdown()
        if file.suffix == ".json":
            whole = clean_text.as_json(self._talk.document()) + "\n"
        _write_new(file, whole)
        self._screen.note(f"written to {clean_text.clean_line(file)}")


def _write_new(file: Path, text: str) -> None:
    """Write a new file that only its owner can read. Raises UserError where it exists."""
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    try:
        descriptor = os.open(file, flags, 0o600)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8", errors="replace") as stream:
                stream.write(text)
        except OSError:
            file.unlink()
            raise
    except FileExistsError:
        raise UserError(f"{file}: there is a file already", fix="name another") from None
    except OSError as error:
        raise UserError(f"{file}: cannot be written: {error.strerror}") from None
