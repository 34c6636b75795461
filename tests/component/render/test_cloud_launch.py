"""launch.sh and check.sh of a cloud's folder, run with stand-ins of the programs that they call."""

from __future__ import annotations

import hashlib
import json
import sys
from typing import TYPE_CHECKING

import pytest
from cloud_folders import VARIABLES, laid, render, same_wheel, stand_in, started

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["same_wheel"]
pytestmark = pytest.mark.usefixtures("same_wheel")


# An account of Google, by variables: what is refused (an expression of the arguments), where the
# bucket is, and a folder with a file for each quota. It grants what GRANTS names.
GCLOUD = r"""
echo "gcloud $*" >>"$LOG"
[[ ! "$*" =~ ${REFUSED:-^$} ]] || { echo "not found, or refused" >&2; exit 1; }
case "$*" in
  *"get-value project"*) echo site-1 ;;
  *"get-value account"*) echo me@example.com ;;
  *"buckets describe"*) echo "${BUCKET_AT:-US}" ;;
  *"quotas info describe"*) cat "$QUOTAS/$5" 2>/dev/null ||
    echo '{"dimensionsInfos": [{"details": {"value": "8"}}]}' ;;
  *"storage cp"*) echo "$*" >>"$LOG.put" ;;
  *"instances create"*) echo "$*" >>"$LOG.create"
    [[ "$*" == *STANDARD* && "$*" == *europe-west4-b* ]] || exit 1 ;;
esac
"""
GRANTED = "compute.instances.create compute.instances.delete compute.disks.create"


def as_google(folder: Path, granted: str = f"{GRANTED} iam.serviceAccounts.actAs") -> None:
    """Put programs there that answer as Google does to a login that may do everything."""
    stand_in(folder, "gcloud", GCLOUD)
    names = ", ".join(f'"{name}"' for name in granted.split())
    stand_in(folder, "curl", f"cat >/dev/null; echo '{{\"permissions\": [{names}]}}'")
    stand_in(folder, "python3", f'exec {sys.executable} "$@"')


def test_kinds_places_and_terms_are_tried_in_their_order(tmp_path: Path) -> None:
    """gcloud is a stand-in: no machine is to be had but on demand, in the second place."""
    assert render("cloud-init", tmp_path / "out", VARIABLES["gcp"]) == 0
    as_google(tmp_path / "bin")
    done = started(tmp_path / "out", tmp_path / "bin", tmp_path / "log")
    assert done.returncode == 0, done.stderr
    asked = (tmp_path / "log.create").read_text().splitlines()
    tried = [
        (line.split("--machine-type ")[1].split()[0], line.split("--zone ")[1].split()[0])
        for line in asked
    ]
    zones, kinds = ("us-central1-a", "europe-west4-b"), ("a3-highgpu-8g", "a3-ultragpu-8g")
    order = [(kind, zone) for kind in kinds for zone in zones]
    assert tried == [*order, *order[:2]]
    assert all("--instance-termination-action DELETE" in line for line in asked[:4])
    given = [line.split("--metadata-from-file ")[1].split()[0].split(",") for line in asked]
    assert all(row == ["user-data=user-data", "startup-script=startup-script"] for row in given)
    # The wheel is there before the first machine is.
    put = (tmp_path / "log.put").read_text().split()
    digest = hashlib.sha256((tmp_path / "out" / put[3]).read_bytes()).hexdigest()
    assert put[4] == f"gs://weights-of-site/kimi-prov/{digest}/{put[3]}"
    assert digest in next(
        r["content"] for r in laid(tmp_path / "out") if "kimi-install" in r["path"]
    )


def write_quota(folder: Path, name: str, **values: int) -> None:
    """Write what Google says of a quota: a row a region, and of the family in its name."""
    folder.mkdir(exist_ok=True)
    rows = [
        {
            "dimensions": {
                "region": region.replace("_", "-"),
                **({"gpu_family": "NVIDIA_H100"} if "FAMILY" in name else {}),
            },
            "details": {"value": str(value)},
            "applicableLocations": [region.replace("_", "-")],
        }
        for region, value in values.items()
    ]
    (folder / name).write_text(json.dumps({"dimensionsInfos": rows}))


SPOT = "PREEMPTIBLE-NVIDIA-H100-GPUS-per-project-region"
FAMILY = "GPUS-PER-GPU-FAMILY-per-project-region"
ONE_KIND = VARIABLES["gcp"].replace("[a3-highgpu-8g, a3-ultragpu-8g]", "[a3-highgpu-8g]")


