import json
import resource
import shlex
import subprocess
import sys

import pytest

PLAN = """
- hosts: kimi
  gather_facts: false
  tasks:
    - kimi_plan:
        kimi_document: {findings: [{severity: SEVERITY, id: x}], model: {name: m}}
"""
ASK = """
- hosts: kimi
  gather_facts: false
  tasks:
    - kimi_COMMAND:
        failed: "{{ inventory_hostname == 'bad' }}"
        msg: it did not pass
        kimi: {code: failed}
        kimi_document: "{{ docs[inventory_hostname] }}"
  vars:
    docs:
      good: {ok: true, detail: fine, provisioned: false, endpoint: u, vantage: control,
             vantage_reason: r, checks: [], stand_ins: []}
      bad: {ok: false, detail: broken, provisioned: false, endpoint: u, vantage: control,
            vantage_reason: r, checks: [], stand_ins: []}
"""


def kept_codes(installed):
    """Give exit codes that result.json of each run has: the command's, and the playbook's."""
    kept = [json.loads(path.read_text()) for path in installed.runs.glob("*/result.json")]
    return [(row["exit_code"], row["playbook_exit_code"]) for row in kept]


def quiet(done):
    assert "Traceback" not in done.stderr + done.stdout
    return done


def test_help_is_there_at_once(installed):
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    done = installed.run("--help")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    assert done.returncode == 0
    for command in ("plan", "apply", "verify", "status", "bench", "contribute", "key", "destroy"):
        assert f"  {command} " in done.stdout
    assert all(f"  {command} " in done.stdout for command in ("lab", "init", "probe", "catalog"))
    # Processor time: the clock on the wall also counts what else the machine does.
    assert after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime < 0.3


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["frobnicate"], "No such command"),
        (["apply"], "INVENTORY"),
        (["apply", "nosuch"], "nosuch: there is no such inventory"),
        (["plan", "nosuch", "--format", "xml"], "xml"),
        (["apply", "hosts.yml", "-e", "a=1"], "-e a"),
        (["apply", "hosts.yml", "-e", "@nosuch.yml"], "no such file"),
        (["apply", "hosts.yml", "--limit", "nobody"], "nobody"),
        (["status", "hosts.yml", "--output", "no/such/folder/x"], "--output"),
        (["destroy", "hosts.yml"], "--yes"),
        (["lab", "list", "hosts.yml"], "hosts.yml"),
        (["lab", "ssh"], "INVENTORY"),
        (["probe", "--output", "no/such/x"], "--output"),
        (["probe", "--bundle", "/proc/x.pyz"], "/proc/x.pyz"),
    ],
)
def test_bad_input_is_one_message_and_exit_2(installed, local, words, said):
    local("one")
    done = quiet(installed.run(*words))
    assert done.returncode == 2
    assert said in done.stderr
    assert done.stdout == ""


DESTROY = """
- hosts: kimi
  gather_facts: false
  tasks:
    - kimi_status: {kimi_document: {kept: ["purge={{ destroy_purge_weights }}"]}}
"""


@pytest.mark.parametrize("words", [[], ["--limit", "b", "--purge-weights"]])
def test_what_destroy_wants_without_a_terminal_is_a_command_that_works(installed, local, words):
    installed.playbook("destroy", DESTROY)
    local("a", "b").rename(installed.home / "our hosts.yml")
    done = quiet(installed.run("destroy", "our hosts.yml", *words))
    assert done.returncode == 2
    fix = shlex.split(done.stderr.split("kimi-prov ", 1)[1])
    done = quiet(installed.run(*fix))
    assert done.returncode == 0, done.stderr
    hosts = words[1].split(",") if words else ["a", "b"]
    assert [line[0] for line in done.stdout.splitlines() if "keeps" in line] == hosts
    assert ("purge=True" in done.stdout) is ("--purge-weights" in words)


@pytest.mark.parametrize("word", ["deploy", "destry", "destory", "DESTROY"])
def test_no_other_word_has_destroy_proposed_for_it(installed, word):
    done = quiet(installed.run(word, "x"))
    assert done.returncode == 2
    assert f"No such command '{word}'" in done.stderr
    assert "destroy" not in done.stderr.replace(word, "")


