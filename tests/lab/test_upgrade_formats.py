"""A model changed to another format and back, by apply and by hand; what clean frees then."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import closed_form
import pytest
from machines import kimi_prov
from upgrades import INT4, Shaken, changed, history, streaming

from kimi_prov.contract import paths

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

pytestmark = [pytest.mark.lab, pytest.mark.slow]

NATIVE = {"kimi_model": INT4, "kimi_weights_source": f"file:///opt/models/{INT4}"}


def test_another_format_and_back(
    shaken: Shaken, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    host = shaken.host
    settled = changed(host, tmp_path, {})
    assert settled.returncode == 0, settled.stdout + settled.stderr
    first = history(host)["current"]

    def served(label: str) -> tuple[str, str, str]:
        found = history(host)
        last = found["entries"][-1]
        assert (last["result"], found["switch"]) == ("done", None)
        record_property(label, (last["speed_before"], last["speed"]))
        verified = kimi_prov("verify", host.inventory, "--limit", host.name)
        assert verified.returncode == 0, verified.stdout + verified.stderr
        link = host.ssh(f"readlink {paths.ENGINE}").strip().rpartition("/")[2]
        assert last["serves"]["env_name"] == link
        assert f"{paths.ENGINES}/{link}/" in shaken.argv()
        return last["serves"]["model"], last["serves"]["format"], link

    with streaming(host, record_property):
        done = changed(host, tmp_path, NATIVE)
    assert done.returncode == 0, done.stdout + done.stderr
    model, form, with_experts = served("to INT4")
    assert (model, form) == (INT4, "int4")
    native = history(host)["current"]

    with streaming(host, record_property):
        done = changed(host, tmp_path, {})
    assert done.returncode == 0, done.stdout + done.stderr
    model, form, plain = served("to BF16")
    assert (model, form) == ("kimi-k2-lab", "bf16")
    assert plain != with_experts

    for number, expected in ((native, INT4), (history(host)["current"], "kimi-k2-lab")):
        words = ("--limit", host.name, "--to", str(number))
        with streaming(host, record_property):
            back = kimi_prov("rollback", host.inventory, *words)
        assert back.returncode == 0, back.stdout + back.stderr
        last = history(host)["entries"][-1]
        assert (last["kind"], last["restores"]) == ("rollback", number)
        assert served(f"rolled back to entry {number}")[0] == expected

    again = kimi_prov("rollback", host.inventory, "--limit", host.name, "--to", str(first))
    assert again.returncode == 1
    assert "is what is in place" in again.stderr
    assert "changed=0" in changed(host, tmp_path, {}).stdout


def test_clean_frees_all_but_the_two_versions(shaken: Shaken) -> None:
    host = shaken.host
    left = f"{paths.MODELS}/other/r"
    host.ssh(f"mkdir -p {left} && head -c 3000000 /dev/zero > {left}/shard")
    words = ("clean", host.inventory, "--limit", host.name, "--format", "json")
    told = json.loads(kimi_prov(*words, "--check").stdout)
    closed_form.validate(told, "clean")
    items = told["hosts"][host.name]["items"]
    assert left in [item["path"] for item in items]
    assert not [item for item in items if "kimi-k2-lab/" in item["path"] or INT4 in item["path"]]
    assert host.ssh(f"ls {left}").strip() == "shard"
    before = shaken.disk.free_bytes
    done = json.loads(kimi_prov(*words, "--yes").stdout)
    found = done["hosts"][host.name]
    assert found["removed"]
    assert found["bytes"] >= 3_000_000
    # The disk itself says so; logs grow meanwhile.
    assert shaken.disk.free_bytes - before > 0.9 * found["bytes"] - (1 << 20)
    assert not host.ssh(f"ls {left}", check=False).strip()
    assert shaken.answers()
    kept = [row for row in history(host)["entries"] if row["restorable"]]
    assert {row["serves"]["model"] for row in kept} == {"kimi-k2-lab", INT4}