def checked(
    tmp_path: Path, kind: str = "skypilot", text: str = ONE_KIND, **environment: str
) -> tuple[int, str, str]:
    """What launch.sh gives before it starts anything: its status, what it said and asked for."""
    if not (tmp_path / "out").exists():
        assert render(kind, tmp_path / "out", text) == 0
    if not (tmp_path / "bin" / "gcloud").exists():
        as_google(tmp_path / "bin")
    values = {"QUOTAS": str(tmp_path / "quotas"), **environment}
    done = started(tmp_path / "out", tmp_path / "bin", tmp_path / "log", **values)
    log = tmp_path / "log"
    return done.returncode, done.stderr, log.read_text() if log.exists() else ""


def sky_that_works(tmp_path: Path) -> None:
    stand_in(tmp_path / "bin", "sky", 'echo "sky $*" >>"$LOG"')


def test_without_sky_the_command_that_installs_it_is_told(tmp_path: Path) -> None:
    status, told, asked = checked(tmp_path)
    assert (status, asked) == (3, "")
    assert "skypilot[gcp] in an environment of its own" in told


@pytest.mark.parametrize(
    ("refused", "fix"),
    [
        ("^auth print-access-token", "gcloud auth login"),
        ("^auth application-default", "gcloud auth application-default login"),
        ("^storage ls", "sky launch seed.sky.yaml -c kimi-seed --detach-run"),
    ],
)
def test_what_a_start_lacks_is_told_before_anything_is_paid_for(
    refused: str, fix: str, tmp_path: Path
) -> None:
    sky_that_works(tmp_path)
    status, told, asked = checked(tmp_path, REFUSED=refused)
    assert status == 3
    assert fix in told
    assert "sky launch" not in asked


def test_without_a_permission_nothing_is_started(tmp_path: Path) -> None:
    sky_that_works(tmp_path)
    as_google(tmp_path / "bin", GRANTED)
    status, told, asked = checked(tmp_path)
    assert status == 3
    assert "iam.serviceAccounts.actAs" in told
    assert "add-iam-policy-binding site-1 --member=user:me@example.com" in told
    assert "sky launch" not in asked


def test_without_a_region_launch_sh_names_the_setting(tmp_path: Path) -> None:
    text = ONE_KIND.replace("kimi_cloud_regions: [us-central1-a, europe-west4-b]\n", "")
    status, told, _asked = checked(tmp_path, "cloud-init", text)
    assert status == 3
    assert "set kimi_cloud_regions: [us-central1-a]" in told


def test_a_bucket_elsewhere_is_told(tmp_path: Path) -> None:
    sky_that_works(tmp_path)
    status, told, _asked = checked(tmp_path, BUCKET_AT="US-CENTRAL1")
    assert status == 0, told
    assert (
        "the bucket is in us-central1, and a machine in europe-west4 would fetch 554.3 GiB" in told
    )
    assert "a machine in us-central1 would" not in told


def test_no_quota_anywhere_ends_it_with_the_requests(tmp_path: Path) -> None:
    """The spot quotas are there in one region; the family's gate is 0, as reference 004 met it."""
    sky_that_works(tmp_path)
    write_quota(tmp_path / "quotas", SPOT, us_central1=8, europe_west4=0)
    write_quota(tmp_path / "quotas", FAMILY, us_central1=0, europe_west4=0)
    status, told, asked = checked(tmp_path)
    assert status == 3
    assert "sky launch" not in asked
    requests = [line for line in told.splitlines() if "preferences create" in line]
    assert [line.split("--quota-id=")[1].split()[0] for line in requests] == [FAMILY, SPOT, FAMILY]
    assert (
        f"--preferred-value=8 --quota-id={FAMILY} --service=compute.googleapis.com "
        "--project=site-1 --dimensions=region=us-central1,gpu_family=NVIDIA_H100 "
        "--email=me@example.com"
    ) in requests[0]


def test_a_quota_in_one_place_is_enough(tmp_path: Path) -> None:
    sky_that_works(tmp_path)
    write_quota(tmp_path / "quotas", SPOT, us_central1=0, europe_west4=8)
    status, told, asked = checked(tmp_path)
    assert status == 0, told
    assert f"quota {SPOT} in us-central1: 8 are needed, 0 are there" in told
    assert "sky launch" in asked


def test_without_credentials_nothing_is_started(tmp_path: Path) -> None:
    assert render("cloud-init", tmp_path / "out", VARIABLES["aws"]) == 0
    stand_in(tmp_path / "bin", "aws", 'echo "$*" >>"$LOG"; exit 1')
    done = started(tmp_path / "out", tmp_path / "bin", tmp_path / "log")
    assert done.returncode == 3
    assert "aws configure" in done.stderr
    assert "run-instances" not in (tmp_path / "log").read_text()