def test_it_runs_as_a_module_too(installed):
    done = subprocess.run(
        [sys.executable, "-m", "kimi_prov", "check"],
        check=False,
        capture_output=True,
        text=True,
        cwd=installed.home,
        env=installed.environment,
    )
    assert done.returncode == 2
    assert done.stderr.startswith("error: there is nothing to check")


@pytest.mark.parametrize(("severity", "code"), [("warning", 0), ("blocker", 3)])
def test_plan_prints_json_alone_and_exits_3_when_blocked(installed, local, severity, code):
    installed.playbook("plan", PLAN.replace("SEVERITY", severity))
    done = quiet(installed.run("plan", local("a", "b"), "--format", "json"))
    assert done.returncode == code
    document = json.loads(done.stdout)
    assert document["schema"] == "kimi-prov/plan/v1"
    assert sorted(document["hosts"]) == ["a", "b"]
    assert kept_codes(installed) == [(code, 0)]


FOUND = """
- hosts: kimi
  gather_facts: false
  tasks:
    - kimi_status:
        warnings: ["a rule in chain c drops port 8000: clients may be kept out", "another matter"]
        kimi: {findings: ["{{ row }}", "{{ row | combine({'severity': 'pass', 'id': 'quiet'}) }}"]}
    - kimi_status: {kimi: {findings: ["{{ row | combine({'id': 'of.loop'}) }}"]}}
      loop: [1, 2]
  vars:
    row: {id: firewall.dropped_elsewhere, severity: warning, title: Another rule drops,
          observed: a rule in chain c drops port 8000, required: it accepted,
          fix: accept it with sk-kimi-canary00, source: nft}
"""


def test_what_a_plugin_finds_on_success_is_shown_and_kept(installed, local):
    installed.playbook("site", FOUND)
    done = quiet(installed.run("apply", local("box")))
    assert done.returncode == 0
    assert (
        "warning: box\n"
        "  why: Another rule drops (firewall.dropped_elsewhere)\n"
        "  found: a rule in chain c drops port 8000\n"
    ) in done.stderr
    assert done.stderr.count("(of.loop)") == 1
    assert "(quiet)" not in done.stderr
    # What plain ansible-playbook is warned of is not said a second time; all else is.
    assert "kept out" not in done.stderr
    assert "warning: box: another matter" in done.stderr
    assert "canary" not in done.stderr
    (path,) = installed.runs.glob("*/result.json")
    kept = json.loads(path.read_text())["findings"]
    assert [(row["host"], row["id"], row["severity"]) for row in kept] == [
        ("box", "firewall.dropped_elsewhere", "warning"),
        ("box", "quiet", "pass"),
        ("box", "of.loop", "warning"),
    ]


@pytest.mark.parametrize("command", ["verify", "status"])
def test_reports_are_merged_and_a_host_that_fails_decides(installed, local, command):
    installed.playbook(command, ASK.replace("COMMAND", command))
    done = quiet(installed.run(command, local("good", "bad"), "--format", "json"))
    assert done.returncode == 1
    document = json.loads(done.stdout)
    assert document["schema"] == f"kimi-prov/{command}/v1"
    assert document["ok"] is False
    assert {name: host["ok"] for name, host in document["hosts"].items()} == {
        "good": True,
        "bad": False,
    }


BENCH = """
- hosts: kimi
  gather_facts: false
  tasks:
    - name: Report
      kimi_status:
        kimi_document: {ok: true, detail: measured, normal: null, model: m,
                        measured_at: "2026-11-21", load: {average: 0, busy: false},
                        engine: {name: e, variant: v, version: "1"},
                        memory: {bytes_per_s: 8}, layer: {available: false, reason: none},
                        serve: {input_tokens: 1, output_tokens: 1,
                                levels: [{concurrency: 1, aggregate_tok_s: 4}]},
                        compared: [], basis: b, look_at: [], last: null, stand_ins: []}
"""


def test_a_second_bench_is_compared_with_the_first_of_the_same_host(installed, local):
    installed.playbook("bench", BENCH)
    told = []
    for _ in range(2):
        done = quiet(installed.run("bench", local("a", "b"), "--format", "json"))
        assert done.returncode == 0
        told.append(json.loads(done.stdout))
    assert told[0]["schema"] == "kimi-prov/bench/v1"
    assert [host["last"] for host in told[0]["hosts"].values()] == [None, None]
    for host in told[1]["hosts"].values():
        assert {row["name"]: row["change"] for row in host["last"]["rows"]} == {
            "memory": 0.0,
            "1 at once": 0.0,
        }


