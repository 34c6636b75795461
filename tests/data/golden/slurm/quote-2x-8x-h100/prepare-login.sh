#!/bin/bash
# Fetches what compute nodes without network need: wheels and weights. kimi-prov rendered it for quote-2x-8x-h100: change it as you need.
#
#   cd THIS_FOLDER && ./prepare-login.sh                  on the login node, or a node for transfers
#
# 554.3 GiB of weights are fetched: ask first whether the login node is the place for it.
# Afterwards set KIMI_OFFLINE=1 in cluster.env and submit jobs/environment.sbatch.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")"
# shellcheck source=jobs/prelude.sh
. jobs/prelude.sh

"${kimi[@]}" wheels
exec "${kimi[@]}" weights --online
