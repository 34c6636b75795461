"""What the real SkyPilot makes of the rendered tasks, in two of its versions.

It parses them, its optimiser chooses, and its image is resolved, as far as that goes without an
account. Its catalogue is fetched from outside: the rows here are written in the columns that it
reads, after those of skypilot-catalog v8 (Price and SpotPrice rounded).
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from kimi_prov import cli
from kimi_prov.catalog import loader
from kimi_prov.planner.settings.definitions import VARIABLES as VARIABLES_OF_ALL
from kimi_prov.render.cloud import images
from kimi_prov.show.exit_handling import run_guarded

ROOT = Path(__file__).parents[3]
SHEET = ROOT / "inventories" / "specs" / "reference-004.yml"
PINS = {
    "0.14.1": ROOT / "tests" / "cloud" / "skypilot.txt",
    "0.13.0": ROOT / "tests" / "cloud" / "skypilot-before.txt",
}
VARIABLES = {
    "gcp": """
kimi_context: 8192
kimi_weights_source: gs://weights-of-site/kimi-k2.5
kimi_idle_stop: 20m
kimi_cloud_regions: [us-central1-a, europe-west4-b]
kimi_cloud_machines: [a3-highgpu-8g, a3-ultragpu-8g]
""",
    "aws": """
kimi_context: 8192
kimi_weights_source: s3://weights-of-site/kimi-k2.5
kimi_bucket_region: us-east-2
kimi_idle_stop: 20m
kimi_cloud: aws
kimi_cloud_regions: [us-east-2]
kimi_cloud_terms: on-demand
""",
}
CATALOGUE = {
    "gcp/vms.csv": """
InstanceType,vCPUs,MemoryGiB,AcceleratorName,AcceleratorCount,GpuInfo,Region,AvailabilityZone,Price,SpotPrice
n2-standard-8,8,32,,,,us-central1,us-central1-a,0.39,0.09
a3-highgpu-8g,208,1872,,,,us-central1,us-central1-a,9.46,2.89
a3-highgpu-8g,208,1872,,,,europe-west4,europe-west4-b,9.93,2.27
a3-ultragpu-8g,224,2952,,,,us-central1,us-central1-a,10,3
,,,H100,8,,us-central1,us-central1-a,78,20
,,,H100,8,,europe-west4,europe-west4-b,78,20
,,,H200,8,,us-central1,us-central1-a,78,20
""",
    "gcp/images.csv": """
Tag,Region,OS,OSVersion,ImageId,CreationDate,BaseImageId
skypilot:custom-gpu-ubuntu-2204-cuda13,,ubuntu,22.04,projects/sky-dev-465/global/images/skypilot-gcp-gpu-ubuntu-260603,20260603,
skypilot:custom-cpu-ubuntu-2204,,ubuntu,22.04,projects/sky-dev-465/global/images/skypilot-gcp-cpu-ubuntu-241030,20241030,
""",
    "aws/vms.csv": """
InstanceType,AcceleratorName,AcceleratorCount,vCPUs,MemoryGiB,GpuInfo,Price,SpotPrice,Region,AvailabilityZone,Arch
m6i.2xlarge,,,8,32,,0.38,0.2,us-east-2,us-east-2a,x86_64
p5.48xlarge,H100,8,192,2048,,55,30,us-east-2,us-east-2a,x86_64
p5en.48xlarge,H200,8,192,2048,,63,30,us-east-2,us-east-2a,x86_64
p6-b200.48xlarge,B200,8,192,2048,,114,30,us-east-2,us-east-2a,x86_64
""",
    "aws/images.csv": """
Tag,Region,OS,OSVersion,ImageId,CreationDate,BaseImageId
skypilot:custom-gpu-ubuntu-cuda13,us-east-2,ubuntu,22.04,ami-0c0ffee0c0ffee001,20260603,
skypilot:custom-cpu-ubuntu,us-east-2,ubuntu,22.04,ami-000ff33518704d625,20241104,
""",
    "common/accelerators.csv": """