def test_a_report_may_go_to_a_file(installed, local):
    installed.playbook("status", ASK.replace("COMMAND", "status"))
    done = quiet(installed.run("status", local("good"), "--output", "out.txt"))
    assert (done.returncode, done.stdout) == (0, "")
    assert "good" in (installed.home / "out.txt").read_text()


def test_a_host_that_is_away_is_in_the_report_and_in_the_exit_code(installed):
    installed.playbook("status", "- {hosts: kimi, gather_facts: false, tasks: [{command: uptime}]}")
    path = installed.home / "far.yml"
    # A module that is piped to an ssh that has just ended may hide ssh's reason, on a busy machine.
    path.write_text(
        "kimi: {hosts: {far: "
        "{ansible_host: 127.0.0.1, ansible_port: 9, ansible_pipelining: false}}}\n"
    )
    done = quiet(installed.run("status", path, "--format", "json"))
    assert done.returncode == 4
    assert "refused the connection" in json.loads(done.stdout)["hosts"]["far"]["detail"]


def test_the_key_reaches_the_screen_and_nothing_else(installed, local):
    done = quiet(installed.run("key", local("new", "seen"), "--rotate"))
    assert (done.returncode, done.stdout) == (1, "new sk-kimi-canary-once\n")
    assert "seen: shown before" in done.stderr
    assert kept_codes(installed) == [(1, 0)]
    kept = [p for p in installed.home.rglob("*") if p.is_file()]
    assert [p for p in kept if b"canary" in p.read_bytes()] == []


def test_the_api_keys_come_before_the_administrators_of_pages(installed, local):
    done = quiet(installed.run("key", local("page", "new")))
    assert done.returncode == 0
    *keys, last = done.stdout.splitlines()
    assert sorted(keys) == ["new sk-kimi-canary-once", "page sk-kimi-canary-once"]
    assert last == "page admin@lab.test canary-page"


def test_apply_ends_with_what_is_served_and_where_the_time_went(installed, local):
    installed.playbook(
        "site",
        """
- hosts: kimi
  gather_facts: false
  tasks:
    - kimi_plan:
        kimi_document:
          findings: []
          engine: {name: vllm, version: 1.2.3, variant: cpu}
          model: {name: kimi-k2-lab, served_names: [kimi], bytes: 12000000, context: 2048,
                  random_weights: true}
          proxy: {port: 8000}
    - command: sleep 0.1
""",
    )
    done = quiet(installed.run("apply", local("a")))
    assert done.returncode == 0, done.stderr
    for part in ("changed=1", "https://127.0.0.1:8000/v1", "kimi-k2-lab", "vllm 1.2.3", "in all"):
        assert part in done.stdout
    assert "random weights" in done.stdout
    assert "\x1b" not in done.stdout + done.stderr
    assert max(map(len, done.stdout.splitlines()[:-2])) <= 80


def test_probe_describes_this_machine_and_makes_its_bundle(installed):
    done = quiet(installed.run("probe"))
    assert done.returncode == 0
    assert json.loads(done.stdout)["schema"] == "kimi-prov/facts/v1"
    done = installed.run("probe", "--bundle", "probe.pyz")
    assert done.returncode == 0
    facts = subprocess.run(
        ["/usr/bin/python3", "probe.pyz"], cwd=installed.home, check=True, capture_output=True
    )
    assert json.loads(facts.stdout)["schema"] == "kimi-prov/facts/v1"


def test_a_bug_is_one_line_and_a_file(installed, local):
    broken = installed.site / "kimi_prov" / "commands" / "common" / "playbook_run.py"
    broken.write_text("raise RuntimeError('it hides sk-kimi-canary')\n")
    done = installed.run("plan", local("a"))
    assert done.returncode == 1
    assert "Traceback" not in done.stderr
    crash = installed.home / "state" / "kimi-prov" / "crash.log"
    assert "RuntimeError" in crash.read_text()
    assert "canary" not in crash.read_text() + done.stderr
