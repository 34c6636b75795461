"""KTransformers installed for real: 9.5 GB of packages, its CUDA kernels, its parser, its CPU side.

The card is a recorded one: nothing is computed on a GPU here, and the server is not started.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from machines import CHECKOUT, Host, kimi_prov, make_lab

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.lab, pytest.mark.slow]

CARD = CHECKOUT / "tests" / "data" / "recordings" / "h200-x1"
TAGS = ("--tags", "host_base,engine")


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    lab = make_lab(
        tmp_path_factory.mktemp("kt") / "inv",
        "10.93.72",
        nodes=["hybrid"],
        files=[{"src": f"nvidia-smi:{CARD}", "dest": "/usr/bin/nvidia-smi"}],
        kimi_engine="ktransformers",
    )
    lab.up()
    try:
        host = lab.hosts["hybrid"]
        done = kimi_prov("apply", lab.inventory, *TAGS, timeout=2400)
        assert done.returncode == 0, done.stdout + done.stderr
        yield host
    finally:
        lab.down()


def test_the_environment_is_whole_and_its_programs_run(installed: Host) -> None:
    env = "/srv/kimi/engine"
    assert "ktransformers-cuda-0.7.2" in installed.ssh(f"readlink {env}")
    assert "0.7.2" in installed.ssh(f"{env}/bin/kt version", timeout=300)
    names = installed.ssh(f"ls {env}/lib/python3.11/site-packages")
    assert "sglang_kt-0.7.2.dist-info" in names
    assert "\nsglang-0" not in names


def test_the_cuda_kernels_lie_where_the_service_verifies_them(installed: Host) -> None:
    found = installed.ssh("find /srv/kimi/cache/kt-cuda -name '*.so' -printf '%u %f\\n'")
    assert "kimi common_ops.abi3.so" in found
    assert "kimi flash_ops.abi3.so" in found


def test_a_layer_is_computed_right_on_this_cpu(installed: Host) -> None:
    told = installed.ssh(
        "cd / && runuser -u kimi -- env SGL_KERNEL_KT_CACHE_DIR=/srv/kimi/cache/kt-cuda "
        "/srv/kimi/engine/bin/python /srv/kimi/lib/kimi-target.pyz kt-prove",
        timeout=600,
    )
    answer = json.loads(told.splitlines()[-1])
    # 0.0096 and 0.012 were seen; a broken kernel is far off.
    assert 0 < answer["error"] <= 0.02
    assert answer["variant"]


def test_its_parser_took_the_line_of_the_plan_and_refuses_another(installed: Host) -> None:
    again = kimi_prov("apply", installed.inventory, *TAGS, timeout=900)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "changed=0" in again.stdout + again.stderr
    wrong = installed.inventory / "wrong.json"
    wrong.write_text(json.dumps({"kimi_engine_args": {"kt-cpu-infer": 4}}))
    refused = kimi_prov("apply", installed.inventory, *TAGS, "-e", f"@{wrong}", timeout=900)
    assert refused.returncode == 3, refused.stdout + refused.stderr
    assert "kt-cpu-infer" in refused.stdout + refused.stderr
