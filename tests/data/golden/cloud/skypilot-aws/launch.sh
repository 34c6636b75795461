#!/bin/bash
# Starts the task; where the driver's restart cut the first launch, the second finds it done.
#   ./launch.sh [CLUSTER]
set -euo pipefail
cd "$(dirname "$0")"
cluster=${1:-kimi}
for try in 1 2 3; do
  sky launch --yes --cluster "$cluster" --detach-run kimi.sky.yaml && exit 0
  echo "try $try did not go through: where the machine restarts for its driver, it is asked again" >&2
  sleep "${KIMI_PAUSE_S:-90}"
done
exit 1
