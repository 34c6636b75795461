"""`chat` as its user has it: on a terminal, and in a pipe, with a stand-in of the engine."""

from __future__ import annotations

import contextlib
import json
import os
import signal
from typing import TYPE_CHECKING, Any

import command_line
import pytest
import small_disk
from chat_stand_in import Engine, serving
from on_terminal import CTRL_C, CTRL_D, OnTerminal
from waiting import until

from kimi_prov.on_host.endpoint import tls

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

KEY = "sk-kimi-canary-of-the-chat"
HELLO = "Hello from the stand-in."
DIM, PLAIN = "\x1b[2m", "\x1b[0m"


class Room:
    """A server, and a user who has its certificate and key."""

    def __init__(self, folder: Path, engine: Engine, port: int, certificate: str) -> None:
        self.folder, self.engine = folder, engine
        ca = folder / "certificate.pem"
        ca.write_text(certificate)
        self.words: list[object] = ["chat", f"https://localhost:{port}", "--ca", ca]
        self.env = {
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "XDG_STATE_HOME": str(folder / "state"),
            "KIMI_API_KEY": KEY,
            "LC_ALL": "C.UTF-8",
        }
        self.open: list[OnTerminal] = []

    @property
    def history(self) -> Path:
        return self.folder / "state" / "kimi-prov" / "chat_history"

    def terminal(self, *more: object, **env: str) -> OnTerminal:
        found = OnTerminal([*self.words, *more], self.folder, {**self.env, **env})
        self.open.append(found)
        return found

    def pipe(self, text: str, *more: object, **env: str) -> command_line.Done:
        with command_line.surroundings({**self.env, **env}), contextlib.chdir(self.folder):
            return command_line.run(*self.words, *more, given=text)


@pytest.fixture
def room(tmp_path: Path) -> Iterator[Room]:
    pem = tls.make_self_signed(["lab1"])
    engine = Engine(KEY)
    with serving(tmp_path, pem, engine) as port:
        found = Room(tmp_path, engine, port, tls.extract_certificates(pem))
        try:
            yield found
        finally:
            for terminal in found.open:
                terminal.kill()


def questions(room: Room) -> list[Any]:
    return [body["messages"][-1]["content"] for body in room.engine.asked]


def test_a_conversation(room: Room) -> None:
    chat = room.terminal()
    assert chat.shows("kimi-k2.5 at https://localhost:")
    assert chat.shows("> ")
    chat.type("first\n")
    assert chat.shows("11 tokens, 7 read, first after ")
    assert chat.shows("> ")
    # Reasoning is dimmed, piece by piece, and the answer is not.
    assert f"{DIM}I weigh{PLAIN}{DIM} it.{PLAIN}\r\n\r\nHello from" in chat.text
    chat.type("second\n")
    assert chat.shows("tok/s]")
    body = room.engine.asked[1]
    kept = [(row["role"], row["content"]) for row in body["messages"][1:]]
    assert kept == [("user", "first"), ("assistant", HELLO), ("user", "second")]
    assert body["messages"][0]["content"].startswith("You are Kimi")
    assert (body["temperature"], body["top_p"]) == (1.0, 0.95)
    assert body["stream_options"] == {"include_usage": True}
    chat.type("/instant\n")
    assert chat.shows("without reasoning")
    chat.type("third\n")
    assert chat.shows("tokens")
    assert room.engine.asked[2]["chat_template_kwargs"] == {"thinking": False}
    assert room.engine.asked[2]["temperature"] == 0.6
    chat.type("/thinking\n/clear\n/system Be short.\n")
    assert chat.shows("system prompt: Be short.")
    chat.type("fourth \\\nand on\n")
    assert chat.shows("tokens")
    assert room.engine.asked[3]["messages"] == [
        {"role": "system", "content": "Be short."},
        {"role": "user", "content": "fourth \nand on"},
    ]
    chat.type("/save talk.md\n/save talk.json\n")
    assert chat.shows("written to talk.json")
    chat.type("/save talk.md\n")
    assert chat.shows("there is a file already")
    chat.type("//help is what?\n")
    assert chat.shows("tokens")
    assert questions(room)[-1] == "/help is what?"
    chat.type("/nonsense\n")
    assert chat.shows("there is no /nonsense")
    chat.type("/quit\n")
    assert chat.ends() == 0
    saved = json.loads((room.folder / "talk.json").read_text())
    assert saved["messages"][-1] == {"role": "assistant", "content": HELLO}
    talk = room.folder / "talk.md"
    assert HELLO in talk.read_text()
    assert talk.stat().st_mode & 0o777 == 0o600
    assert KEY not in chat.text


