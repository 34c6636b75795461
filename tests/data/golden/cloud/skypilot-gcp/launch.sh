#!/bin/bash
# Starts the task. Where the driver's restart cut a launch, the next finds it done. What it began and cannot finish it ends.
#   ./launch.sh [CLUSTER]
set -euo pipefail
cd "$(dirname "$0")"
cluster=${1:-kimi}
./check.sh
known() { sky status --refresh --output json "$cluster" 2>/dev/null | grep -qF "\"name\": \"$cluster\""; }
ours=yes
! known || ours=
# shellcheck disable=SC2317  # the trap calls it
give_up() {
  trap - EXIT
  if ! known; then
    echo "no machine runs: SkyPilot has no cluster $cluster" >&2
    exit 1
  fi
  if [ -z "$ours" ]; then
    echo "cluster $cluster was there before and still runs. End it: sky down $cluster" >&2
  elif sky down --yes "$cluster"; then
    echo "cluster $cluster is ended: it costs nothing more" >&2
  else
    echo "cluster $cluster STILL RUNS, at about \$26.00 an hour. End it: sky down $cluster; look: sky status --refresh" >&2
    echo "The machine ends itself after 120 minutes without an answer, if it came so far." >&2
  fi
  exit 1
}
trap give_up EXIT
trap 'exit 130' INT TERM HUP
for try in 1 2 3; do
  if sky launch --yes --cluster "$cluster" --detach-run kimi.sky.yaml; then
    trap - EXIT
    exit 0
  fi
  if ! known; then
    echo "no machine is to be had: what SkyPilot said above tells it for each kind and place" >&2
    echo "  fix: add places to kimi_cloud_regions or kinds to kimi_cloud_machines, and render again; or ask again later" >&2
    exit 1
  fi
  [ "$try" = 3 ] || {
    echo "try $try did not go through; if the machine restarts for its driver, the next one does" >&2
    sleep "${KIMI_PAUSE_S:-90}"
  }
done
exit 1
