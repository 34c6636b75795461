#!/bin/bash
# Looks at what a start needs before anything is paid for: programs, login, permissions, bucket, places, quotas.
set -uo pipefail
failed=0 possible='' seen=,
ok() { echo "ok: $1"; }
warn() { echo "to ask for: $1" >&2; echo "  with: $2" >&2; }
fail() { echo "missing: $1" >&2; echo "  fix: $2" >&2; failed=1; }
need() { command -v "$1" >/dev/null || { fail "the program $1" "$2"; exit 3; }; }
need sky 'see docs.skypilot.co, Installation: skypilot[gcp] in an environment of its own'
need gcloud "install it: https://cloud.google.com/sdk/docs/install"
token=$(gcloud auth print-access-token 2>/dev/null) || { fail "a login of gcloud that is valid" "gcloud auth login"; exit 3; }
project=$(gcloud config get-value project 2>/dev/null)
[ -n "$project" ] || { fail "a project of gcloud" "gcloud config set project PROJECT"; exit 3; }
account=$(gcloud config get-value account 2>/dev/null)
gcloud auth application-default print-access-token >/dev/null 2>&1 || {
  fail "the login that SkyPilot uses" "gcloud auth application-default login"; exit 3; }
ok "login as $account, project $project"
asked='"compute.instances.create","compute.instances.delete","compute.disks.create","iam.serviceAccounts.actAs"'
granted=$(printf 'header = "Authorization: Bearer %s"\n' "$token" | curl -sf -K - -X POST -H 'Content-Type: application/json' \
  -d "{\"permissions\":[$asked]}" "https://cloudresourcemanager.googleapis.com/v1/projects/$project:testIamPermissions")
if [ -n "$granted" ]; then
  for one in ${asked//,/ }; do
    case $granted in *"$one"*) ;; *) fail "the permission $one in $project" \
      "gcloud projects add-iam-policy-binding $project --member=user:$account --role=roles/compute.instanceAdmin.v1   # and roles/iam.serviceAccountUser" ;; esac
  done
