"""Paths in a pod: in its image and below its mounts. The manifests have the same.

Decides: what runs in a pod (paths and minimum sizes).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kimi_prov.contract.documents.plan import MachinePlan

# The image's user and its group.
USER_ID = 10001
# The engine's port, whatever the plan's port is.
PORT = 8443
# The port of an engine that has a TLS proxy in front of it, on the loopback.
ENGINE_PORT = 8001
# The port at which the head of a group meets its ranks.
MASTER_PORT = 29500

ENGINE = "/opt/kimi/engine"
HUB = "/opt/kimi/hub"
PROGRAM = "/opt/kimi/kimi-target.pyz"

PLAN = "/etc/kimi/plan.json"
CA_BUNDLE = "/etc/kimi/ca-bundle.pem"
API_KEY = "/run/kimi/key/api-key"
# Optional, in the same Secret: the key with which Prometheus reads /metrics.
METRICS_KEY = "/run/kimi/key/metrics-key"
TLS_CERTIFICATE = "/run/kimi/tls/tls.crt"
TLS_KEY = "/run/kimi/tls/tls.key"
HUB_TOKEN = "/run/kimi/hub/token"  # noqa: S105 - a path
CACHE = "/var/cache/kimi"
# The containers of a pod: the engine, and the proxy before one that speaks no TLS.
ENGINE_CONTAINER = "engine"
PROXY_CONTAINER = "proxy"
# The pod's own folder: its key, and the state of its probes.
RUN = "/tmp/kimi"  # noqa: S108 - a volume of the pod
PROXY_RUN = "/tmp/kimi-proxy"  # noqa: S108 - of the proxy's container
SHM = "/dev/shm"  # noqa: S108 - shared memory itself

_GIB = 1 << 30
# Workers of one model communicate through /dev/shm. vLLM takes 160 MiB of it for a single worker
# too, and a container has 64 MiB by default.
_SHM_OF_WORKERS_BYTES = 8 * _GIB
_SHM_OF_ONE_BYTES = _GIB


def is_proxied(plan: MachinePlan) -> bool:
    """Return whether a TLS proxy stands before the engine: sglang speaks no TLS, vLLM does."""
    return bool(plan["engine"].get("name", "vllm") != "vllm")


def count_shared_bytes(plan: MachinePlan) -> int:
    """Return the bytes of files that several processes of a host read, for the page cache.

    KTransformers copies the experts into its own memory, once; each GPU's process reads the rest.
    """
    gpus = len(plan["instances"][0]["gpus"])
    if not gpus:
        return 0
    if plan.get("hybrid"):
        return int(plan["memory"]["weights_bytes_per_gpu"] or 0) * gpus
    return int(plan["weights"]["bytes"]) // int(plan["parallel"].get("hosts", 1))


def compute_process_bytes(plan: MachinePlan) -> int:
    """Return the memory of the engine's processes, by the plan, without the system's."""
    parts = plan["memory"]["host_parts"]
    return sum(int(part["bytes"]) for part in parts if part["kind"] != "system")


def compute_shm_bytes(plan: MachinePlan) -> int:
    """Return the least size of /dev/shm; it counts as the container's memory."""
    return _SHM_OF_WORKERS_BYTES if count_workers(plan) > 1 else _SHM_OF_ONE_BYTES


def count_workers(plan: MachinePlan) -> int:
    """Return how many processes of the engine work on one model, over all pods."""
    parallel = plan["parallel"]
    return int(parallel["tensor"]) * int(parallel["pipeline"]) * int(parallel["data"])