@small_disk.NEEDS_ROOT
def test_no_half_of_a_talk_is_kept_on_a_full_disk(room: Room) -> None:
    chat = room.terminal()
    assert chat.shows("> ")
    chat.type("first\n")
    assert chat.shows("tokens")
    with small_disk.full(room.folder / "small"):
        chat.type("/save small/talk.md\n")
        assert chat.shows("cannot be written: No space left on device")
        assert not (room.folder / "small" / "talk.md").exists()
    chat.type("/save small/talk.md\n")
    assert chat.shows("written to small/talk.md")


def test_several_lines_that_are_pasted_are_one_question(room: Room) -> None:
    chat = room.terminal()
    assert chat.shows("> ")
    chat.type("\x1b[200~one\ntwo\x1b[201~")
    assert chat.shows("two")
    chat.type("\n")
    assert chat.shows("tokens")
    assert questions(room) == ["one\ntwo"]
    chat.type(CTRL_D)
    assert chat.ends() == 0
    assert room.history.read_text() == "one two\n"


def test_an_image_goes_with_the_next_question(room: Room) -> None:
    (room.folder / "red square.png").write_bytes(b"\x89PNG\r\n\x1a\n" + bytes(1000))
    (room.folder / "text.png").write_text("no image")
    chat = room.terminal()
    chat.type("/image text.png\n")
    assert chat.shows("no image that a model takes")
    chat.type("/image red square.png\nWhat is it?\n")
    assert chat.shows("a PNG of 1008 bytes")
    assert chat.shows("tokens")
    chat.type("And now?\n")
    assert chat.shows("tokens")
    assert questions(room)[1] == "And now?"
    chat.type(CTRL_D)
    assert chat.ends() == 0
    done = room.pipe("What is it?", "--image", room.folder / "red square.png")
    assert done.stdout == "a PNG of 1008 bytes\n"


def test_ctrl_c_ends_the_answer_and_then_the_chat(room: Room) -> None:
    chat = room.terminal()
    chat.type("wait\n")
    assert chat.shows("Hello from")
    chat.type(CTRL_C)
    assert chat.shows("interrupted")
    assert until(room.engine.left.is_set)
    # What there was of the answer is kept.
    chat.type("next\n")
    assert chat.shows("tokens")
    assert room.engine.asked[1]["messages"][-2]["content"] == "Hello from"
    # A line that was begun is dropped, and at an empty one the chat ends. Before the prompt the
    # terminal itself would echo it.
    assert chat.shows("> ")
    chat.type("half a li")
    assert chat.shows("half a li")
    chat.type(CTRL_C)
    assert chat.shows("> ")
    assert chat.process.poll() is None
    chat.type(CTRL_C)
    assert chat.ends() == 0
    assert len(room.engine.asked) == 2


def test_sigterm_ends_the_chat_and_not_the_answer_alone(room: Room) -> None:
    chat = room.terminal()
    chat.type("wait\n")
    assert chat.shows("Hello from")
    chat.process.send_signal(signal.SIGTERM)
    assert chat.ends() == 130


def test_the_history_is_private_and_holds_no_secret(room: Room) -> None:
    chat = room.terminal()
    secret = "sk-proj-4f9a8b7c6d5e4f3a2b1c"
    for line in ("an ordinary line", f"my key is {KEY}", f"use {secret}", "password: tulip"):
        chat.type(f"{line}\n")
        assert chat.shows("tokens")
    chat.type("/quit\n")
    assert chat.ends() == 0
    assert room.history.read_text() == "an ordinary line\n"
    assert room.history.stat().st_mode & 0o777 == 0o600
    chat = room.terminal()
    assert chat.shows("> ")
    # The arrow upwards brings it back.
    chat.type("\x1b[A")
    assert chat.shows("an ordinary line")
    chat.type("\n")
    assert chat.shows("tokens")
    assert questions(room)[-1] == "an ordinary line"