# A cloud with one cluster, which is there or not.
SKY = """
case "$1" in
  status) [ -s "$LOG.there" ] && echo "    \\"name\\": \\"$(cat "$LOG.there")\\"," ;;
  launch)
    echo launch >>"$LOG.sky"
    tries=$(grep -c launch "$LOG.sky")
    %s ;;
  down) echo down >>"$LOG.sky"; %s ;;
esac
exit "${result:-0}"
"""
STARTS = 'echo here >"$LOG.there"'
ENDS = 'rm "$LOG.there"'


def launched(tmp_path: Path, launch: str, down: str = ENDS) -> tuple[int, list[str], str]:
    """What launch.sh gives with such a cloud: its status, what it asked for, and what it said."""
    assert render("skypilot", tmp_path / "out", VARIABLES["gcp"]) == 0
    as_google(tmp_path / "bin")
    stand_in(tmp_path / "bin", "sky", SKY % (launch, down))
    done = started(tmp_path / "out", tmp_path / "bin", tmp_path / "log")
    return done.returncode, (tmp_path / "log.sky").read_text().split(), done.stderr


def is_there(tmp_path: Path) -> bool:
    return (tmp_path / "log.there").exists()


# An account of AWS: what starting a machine is answered with, its quota, and where the bucket is.
AWS = """
echo "aws $*" >>"$LOG"
case "$*" in
  sts*) [ -z "${EXPIRED:-}" ] || { echo "the token has expired" >&2; exit 1; } ;;
  *get-bucket-location*) echo "${BUCKET_AT:-us-east-2}" ;;
  *--dry-run*) echo "(${ANSWER:-DryRunOperation})" >&2; exit 254 ;;
  *get-service-quota*) echo "${QUOTA:-192.0}" ;;
esac
"""


@pytest.mark.parametrize(
    ("environment", "status", "fix"),
    [
        ({}, 0, ""),
        ({"EXPIRED": "yes"}, 3, "aws sso login"),
        ({"ANSWER": "UnauthorizedOperation"}, 3, "aws iam attach-user-policy"),
        ({"ANSWER": "Unsupported"}, 3, "aws ec2 describe-instance-type-offerings"),
        ({"BUCKET_AT": "None"}, 0, "the bucket is in us-east-1, and a machine in us-east-2"),
        (
            {"QUOTA": "0.0"},
            3,
            (
                "aws service-quotas request-service-quota-increase --region us-east-2 "
                "--service-code ec2 --quota-code L-417A185B --desired-value 192"
            ),
        ),
    ],
)
def test_aws_is_asked_before_anything_is_paid_for(
    environment: dict[str, str], status: int, fix: str, tmp_path: Path
) -> None:
    assert render("skypilot", tmp_path / "out", VARIABLES["aws"]) == 0
    stand_in(tmp_path / "bin", "aws", AWS)
    stand_in(tmp_path / "bin", "sky", 'echo "sky $*" >>"$LOG"')
    done = started(tmp_path / "out", tmp_path / "bin", tmp_path / "log", **environment)
    assert done.returncode == status, done.stderr
    assert fix in done.stderr
    assert ("sky launch" in (tmp_path / "log").read_text()) is (status == 0)


def test_a_launch_that_the_restart_cut_is_made_again(tmp_path: Path) -> None:
    cut = f"{STARTS}; [ $tries = 2 ] || result=1"
    status, asked, told = launched(tmp_path, cut)
    assert (status, asked) == (0, ["launch", "launch"]), told
    assert is_there(tmp_path)


def test_a_machine_whose_setup_fails_is_ended(tmp_path: Path) -> None:
    status, asked, told = launched(tmp_path, f"{STARTS}; result=100")
    assert (status, asked) == (1, ["launch", "launch", "launch", "down"])
    assert "is ended" in told
    assert not is_there(tmp_path)


def test_without_a_machine_it_is_tried_once(tmp_path: Path) -> None:
    status, asked, told = launched(tmp_path, "result=1")
    assert (status, asked) == (1, ["launch"])
    assert "no machine is to be had" in told
    assert "no machine runs" in told


def test_what_still_runs_is_told_with_its_cost(tmp_path: Path) -> None:
    status, _asked, told = launched(tmp_path, f"{STARTS}; result=100", "result=1")
    assert status == 1
    assert "here STILL RUNS, at about $26.00 an hour. End it: sky down here" in told


def test_a_launch_that_is_interrupted_leaves_no_machine(tmp_path: Path) -> None:
    status, asked, told = launched(tmp_path, f"{STARTS}; kill -INT $PPID; result=130")
    assert (status, asked) == (1, ["launch", "down"]), told
    assert not is_there(tmp_path)


def test_a_machine_that_was_there_before_is_not_ended(tmp_path: Path) -> None:
    (tmp_path / "log.there").write_text("here")
    status, asked, told = launched(tmp_path, "result=100")
    assert (status, asked) == (1, ["launch"] * 3)
    assert "sky down here" in told
    assert is_there(tmp_path)
