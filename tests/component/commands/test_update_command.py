"""`kimi-prov update`: what is told of machines that were updated, or failed."""

import json

import closed_form
import pytest

TOLD = """
- hosts: kimi
  gather_facts: false
  tasks:
    - ansible.builtin.fail:
        msg: >-
          {{ update_reboot_ok | default('unset') }} {{ update_defer_restart | default('unset') }}
      when: inventory_hostname == 'asked'
    - kimi_verify:
        failed: true
        msg: it answers nonsense
        kimi: {code: failed, message: it answers nonsense, fix: look}
        kimi_document: {ok: false, checks: []}
      when: inventory_hostname == 'bad'
    - kimi_status:
        kimi_document: "{{ told }}"
  vars:
    told:
      ok: true
      detail: 1 packages installed, restarted
      installed: [{name: linux-image-amd64, from: 6.1.76-1, to: 6.1.119-1, kind: kernel}]
      driver: null
      left: [{name: libfoo, installed: '1', candidate: '2', kind: security, held: true, why: held}]
      restarted: true
      requests_cut: 2
      seconds_without_service: 83.4
      verified: true
      restart_reasons: []
      stale_units: [kimi-proxy.service]
"""


def test_what_was_installed_is_told_as_a_document_and_as_text(installed, local):
    installed.playbook("update", TOLD)
    done = installed.run("update", local("good", "bad"), "--reboot-ok", "--format", "json")
    assert done.returncode == 1
    document = json.loads(done.stdout)
    closed_form.validate(document, "update")
    # What the acceptance suite said of it is told as the cause, and not as this document.
    assert document["hosts"]["bad"] == {"ok": False, "detail": "it answers nonsense"}
    text = installed.run("update", local("good"))
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
    [([], "unset unset"), (["--reboot-ok"], "True unset"), (["--defer-restart"], "unset True")],
)
def test_what_is_not_given_is_the_inventorys_to_say(installed, local, words, given):
    installed.playbook("update", TOLD)
    done = installed.run("update", local("asked"), *words)
    assert done.returncode == 1
    assert given in done.stdout + done.stderr


def test_a_restart_is_not_allowed_and_deferred_at_once(installed, local):
    done = installed.run("update", local("good"), "--reboot-ok", "--defer-restart")
    assert done.returncode == 2
    assert "exclude each other" in done.stderr
    assert not installed.runs.exists()
