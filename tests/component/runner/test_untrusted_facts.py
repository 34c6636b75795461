"""Words that come from a machine are never templates, whatever stands in them."""

from __future__ import annotations

import json

from kimi_prov.packaging.resources import find_root

# As the role `plan` hands facts on, and as `host_base` and `proxy` use them.
TASKS = """
- ansible.builtin.slurp:
    src: {facts}
  register: answered
- ansible.builtin.set_fact:
    kimi_facts: "{{{{ answered.content | b64decode | from_json }}}}"
- ansible.builtin.set_fact:
    asked: "{{{{ kimi_facts.host.os.codename ~ '-updates' }}}}"
- ansible.builtin.template:
    src: {template}
    dest: {made}
  vars:
    kimi_plan: {{site: {{apt_mirror: http://mirror.example}}}}
    __host_base_suites: ["{{{{ asked }}}}"]
"""


def test_facts_are_data(play, tmp_path):
    ran = tmp_path / "ran"
    poison = f"{{{{ lookup('ansible.builtin.pipe', 'touch {ran}') }}}}"
    facts, made = tmp_path / "facts.json", tmp_path / "made"
    facts.write_text(json.dumps({"host": {"os": {"id": "ubuntu", "codename": poison}}}))
    template = find_root() / "roles/host_base/templates/apt.sources.j2"
    play(TASKS.format(facts=facts, template=template, made=made))
    assert not ran.exists()
    assert f"Suites: {poison}-updates" in made.read_text()
