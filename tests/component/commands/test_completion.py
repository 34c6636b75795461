"""Completion as a shell does it: bash loads what kimi-prov prints, and asks it."""

import os
import shutil
import subprocess

import pytest

ASK = """
eval "$(kimi-prov completion bash)" || exit 9
COMP_WORDS=({words})
COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
COMP_LINE="${{COMP_WORDS[*]}}"
COMP_POINT=${{#COMP_LINE}}
registered=$(complete -p kimi-prov) || exit 8
[[ $registered =~ -F\\ ([^ ]+) ]] || exit 7
"${{BASH_REMATCH[1]}}" kimi-prov
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        ("kimi-prov st", {"start", "status", "stop"}),
        ("kimi-prov status --sb", {"--sbom"}),
        ("kimi-prov check --format ht", {"html"}),
        ("kimi-prov lab s", {"ssh"}),
    ],
)
def test_bash_completes_commands_options_and_values(installed, words, offered):
    folder = installed.home / "bin"
    folder.mkdir()
    program = folder / "kimi-prov"
    python, *rest = installed.argv()
    program.write_text(f"#!{python}\n{rest[1]}\n")
    program.chmod(0o755)
    path = f"{folder}{os.pathsep}{installed.environment['PATH']}"
    done = subprocess.run(
        [shutil.which("bash") or "bash", "--norc", "--noprofile", "-c", ASK.format(words=words)],
        capture_output=True,
        text=True,
        check=False,
        cwd=installed.home,
        env={**installed.environment, "PATH": path},
        timeout=60,
    )
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) == offered