AcceleratorName,Clouds
H100,"['GCP', 'AWS']"
H200,"['GCP', 'AWS']"
B200,"['GCP', 'AWS']"
A100-80GB,"['GCP', 'AWS']"
""",
}
# No account is asked: what SkyPilot learns from one is said here.
READ = """
import json, sys
import sky, sky.check
from sky import optimizer
from sky.clouds import AWS, GCP
from sky.utils import resources_utils

sky.check.get_cached_enabled_clouds_or_refresh = lambda *_, **__: [GCP(), AWS()]
GCP.get_project_id = classmethod(lambda *_, **__: "site-1")
AWS.get_image_root_device_name = classmethod(lambda *_, **__: "/dev/sda1")
task = sky.Task.from_yaml(sys.argv[1])
tried = task.resources if isinstance(task.resources, list) else list(task.resources)
with sky.Dag() as dag:
    dag.add(task)
optimizer.Optimizer.optimize(dag, quiet=True)
best = task.best_resources
offered = best.cloud.regions_with_offering(
    best.instance_type, best.accelerators, best.use_spot, best.region, best.zone
)[0]
name = resources_utils.ClusterName("kimi", "kimi-1")
started = best.cloud.make_deploy_resources_variables(
    best, name, offered, offered.zones, 1, dryrun=True
)
print(json.dumps({
    "tried": [[str(r.cloud), r.region, r.zone, r.accelerators, r.use_spot] for r in tried],
    "ends": [r.autostop_config.down and str(r.autostop_config.wait_for) for r in tried],
    "machine": best.instance_type,
    "image": started["image_id"],
    "disk": [best.disk_size, started["disk_tier"]],
    "setup": task.setup,
    "run": task.run,
    "mounts": task.file_mounts,
}))
"""


@pytest.fixture(scope="module", params=PINS)
def sky(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with a version of SkyPilot."""
    uv, made = Path(sys.executable).with_name("uv"), tmp_path_factory.mktemp("sky") / "venv"
    subprocess.run([uv, "venv", "-q", "--python", sys.executable, made], check=True)
    line = [uv, "pip", "install", "-q", "--require-hashes", "-r", PINS[request.param]]
    subprocess.run([*line, "--python", made / "bin" / "python"], check=True, timeout=1800)
    return made / "bin" / "python"


