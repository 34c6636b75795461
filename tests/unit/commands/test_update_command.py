"""`kimi-prov update`: what is told of machines that were updated, or failed."""

import json

import closed_form
import pytest
from command_line import fails, gives, task

TOLD = {
    "ok": True,
    "detail": "1 packages installed, restarted",
    "installed": [
        {"name": "linux-image-amd64", "from": "6.1.76-1", "to": "6.1.119-1", "kind": "kernel"}
    ],
    "driver": None,
    "left": [
        {
            "name": "libfoo",
            "installed": "1",
            "candidate": "2",
            "kind": "security",
            "why": "held",
        }
    ],
    "restarted": True,
    "requests_cut": 2,
    "seconds_without_service": 83.4,
    "verified": True,
    "restart_reasons": [],
    "stale_units": ["kimi-proxy.service"],
}


def test_what_was_installed_is_told_as_a_document_and_as_text(kimi):
    nonsense = {"code": "failed", "message": "it answers nonsense", "fix": "look"}
    suite = {"ok": False, "checks": []}
    kimi.plays(
        task("kimi_verify", bad=fails("it answers nonsense", kimi=nonsense, kimi_document=suite)),
        task("kimi_update", gives(TOLD)),
    )
    done = kimi.run("update", kimi.hosts("good", "bad"), "--reboot-ok", "--format", "json")
    assert done.returncode == 1
    document = json.loads(done.stdout)
    closed_form.validate(document, "update")
    # What the acceptance suite said of it is told as the cause, and not as this document.
    assert document["hosts"]["bad"] == {"ok": False, "detail": "it answers nonsense"}
    text = kimi.run("update", kimi.hosts("good"))
    assert text.returncode == 0
    for words in (
        "linux-image-amd64 6.1.76-1 to 6.1.119-1",
        "libfoo 2 (security): held",
        "83 s without service; 2 requests were cut",
        "kimi-proxy run libraries that were replaced",
        "passed",
    ):
        assert words in text.stdout


@pytest.mark.parametrize(
    ("words", "given"),
    [
        ([], {}),
        (["--reboot-ok"], {"update_reboot_ok": True}),
        (["--defer-restart"], {"update_defer_restart": True}),
        (["--bundle", "/srv/b"], {"kimi_bundle": "/srv/b"}),
    ],
)
def test_what_is_not_given_is_the_inventorys_to_say(kimi, words, given):
    asked = []

    def noted(task):
        asked.append(dict(task.variables))
        return gives(TOLD)

    kimi.plays(task("kimi_update", noted))
    assert kimi.run("update", kimi.hosts("one"), *words).returncode == 0
    assert asked == [given]


def test_a_restart_is_not_allowed_and_deferred_at_once(kimi):
    done = kimi.run("update", kimi.hosts("good"), "--reboot-ok", "--defer-restart")
    assert done.returncode == 2
    assert "exclude each other" in done.stderr
    assert not kimi.runs.exists()
