"""Kimi's native INT4 on a machine without a GPU: the plugin installed, served, and right.

`apply` takes what the planner does, the own kernel; kt-kernel is asked for on the same host.
"""

from __future__ import annotations

import json
import re
import shutil
import statistics
import struct
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml
from machines import kimi_prov, make_lab, newest_run

from kimi_prov.lab import model as lab_model

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from machines import Host

pytestmark = [pytest.mark.lab, pytest.mark.slow]

MODEL = "kimi-k2-lab-int4"
ENGINE = "/srv/kimi/engine/bin/python"
LOGPROBS = Path(__file__).parent / "data" / "logprobs.py"
AIM = 0.005
# In the mean: 0.0004 were seen, and 0.0032 without experts.
DENSE_AIM = 0.001
# The lab's model is far surer of itself than a real one: its head is made smaller by 2**-8, where
# experts that are missing move a logprob by some hundredths.
FLATTENED = 8


@pytest.fixture(scope="module")
def int4_host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    """A machine that serves the tiny model in INT4, by one apply."""
    lab = make_lab(
        tmp_path_factory.mktemp("kt") / "inv",
        "10.93.50",
        nodes=["xeon1"],
        kimi_model=MODEL,
        kimi_experts="auto",
        kimi_weights_source=f"file:///opt/models/{MODEL}",
        kimi_allowed_networks=["{{ lab_gateway }}/32", "{{ lab_gateway6 }}/128"],
        lab_files=[
            {"src": f"model:{MODEL}", "dest": f"/opt/models/{MODEL}"},
            {"src": "../probes", "dest": "/opt/probes"},
        ],
    )
    make_probes(lab.inventory.parent / "probes")  # beside it: Ansible reads what is within
    lab.up()
    try:
        host = lab.hosts["xeon1"]
        done = host.apply()
        assert done.returncode == 0, done.stdout + done.stderr
        yield host
    finally:
        lab.down()


def serves_by(host: Host, name: str) -> str:
    """The host answers as planned, its experts computed by `name`; gives the engine's log."""
    plan = json.loads(host.ssh("cat /etc/kimi/plan.json"))
    assert plan["experts"]["by"] == name
    done = kimi_prov("verify", host.inventory)
    assert done.returncode == 0, done.stdout + done.stderr
    # The unit's present run alone: another kernel may have served before.
    started = "$(systemctl show -P InvocationID kimi-serve@0)"
    return host.ssh(f"journalctl -o cat _SYSTEMD_INVOCATION_ID={started}")


def nothing_changes(host: Host) -> None:
    """A second apply finds all as the first left it."""
    done = host.apply()
    assert done.returncode == 0, done.stdout + done.stderr
    result = json.loads((newest_run(host.inventory) / "result.json").read_text())
    assert result["hosts"][host.name]["changed"] == 0


def test_what_the_planner_takes_answers_and_tells_each_layer(int4_host: Host) -> None:
    log = serves_by(int4_host, "native")
    assert "own kernel for " in log
    assert "experts of layer 2 (2 of 2) in the own kernel for " in log


def test_apply_compiled_the_kernel_and_a_second_changes_nothing(int4_host: Host) -> None:
    proven = int4_host.ssh(f"{ENGINE} -I -m kimi_kt_experts.prove")
    assert "avx2: off by 0.0" in proven
    nothing_changes(int4_host)


def test_what_cannot_work_is_refused_in_one_line(int4_host: Host) -> None:
    told = int4_host.ssh(
        f"cd /tmp; KIMI_EXPERTS=amx timeout 200 {ENGINE} -m vllm.entrypoints.openai.api_server "
        "--model /nowhere 2>&1; echo rc $?",
        timeout=240,
    )
    lines = told.strip().splitlines()
    assert lines[-1] == "rc 1"
    needed = "one of native, kt, vllm, off"
    assert lines[-2] == f"kimi-kt-experts: KIMI_EXPERTS is 'amx'; needed: {needed}"


def rewritten(folder: Path, change: Callable[[str, bytes], bytes]) -> None:
    """Change tensors of a model in place, each by its name."""
    for path in folder.glob("*.safetensors"):
        data = path.read_bytes()
        start = 8 + int.from_bytes(data[:8], "little")
        rows = json.loads(data[8:start])
        rows.pop("__metadata__")
        body = b"".join(
            change(name, data[start + row["data_offsets"][0] : start + row["data_offsets"][1]])
            for name, row in rows.items()
        )
        path.write_bytes(data[:start] + body)