def test_nothing_in_an_answer_steers_the_terminal(room: Room) -> None:
    room.engine.words = (
        "\x1b]0;t\x07",
        "\x1b[2J",
        "caf\u00e9 \u2764\ufe0f",
        "\u202eabc",
        "\r over",
    )
    done = room.pipe("x")
    assert "\\x1b[2J" in done.stdout
    assert "caf\u00e9 \u2764\\u202eabc" in done.stdout
    assert not {"\x1b", "\x07", "\u202e", "\r", "\ufe0f"} & set(done.stdout)


def test_a_pipe_is_one_prompt_and_one_answer(room: Room) -> None:
    done = room.pipe("two\nlines\n/quit\n")
    assert (done.returncode, done.stdout) == (0, f"{HELLO}\n")
    assert questions(room) == ["two\nlines\n/quit"]
    assert done.stderr.startswith("[11 tokens, 7 read, first after ")
    assert not room.history.exists()
    room.engine.reasoning = "reasoning_content"
    done = room.pipe("x", "--reasoning", "--system", "Be short.")
    assert done.stdout == f"[reasoning] I weigh it.\n\n[answer] {HELLO}\n"
    assert room.engine.asked[1]["messages"][0]["content"] == "Be short."
    done = room.pipe("x", "--instant")
    assert room.engine.asked[2]["chat_template_kwargs"] == {"thinking": False}


@pytest.mark.parametrize(
    ("text", "more", "env", "code", "said"),
    [
        ("", [], {}, 2, "standard input has no prompt"),
        ("x", [], {"KIMI_API_KEY": ""}, 2, "no API key is given"),
        ("x", [], {"KIMI_API_KEY": "sk-wrong"}, 1, "HTTP 401"),
        ("x", ["--model", "other"], {}, 2, "take one of: kimi-k2.5"),
        ("x", ["--image", "nosuch"], {}, 2, "nosuch: No such file"),
        ("x", ["--tunnel"], {}, 2, "--tunnel: belongs to an inventory"),
    ],
)
def test_what_is_wrong_is_said(
    room: Room, text: str, more: list[str], env: dict[str, str], code: int, said: str
) -> None:
    done = room.pipe(text, *more, **env)
    assert (done.returncode, done.stdout) == (code, "")
    assert said in done.stderr
    assert "Traceback" not in done.stderr


def test_what_the_engine_refuses_is_told_in_its_words(room: Room) -> None:
    room.engine.refuses = (400, "the prompt is longer than the context \x1b[2J")
    done = room.pipe("x")
    assert done.returncode == 1
    assert "error: HTTP 400: the prompt is longer than the context \\x1b[2J" in done.stderr
    chat = room.terminal()
    chat.type("x\n")
    assert chat.shows("longer than the context")
    room.engine.refuses = None
    chat.type("y\n")
    assert chat.shows("tokens")
    # A question that was refused is not asked again with the next.
    assert [row["content"] for row in room.engine.asked[-1]["messages"][1:]] == ["y"]


@pytest.mark.parametrize("env", [{"NO_COLOR": "1"}, {"TERM": "dumb"}])
def test_without_colour_words_tell_reasoning_apart(room: Room, env: dict[str, str]) -> None:
    chat = room.terminal(**env)
    chat.type("x\n")
    assert chat.shows("tokens")
    assert "[reasoning] I weigh it.\r\n\r\n[answer] Hello from" in chat.text
    assert DIM not in chat.text


def test_a_certificate_of_another_authority_is_refused(room: Room) -> None:
    other = room.folder / "other.pem"
    other.write_text(tls.extract_certificates(tls.make_self_signed(["lab1"])))
    room.words[3] = other
    done = room.pipe("x")
    assert done.returncode == 1
    assert f"--ca {other}: " in done.stderr
    assert "self-signed certificate" in done.stderr
    assert room.engine.asked == []