fi
place=$(gcloud storage buckets describe gs://weights-of-site --format='value(location)' 2>/dev/null | tr '[:upper:]' '[:lower:]')
if ! gcloud storage ls gs://weights-of-site/kimi-k2.5/ >/dev/null 2>&1; then
  fail 'the weights in gs://weights-of-site/kimi-k2.5' 'sky launch seed.sky.yaml -c kimi-seed --detach-run'
else ok gs://weights-of-site/kimi-k2.5; fi
read_quota='import json, sys
region, family = sys.argv[1:]
wanted = {"region": region, "gpu_family": family}
rows = json.load(sys.stdin)["dimensionsInfos"]
rows = [row for row in rows if all(wanted.get(k, v) == v for k, v in row.get("dimensions", {}).items())]
rows = [row for row in rows if not region or region in row.get("applicableLocations", [region])]
print(max(rows, key=lambda row: len(row.get("dimensions", {})))["details"].get("value", 0))'
# quota ID VALUE REGION FAMILY: whether it is there, or could not be read; it is told once.
quota() {
  local key="$1/$3/$4" have dimensions
  case $seen in *",$key=no,"*) return 1 ;; *",$key=yes,"*) return 0 ;; esac
  have=$(gcloud beta quotas info describe "$1" --service=compute.googleapis.com --project="$project" \
    --format=json 2>/dev/null | python3 -c "$read_quota" "$3" "$4" 2>/dev/null) || have=
  dimensions=${3:+region=$3}${4:+,gpu_family=$4}
  if [ -n "$have" ] && { [ "$have" -ge "$2" ] || [ "$have" = -1 ]; }; then
    seen="$seen$key=yes,"; ok "quota $1 ${3:-} $have"; return 0
  fi
  warn "quota $1${3:+ in $3}${4:+ of $4}: $2 are needed, ${have:-unknown} are there" \
    "gcloud beta quotas preferences create --preferred-value=$2 --quota-id=$1 --service=compute.googleapis.com --project=$project${dimensions:+ --dimensions=$dimensions} --email=$account --justification='one machine with 8 GPUs'"
  if [ -z "$have" ]; then seen="$seen$key=yes,"; return 0; fi
  seen="$seen$key=no,"; return 1
}
# offered KIND ZONE: whether the zone has that kind, or it could not be asked.
offered() {
  local told
  told=$(gcloud compute machine-types describe "$1" --zone "$2" --project "$project" 2>&1 >/dev/null) && return 0
  case $told in *"not found"*) ;; *) return 0 ;; esac
  warn "$1 is not offered in $2" "gcloud compute machine-types list --filter=name=$1 --format='value(zone)'   # and name one in kimi_cloud_regions"
  return 1
}
# near REGION: whether the bucket is there; from elsewhere the weights come slowly, and the traffic is paid.
near() {
  local answer=no
  case $seen in *",near/$1,"*) return 0 ;; esac
  seen="${seen}near/$1,"
  case ${place:-} in "" | "$1" | "${1%%-*}" | eur4 | nam4 | asia1) answer=yes ;; eu) [ "${1%%-*}" != europe ] || answer=yes ;; esac
  [ $answer = yes ] || warn "the bucket is in $place, and a machine in $1 would fetch 554.3 GiB from there" \
    "kimi_cloud_regions: a place in $place, or fill a bucket in $1"
}
this=yes
near us-central1
offered a3-highgpu-8g us-central1-a || this=
quota PREEMPTIBLE-NVIDIA-H100-GPUS-per-project-region 8 us-central1 '' || this=
quota GPUS-PER-GPU-FAMILY-per-project-region 8 us-central1 NVIDIA_H100 || this=
quota GPUS-ALL-REGIONS-per-project 8 '' '' || this=
[ -z "$this" ] || possible=yes
this=yes
near europe-west4
offered a3-highgpu-8g europe-west4-b || this=
quota PREEMPTIBLE-NVIDIA-H100-GPUS-per-project-region 8 europe-west4 '' || this=
quota GPUS-PER-GPU-FAMILY-per-project-region 8 europe-west4 NVIDIA_H100 || this=
quota GPUS-ALL-REGIONS-per-project 8 '' '' || this=
[ -z "$this" ] || possible=yes
this=yes
near us-central1
offered a3-ultragpu-8g us-central1-a || this=
quota PREEMPTIBLE-NVIDIA-H200-GPUS-per-project-region 8 us-central1 '' || this=
quota GPUS-PER-GPU-FAMILY-per-project-region 8 us-central1 NVIDIA_H200 || this=
quota GPUS-ALL-REGIONS-per-project 8 '' '' || this=
[ -z "$this" ] || possible=yes
this=yes
near europe-west4
offered a3-ultragpu-8g europe-west4-b || this=
quota PREEMPTIBLE-NVIDIA-H200-GPUS-per-project-region 8 europe-west4 '' || this=
quota GPUS-PER-GPU-FAMILY-per-project-region 8 europe-west4 NVIDIA_H200 || this=
quota GPUS-ALL-REGIONS-per-project 8 '' '' || this=
[ -z "$this" ] || possible=yes
this=yes
near us-central1
offered a3-highgpu-8g us-central1-a || this=
quota GPUS-PER-GPU-FAMILY-per-project-region 8 us-central1 NVIDIA_H100 || this=
quota GPUS-ALL-REGIONS-per-project 8 '' '' || this=
[ -z "$this" ] || possible=yes
this=yes
near europe-west4
offered a3-highgpu-8g europe-west4-b || this=
quota GPUS-PER-GPU-FAMILY-per-project-region 8 europe-west4 NVIDIA_H100 || this=
quota GPUS-ALL-REGIONS-per-project 8 '' '' || this=
[ -z "$this" ] || possible=yes
this=yes
near us-central1
offered a3-ultragpu-8g us-central1-a || this=
quota GPUS-PER-GPU-FAMILY-per-project-region 8 us-central1 NVIDIA_H200 || this=
quota GPUS-ALL-REGIONS-per-project 8 '' '' || this=
[ -z "$this" ] || possible=yes
this=yes
near europe-west4
offered a3-ultragpu-8g europe-west4-b || this=
quota GPUS-PER-GPU-FAMILY-per-project-region 8 europe-west4 NVIDIA_H200 || this=
quota GPUS-ALL-REGIONS-per-project 8 '' '' || this=
[ -z "$this" ] || possible=yes
[ -n "$possible" ] || fail "a kind and a place that this account may start" "request one of the quotas above, or name other kimi_cloud_machines and kimi_cloud_regions"
[ "$failed" = 0 ] || exit 3
