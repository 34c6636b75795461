"""A person at a browser who uses the web UI, and what the browser complains of."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from playwright.sync_api import Error, expect
from waiting import HANGS_S, until

if TYPE_CHECKING:
    from machines import Host
    from playwright.sync_api import Browser, BrowserContext, Page

PORT = 8443
HANGS_MS = HANGS_S * 1000
WIDE, NARROW = {"width": 1280, "height": 800}, {"width": 390, "height": 844}


class Visitor:
    """A person at a browser of their own, and what the browser complained of."""

    def __init__(self, browser: Browser, host: Host) -> None:
        self.address = f"https://{host.address}:{PORT}"
        self.context: BrowserContext = browser.new_context(
            ignore_https_errors=True, viewport=WIDE, base_url=self.address
        )
        self.context.set_default_timeout(HANGS_MS)
        self.page: Page = self.context.new_page()
        self.elsewhere: list[str] = []
        self.refused: list[str] = []
        self.page.on("request", self._asked)
        self.page.on("console", lambda said: self._told(said.text))

    def _asked(self, request: Any) -> None:
        if request.url.startswith(("http:", "https:")) and self.address not in request.url:
            self.elsewhere.append(request.url)

    def _told(self, text: str) -> None:
        if "Content Security Policy" in text or "violates" in text:
            self.refused.append(text)

    def log_in(self, who: tuple[str, str]) -> Visitor:
        self.page.goto("/auth")
        self.page.fill("input[type=email]", who[0])
        self.page.fill("input[type=password]", who[1])
        self.page.click("button[type=submit]")
        self.ready()
        return self

    def ready(self) -> None:
        """Wait for the field to ask in."""
        expect(self.page.locator("#chat-input")).to_be_visible(timeout=HANGS_MS)

    def ask(self, text: str) -> None:
        self.page.locator("#chat-input").click()
        self.page.keyboard.type(text)
        self.page.keyboard.press("Enter")

    def sees(self, text: str) -> None:
        expect(self.page.get_by_text(text).last).to_be_visible(timeout=HANGS_MS)

    def sees_no(self, text: str) -> None:
        expect(self.page.get_by_text(text)).to_have_count(0, timeout=HANGS_MS)

    def chat(self, question: str, answer: str) -> str:
        """Ask in a chat of its own until the answer is whole; return the chat's path."""
        self.page.goto("/")
        self.ready()
        self.ask(question)
        self.sees(answer)
        self.page.wait_for_url(re.compile("/c/"))
        # It is kept, too.
        path = self.page.url.removeprefix(self.address)
        assert until(lambda: answer in self.kept(path))
        return path

    def token(self) -> dict[str, str]:
        token = self.page.evaluate("localStorage.token")
        return {"Authorization": f"Bearer {token}"}

    def kept(self, path: str) -> str:
        """What the page has of a chat, as its own interface tells it."""
        name = path.rsplit("/", 1)[1]
        try:
            got = self.context.request.get(f"/api/v1/chats/{name}", headers=self.token())
        except Error:
            return ""
        return json.dumps(got.json()) if got.ok else f"status {got.status}"
