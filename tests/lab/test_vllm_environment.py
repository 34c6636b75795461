"""vLLM for CUDA installed for real: 10 GB of packages from its lock, its own parser, its torch.

The card is a recorded one: nothing is computed on a GPU here, and the server is not started.
"""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import pytest
from machines import CHECKOUT, Host, kimi_prov, make_lab

from kimi_prov.catalog.loader import load_catalogue
from kimi_prov.facts import recording
from kimi_prov.packaging import lock_files
from kimi_prov.planner.plan import make_plan
from kimi_prov.planner.settings.parsing import parse_settings

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = [pytest.mark.lab, pytest.mark.slow]

VERSION = "0.25.1"
LOCK = f"vllm-cuda-{VERSION}-cp311.txt"
RECORDINGS = CHECKOUT / "tests" / "data" / "recordings"
TAGS = ("--tags", "host_base,engine")
ENV = "/srv/kimi/engine"
# What vLLM's libraries want of libcuda.so.1 when they are loaded (nm -D --undefined-only).
OF_LIBCUDA = (
    *("cuGetProcAddress_v2", "cuPointerGetAttribute", "cuTensorMapEncodeTiled"),
    *("cuCtxGetCurrent", "cuCtxSetCurrent", "cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain"),
    *("cuGetErrorString", "cuMemAddressFree", "cuMemAddressReserve", "cuMemCreate"),
    *("cuMemGetAllocationGranularity", "cuMemMap", "cuMemRelease", "cuMemSetAccess"),
    *("cuMemUnmap",),
)
INSTALLED = """
import importlib.metadata, json
print(json.dumps({d.name: d.version for d in importlib.metadata.distributions()}))
"""
TORCH = "import json, torch; print(json.dumps([torch.__version__, torch.version.cuda]))"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Host]:
    lab = make_lab(
        tmp_path_factory.mktemp("vllm") / "inv",
        "10.93.81",
        nodes=["cuda"],
        files=[{"src": f"nvidia-smi:{RECORDINGS / 'h200-x1'}", "dest": "/usr/bin/nvidia-smi"}],
        kimi_engine_version=VERSION,
    )
    try:
        lab.up()
        host = lab.hosts["cuda"]
        done = kimi_prov("apply", lab.inventory, "--tags", "host_base", timeout=900)
        assert done.returncode == 0, done.stdout + done.stderr
        stand_in_for_the_driver(host)
        done = kimi_prov("apply", lab.inventory, *TAGS, timeout=3000)
        assert done.returncode == 0, done.stdout + done.stderr
        yield host
    finally:
        lab.down()


def stand_in_for_the_driver(host: Host) -> None:
    """What vLLM's parser loads of a driver: a library that says no to all, and a board's name.

    Without NVML vLLM believes the file that NVIDIA's own boards have.
    """
    source = "".join(f"int {name}(void) {{ return 100; }}\n" for name in OF_LIBCUDA)
    host.ssh(
        f"printf {shlex.quote(source)} > /tmp/cuda.c && "
        "gcc -shared -fPIC -Wl,-soname,libcuda.so.1 -o /usr/lib/libcuda.so.1 /tmp/cuda.c && "
        "ldconfig && touch /etc/nv_tegra_release"
    )


def asked(host: Host, program: str) -> Any:
    """What a program says that the environment's python runs, as the user of the service."""
    python = shlex.join([f"{ENV}/bin/python", "-c", program])
    told = host.ssh(f"cd / && runuser -u kimi -- env HOME=/tmp {python}", timeout=600)
    return json.loads(told.splitlines()[-1])


def check(host: Host, *instances: dict[str, Any]) -> dict[str, Any]:
    """What `apply` is told of command lines, before it writes a unit."""
    own = host.ssh(f"readlink -f {ENV}").strip()
    lines = [
        {"argv": [f"{own}/bin/python", *one["argv"][1:]], "env": one["env"]} for one in instances
    ]
    request = json.dumps({"env_dir": own, "gpus": True, "instances": lines})
    told = host.ssh(
        f"echo {shlex.quote(request)} | python3 -I /srv/kimi/lib/kimi-target.pyz engine-check",
        check=False,
        timeout=1800,
    )
    answer: dict[str, Any] = json.loads(told.splitlines()[-1])
    return answer


def planned(model: str) -> dict[str, Any]:
    """The first instance that is planned for a model on 8x H200."""
    facts = recording.read_recording(RECORDINGS / "h200-x8")
    settings = {"kimi_model": model, "kimi_engine_version": VERSION}
    plan = make_plan(facts, parse_settings(settings, host="server"), load_catalogue())
    assert (plan["engine"]["lock"], plan["engine"]["version"]) == (LOCK, VERSION)
    instance: dict[str, Any] = plan["instances"][0]
    return instance


def test_what_is_installed_is_what_the_lock_pins(installed: Host) -> None:
    pins = {pin.name: pin.version for pin in lock_files.read_pins(load_catalogue().lock(LOCK))}
    found = {lock_files.normalize_name(k): v for k, v in asked(installed, INSTALLED).items()}
    assert found == pins


def test_torch_is_the_one_that_the_catalogue_names(installed: Host) -> None:
    row = next(
        e
        for e in load_catalogue().engines
        if (e.name, e.variant, e.version) == ("vllm", "cuda", VERSION)
    )
    release, cuda = asked(installed, TORCH)
    assert release.split("+")[0] == row.torch
    assert cuda == row.cuda


def test_its_parser_took_the_line_of_the_plan(installed: Host) -> None:
    again = kimi_prov("apply", installed.inventory, *TAGS, timeout=900)
    assert again.returncode == 0, again.stdout + again.stderr
    assert "changed=0" in again.stdout + again.stderr


def test_its_parser_takes_what_is_planned_for_8x_h200(installed: Host) -> None:
    lines = [planned(model) for model in ("kimi-k2.5", "kimi-k2.6", "kimi-k2-thinking")]
    assert check(installed, *lines) == {"ok": True, "changed": True}


def test_its_parser_refuses_what_is_dead(installed: Host) -> None:
    line = planned("kimi-k2.5")
    line["argv"] += ["--swap-space", "4"]
    assert "unrecognized arguments: --swap-space" in check(installed, line)["error"]["message"]
