"""The parts of a plan that hold in a job or a pod, where no root provisions a machine.

Decides: objects for a Kubernetes cluster (what holds without root).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kimi_prov.catalog.versions import parse_version
from kimi_prov.planner.registry import DEFINITIONS
from kimi_prov.planner.settings.definitions import BY_NAME

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kimi_prov.contract.documents.findings import Finding
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.planner.registry.definition import Severity
    from kimi_prov.planner.settings.parsing import Settings

# Found out when the engine runs: its nodes, ports and files.
OF_THE_RUN = frozenset(
    {"host", "port", "nnodes", "node-rank", "master-addr", "master-port", "headless"}
)
ENVIRONMENT_OF_THE_RUN = frozenset(
    {
        *("VLLM_HOST_IP", "VLLM_PORT", "CUDA_VISIBLE_DEVICES"),
        *("GLOO_SOCKET_IFNAME", "NCCL_SOCKET_IFNAME", "TP_SOCKET_IFNAME"),
    }
)
# Values that hold without root for settings about what root does on a machine.
WITHOUT_EFFECT: Mapping[str, Any] = {
    "tls": "self-signed",
    "tls_cert_file": None,
    "tls_key_file": None,
    "tls_names": [],
    "api_keys_file": None,
    "web_admin_file": None,
    "hf_token_file": None,
    "bucket_credentials_file": None,
    "apt_mirror": None,
    "python_mirror": None,
    "nvidia_repo_url": None,
    "nvidia_repo_key_url": None,
    "nvidia_repo_key_fingerprint": None,
    "nvidia_driver_version": "auto",
    "group_address": None,
    "prepared_weights": "off",
}
# Subjects of findings about what root does, or about a machine of one's own.
_NOT_THERE = frozenset(
    {"disk", "driver", "firewall", "host", "packages", "port", "python", "ram_disk", "serve"}
    | {"tuning", "web"}
)
NOT_THERE_EITHER = frozenset(
    {
        *("os.apparmor", "os.cgroups", "os.selinux", "os.supported", "os.systemd"),
        # The nodes' addresses are known only when the engine runs; others use the nodes too.
        *("group.address", "group.settings", "gpu.held", "memory.cgroup"),
        "engine.not_provisioned",
    }
)
# The first vLLM version that finishes answers after SIGTERM.
_DRAINS_SINCE = "0.18.0"
_DRAIN = "--shutdown-timeout"
# Seconds that the engine and its job or pod need to end after the last answer.
_END_S = 60
_MIN_DRAIN_S = 10


def is_true_there(identity: str) -> bool:
    """Whether a finding of a plan also holds in a job or a pod."""
    subject = identity.partition(".")[0]
    return subject not in _NOT_THERE and identity not in NOT_THERE_EITHER


def select_true(plan: MachinePlan) -> list[Finding]:
    """Give the findings of a plan that hold in a job or a pod.

    A finding that forbids `apply` is a blocker there too: weights need a source.
    """
    return [_as_there(row) for row in plan["findings"] if is_true_there(row["id"])]


def _as_there(row: Finding) -> Finding:
    return {**row, "severity": "blocker"} if DEFINITIONS[row["id"]].blocks_apply else row


def list_without_effect(settings: Settings, quiet: Mapping[str, Any]) -> list[str]:
    """Name the settings, without kimi_, that the site set and that have no effect."""
    names = [name for name, value in quiet.items() if getattr(settings, name) != value]
    return [n for n in names if getattr(settings, n) != BY_NAME[f"kimi_{n}"].default]


class Driver(NamedTuple):
    """The severity of the finding about the nodes' driver, its text, and the needed branch."""

    severity: Severity
    observed: str
    branch: int

    @property
    def required(self) -> str:
        """The branch, in words."""
        return f"branch {self.branch} or newer"


def describe_driver(plan: MachinePlan) -> Driver | None:
    """Return the finding about the nodes' driver; None where no driver is needed."""
    need = plan["driver"]["required_branch"]
    if need is None:
        return None
    row = next((row for row in plan["findings"] if row["id"] == "driver.branch"), None)
    severity: Severity = "warning"
    if row is not None and row["severity"] != "info":
        severity = "blocker" if row["severity"] == "blocker" else "info"
    return Driver(severity, str(row["observed"]) if row else "unknown", need)


def describe_tuning(plan: MachinePlan) -> list[str]:
    """List the kernel settings that root would make."""
    tuning = plan["tuning"]
    lines = [f"{name} = {value}" for name, value in tuning["sysctl"].items()]
    lines += [f"transparent huge pages: {tuning['thp']}"] if tuning["thp"] else []
    return lines + ([f"frequency governor: {tuning['governor']}"] if tuning["governor"] else [])


def drain(plan: MachinePlan, flags: Sequence[str], grace_s: int) -> list[str]:
    """Return the flag for the seconds that answers may take at the end, unless it is set.

    `grace_s`: seconds from the first signal to the last.
    """
    drains = parse_version(plan["engine"]["version"]) >= parse_version(_DRAINS_SINCE)
    if not drains or any(flag.split("=")[0] == _DRAIN for flag in flags):
        return []
    return [_DRAIN, str(max(_MIN_DRAIN_S, grace_s - _END_S))]


def download(plan: MachinePlan) -> list[tuple[str, str]]:
    """Return the variables of the site's hub and proxy; a plan holds no password."""
    proxy = plan["site"].get("proxy")
    downloads = [
        ("HF_ENDPOINT", plan["weights"]["hf_endpoint"]),
        ("http_proxy", proxy and proxy.get("http")),
        ("https_proxy", proxy and proxy.get("https")),
        ("no_proxy", ",".join((proxy and proxy.get("no_proxy")) or [])),
    ]
    return [(name, value) for name, value in downloads if value]
