"""Where things are in a pod: in its image and below its mounts. The manifests say the same.

Decides: what runs in a pod (paths and minimum sizes).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kimi_prov.contract.documents.plan import MachinePlan

# Of the image's user and its group.
USER_ID = 10001
# What the engine answers on, whatever the plan's port is.
PORT = 8443
# Where the head of a group meets its ranks.
MASTER_PORT = 29500

ENGINE = "/opt/kimi/engine"
HUB = "/opt/kimi/hub"
PROGRAM = "/opt/kimi/kimi-target.pyz"

PLAN = "/etc/kimi/plan.json"
CA_BUNDLE = "/etc/kimi/ca-bundle.pem"
API_KEY = "/run/kimi/key/api-key"
# Optional, in the same Secret: what Prometheus shows at /metrics.
METRICS_KEY = "/run/kimi/key/metrics-key"
TLS_CERTIFICATE = "/run/kimi/tls/tls.crt"
TLS_KEY = "/run/kimi/tls/tls.key"
HUB_TOKEN = "/run/kimi/hub/token"  # noqa: S105 - a path
CACHE = "/var/cache/kimi"
# The pod's own: its key, and what its probes remember.
RUN = "/tmp/kimi"  # noqa: S108 - a volume of the pod
SHM = "/dev/shm"  # noqa: S108 - shared memory itself

_GIB = 1 << 30
# Workers of one model talk through /dev/shm. vLLM takes 160 MiB of it for one worker too, and a
# container has 64 MiB of its own accord.
_SHM_OF_WORKERS_BYTES = 8 * _GIB
_SHM_OF_ONE_BYTES = _GIB


def compute_process_bytes(plan: MachinePlan) -> int:
    """Return the memory that the engine's processes take, by the plan; the system's is apart."""
    parts = plan["memory"]["host_parts"]
    return sum(int(part["bytes"]) for part in parts if part["kind"] != "system")


def compute_shm_bytes(plan: MachinePlan) -> int:
    """Return the least size of /dev/shm; it counts as the container's memory."""
    return _SHM_OF_WORKERS_BYTES if count_workers(plan) > 1 else _SHM_OF_ONE_BYTES


def count_workers(plan: MachinePlan) -> int:
    """Return how many processes of the engine work on one model, over all pods."""
    parallel = plan["parallel"]
    return int(parallel["tensor"]) * int(parallel["pipeline"]) * int(parallel["data"])