def ask(sky: Path, home: Path, *words: str, cwd: Path) -> str:
    """Run SkyPilot's Python in a home that has the catalogue."""
    for name, rows in CATALOGUE.items():
        path = home / ".sky/catalogs/v8" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(rows.lstrip())
    done = subprocess.run(
        [sky, *words],
        cwd=cwd,
        env={"HOME": str(home), "PATH": f"{sky.parent}:/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout


def render(folder: Path, text: str) -> None:
    variables = folder.parent / "vars.yml"
    variables.write_text(text)
    words = ["render", "skypilot", str(SHEET), "--vars", str(variables), "--output", str(folder)]
    assert int(run_guarded(lambda: cli.cli.main(words, standalone_mode=False))) == 0


@pytest.mark.slow
@pytest.mark.parametrize("cloud", VARIABLES)
def test_it_takes_the_tasks_and_starts_them_on_an_image_that_apply_takes(
    cloud: str, sky: Path, tmp_path: Path
) -> None:
    render(tmp_path / "out", VARIABLES[cloud])

    def read(name: str) -> dict[str, Any]:
        told = ask(sky, tmp_path / "home", "-c", READ, name, cwd=tmp_path / "out")
        return dict(json.loads(told.splitlines()[-1]))

    task = read("kimi.sky.yaml")
    if cloud == "gcp":
        assert task["tried"] == [
            ["GCP", zone[:-2], zone, {card: 8}, spot]
            for spot in (True, False)
            for card in ("H100", "H200")
            for zone in ("us-central1-a", "europe-west4-b")
        ]
        assert task["machine"] == "a3-highgpu-8g"
    else:
        cards = [{"B200": 8}, {"H200": 8}, {"H100": 8}]
        assert task["tried"] == [["AWS", "us-east-2", None, card, False] for card in cards]
        assert task["machine"] == "p6-b200.48xlarge"
    # Its own image, whatever that is called in this version; a row of it says the system.
    row = next(row for row in CATALOGUE[f"{cloud}/images.csv"].splitlines() if task["image"] in row)
    system, version = row.split(",")[2:4]
    assert (system, version) in {(row.id, row.version) for row in loader.load_catalogue().systems}
    assert all("jobs" in str(told).lower() for told in task["ends"])
    # Neither of the disks that "best" would be.
    assert task["disk"][1] in ("pd-ssd", "gp3")
    # What it would run there, and bring there before it.
    own = yaml.safe_load((tmp_path / "out/kimi.sky.yaml").read_text())
    assert (task["setup"], task["run"]) == (own["setup"], own["run"])
    assert task["mounts"] == {"/tmp/kimi-machine": "./machine"}
    assert (tmp_path / "out/machine/install").exists()

    seed = read("seed.sky.yaml")
    assert seed["image"] in CATALOGUE[f"{cloud}/images.csv"]
    assert seed["machine"] in ("n2-standard-8", "m6i.2xlarge")


SAID = """
import json
from sky.clouds import gcp
print(json.dumps(gcp._IMAGE_NOT_FOUND_UX_MESSAGE))
"""


@pytest.mark.slow
def test_it_names_images_as_we_take_them(sky: Path, tmp_path: Path) -> None:
    """The forms that SkyPilot tells people, and no family: it asks Google for images by name."""
    told = json.loads(ask(sky, tmp_path / "home", "-c", SAID, cwd=tmp_path).splitlines()[-1])
    names = re.findall(r"projects/\S+?/global/(?:images|machineImages)/[\w<>-]+", told)
    assert len(names) >= 3
    assert all(images.is_image_name("gcp", re.sub("[<>]", "", name)) for name in names)
    assert not images.is_image_name("gcp", "projects/debian-cloud/global/images/family/debian-12")


OTHERS = """
import json, pathlib
import sky
from sky import clouds
from sky.utils import registry

def lacks(name):
    cloud = getattr(clouds, name)()
    rows = cloud._unsupported_features_for_resources(sky.Resources(cloud=cloud))
    return [row.value for row in rows]

top = pathlib.Path(sky.__file__).parent
print(json.dumps({
    "lambda": lacks("Lambda"),
    "runpod": (top / "clouds/runpod.py").read_text(),
    "vast": (top / "clouds/vast.py").read_text(),
    "kubernetes": (top / "templates/kubernetes-ray.yml.j2").read_text(),
    "azure": (top / "provision/azure/instance.py").read_text(),
    "known": sorted(str(row).lower() for row in registry.CLOUD_REGISTRY.values()),
}))
"""


@pytest.mark.slow
def test_the_clouds_that_are_refused_are_as_we_say(sky: Path, tmp_path: Path) -> None:
    told = json.loads(ask(sky, tmp_path / "home", "-c", OTHERS, cwd=tmp_path).splitlines()[-1])
    cloud = next(row for row in VARIABLES_OF_ALL if row.name == "kimi_cloud")
    refused = {name for name, _reason, _fix in cloud.refused}
    # CoreWeave is a Kubernetes to SkyPilot.
    assert refused - {"coreweave"} <= set(told["known"])
    # An image is a container's; a machine is a pod.
    assert all("docker_image" in told[name] for name in ("runpod", "vast"))
    assert "kind: Pod" in told["kubernetes"]
    # Lambda has no machine that is off, and one of Azure that is off goes on costing.
    assert "stop" in told["lambda"]
    assert "Stopped (Allocated), which still bills" in told["azure"]