def flattened(name: str, data: bytes) -> bytes:
    """The head made smaller by a power of two: exact, but for values that become zero."""
    if name != "lm_head.weight":
        return data
    halves = memoryview(data).cast("H")
    small = [
        half - (FLATTENED << 7) if (half >> 7 & 255) > FLATTENED else half & 0x8000
        for half in halves
    ]
    return struct.pack(f"<{len(small)}H", *small)


def without_experts(name: str, data: bytes) -> bytes:
    """Every scale zero: nothing comes of the routed experts."""
    return bytes(len(data)) if name.endswith("weight_scale") else data


def exchanged(folder: Path) -> None:
    """Each expert under its neighbour's name."""
    for path in folder.iterdir():
        if path.suffix == ".safetensors" or path.name.endswith("index.json"):
            other = re.sub(
                rb"experts\.(\d)\.", lambda m: b"experts.%d." % (int(m[1]) ^ 1), path.read_bytes()
            )
            path.write_bytes(other)


def make_probes(folder: Path) -> None:
    """The models that are compared, beside each other in a folder."""
    for form in ("int4", "dequantised"):
        lab_model.make_model(folder / form, form)
        rewritten(folder / form, flattened)
    for name in ("missing", "exchanged"):
        shutil.copytree(folder / "int4", folder / name)
    rewritten(folder / "missing", without_experts)
    exchanged(folder / "exchanged")


@contextmanager
def applied(host: Host, **wishes: str) -> Iterator[None]:
    """The host after an apply with these over the inventory's variables, which come back."""
    variables = host.inventory / "group_vars" / "kimi.yml"
    before = variables.read_text()
    variables.write_text(yaml.safe_dump(yaml.safe_load(before) | wishes))
    try:
        done = host.apply()
        assert done.returncode == 0, done.stdout + done.stderr
        yield
    finally:
        variables.write_text(before)


def test_kt_kernel_answers_and_is_where_the_plan_put_it(int4_host: Host) -> None:
    with applied(int4_host, kimi_experts="kt"):
        log = serves_by(int4_host, "kt-kernel")
        assert "kt-kernel build " in log
        assert "experts of layer 2 (2 of 2) in kt-kernel's " in log
        plan = json.loads(int4_host.ssh("cat /etc/kimi/plan.json"))
        assert plan["instances"][0]["numactl"][0] == "numactl"
        nothing_changes(int4_host)


def test_dense_weights_in_int8_are_served_where_they_are_asked_for(int4_host: Host) -> None:
    with applied(int4_host, kimi_dense_weights="int8"):
        log = serves_by(int4_host, "native")
        # Five matrices of each of three layers, and the head.
        assert "dense weights in int8 by the own kernel for " in log
        assert ": 16 matrices, " in log


def test_the_logprobs_are_those_of_the_same_weights_in_bf16(int4_host: Host) -> None:
    int4_host.ssh("cat > /tmp/logprobs.py <<'EOF'\n" + LOGPROBS.read_text() + "\nEOF")

    def ask(model: str, **env: str) -> list[float]:
        given = {"VLLM_CPU_OMP_THREADS_BIND": "1", "KIMI_KT_IDLE": "0", "KIMI_KT_THREADS": "2"}
        told = " ".join(f"{key}={value}" for key, value in (given | env).items())
        text = int4_host.ssh(
            f"cd /tmp && {told} {ENGINE} logprobs.py /opt/probes/{model} 2>logprobs.err "
            "| sed -n 's/^LOGPROBS //p'; tail -3 logprobs.err >&2",
            timeout=900,
        )
        return [float(value) for value in json.loads(text)]

    right = ask("dequantised", KIMI_EXPERTS="off")

    def apart(found: list[float]) -> float:
        return max(abs(a - b) for a, b in zip(right, found, strict=True))

    def mean(found: list[float]) -> float:
        return statistics.fmean(abs(a - b) for a, b in zip(right, found, strict=True))

    assert apart(ask("int4", KIMI_EXPERTS="native")) <= AIM
    assert apart(ask("int4", KIMI_EXPERTS="kt", KIMI_KT_THREADS="1")) <= AIM
    # Two slices: two pools, here both on the one node.
    assert apart(ask("int4", KIMI_EXPERTS="kt", KIMI_KT_NODES="0,0")) <= AIM
    # Dense weights in int8 are farther off, and in the mean far nearer than missing experts.
    assert mean(ask("int4", KIMI_DENSE="int8")) <= DENSE_AIM
    # The same test sees experts that are missing or wrong.
    missing = ask("missing")
    assert apart(missing) > 2 * AIM
    assert mean(missing) > 2 * DENSE_AIM
    assert apart(ask("exchanged")) > 2 * AIM
