"""The operating system: the supported ones, the settings to change, the packages to install.

Decides: kernel settings.
Applied by: roles/host_tuning.
Held by: tests/unit/planner/software/test_system.py.
Decides: the image of an engine (its packages).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kimi_prov.planner.engine import expert_backend
from kimi_prov.planner.service import metrics

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.catalog.systems import System
    from kimi_prov.contract.documents.plan.software import SkippedTuning, TuningPlan
    from kimi_prov.facts.host import Host
    from kimi_prov.planner.findings import Findings

# Setting, value, and whether a higher value is kept.
_SYSCTLS = (
    ("kernel.numa_balancing", 0, False),  # it moves pages that are bound on purpose
    ("vm.max_map_count", 1048576, True),  # shards are mapped in many pieces
    ("vm.swappiness", 1, False),  # weights that are swapped out come back a page at a time
    ("vm.zone_reclaim_mode", 0, False),  # a full node shall use other nodes' memory, not reclaim
)
_NOFILE = 1048576
# Systems without apt, by their id in os-release, up to a hyphen.
_WITHOUT_APT = frozenset(
    {"almalinux", "amzn", "centos", "fedora", "ol", "opensuse", "rhel", "rocky", "sles"}
)
_ELSEWHERE = (
    "install {proven} on the machine, or in a virtual machine that has its GPUs: packages, their "
    "pins and the driver come by apt here, and nothing by dnf or zypper"
)
# NCCL loads libibverbs when it starts, and libibverbs a provider of the card: without them it takes
# TCP and says so in one line at INFO.
RDMA_PACKAGES = ("ibverbs-providers", "libibverbs1")
_PACKAGES = ("ca-certificates", "haproxy", "nftables", "numactl", "openssl")


def check_system(host: Host, catalogue: Catalogue, findings: Findings) -> None:
    """Check the operating system and the init system."""
    release = host.system
    shown = release.title or f"{release.id} {release.version}"
    named = (release.id, release.version)
    row = next((row for row in catalogue.systems if (row.id, row.version) == named), None)
    proven = " or ".join(f"{r.id} {r.version}" for r in catalogue.systems if r.proven)
    to_install = " or ".join(_format_name(r) for r in catalogue.systems if r.proven)
    others = ", ".join(_format_name(r) for r in catalogue.systems if not r.proven)
    if release.id is None:
        findings.add(
            "os.supported",
            severity="info",
            observed="unknown",
            required=proven,
        )
    elif row is None:
        findings.add(
            "os.supported",
            severity="blocker",
            observed=shown,
            required=", ".join(f"{r.id} {r.version}" for r in catalogue.systems),
            fix=_ELSEWHERE.format(proven=to_install)
            if release.id.partition("-")[0] in _WITHOUT_APT
            else f"install {to_install}, or one that nobody proved: {others}",
        )
    elif not row.proven:
        findings.add(
            "os.supported",
            severity="warning",
            observed=shown,
            required=proven,
            fix=f"try it in a machine that may fail, or install {to_install}",
        )
    else:
        findings.add(
            "os.supported",
            severity="pass",
            observed=shown,
            required=proven,
        )
    if release.systemd is False:
        findings.add(
            "os.systemd",
            observed="no /run/systemd/system",
            required="systemd as the first process",
            fix="boot the machine, or the container, with systemd",
        )


def _format_name(system: System) -> str:
    return f"{system.id.title()} {system.version}"


def choose_tuning(host: Host, *, on_cpu: bool) -> TuningPlan:
    """Choose the settings to change, and name those that are left alone, with the reason.

    The values do not depend on what is set now, except that a higher limit is kept.
    """
    have = host.tunables
    sysctl: dict[str, str] = {}
    skipped: list[SkippedTuning] = []
    for name, value, at_least in _SYSCTLS:
        row = have.sysctl.get(name)
        if row is None:
            skipped.append({"what": name, "reason": "this kernel does not have it"})
        elif not row.writable:
            skipped.append({"what": name, "reason": _describe_foreign_settings(host)})
        else:
            current = int(row.value) if row.value and row.value.isdigit() else 0
            sysctl[name] = str(max(value, current) if at_least else value)
    proposed = {"governor": "performance"}
    if on_cpu:
        # Every token reads all weights, which lie in the engine's own memory.
        proposed["thp"] = "always"
    chosen: dict[str, str | None] = {"thp": None, "governor": None}
    switches = {"thp": have.thp, "governor": have.governor}
    for name, choice in sorted(proposed.items()):
        row = switches[name]
        label = {"thp": "transparent huge pages", "governor": "CPU frequency governor"}[name]
        if row is None:
            skipped.append({"what": label, "reason": "this machine does not have it"})
        elif choice not in row.choices:
            skipped.append({"what": label, "reason": f"{choice} is not among its choices"})
        elif not row.writable:
            skipped.append({"what": label, "reason": _describe_foreign_settings(host)})
        else:
            chosen[name] = choice
    return {
        "sysctl": sysctl,
        "thp": chosen["thp"],
        "governor": chosen["governor"],
        "limits": {"memlock": "infinity", "nofile": _choose_nofile(host, skipped)},
        "skipped": skipped,
    }


def _choose_nofile(host: Host, skipped: list[SkippedTuning]) -> int:
    """Choose the engine's limit of open files; in a container, at most that of its init."""
    most = host.tunables.nofile_max
    if not host.system.container or most is None or most >= _NOFILE:
        return _NOFILE
    skipped.append({"what": f"open files above {most}", "reason": _describe_foreign_settings(host)})
    return int(most)


def _describe_foreign_settings(host: Host) -> str:
    container = host.system.container
    if container:
        return f"this is a container ({container}): the setting belongs to its host"
    return "it cannot be changed on this machine"


@dataclass(frozen=True)
class PackageGroups:
    """The features of a machine that need more packages than every machine has.

    `kernel`: the experts' kernel is compiled when the engine is installed. `drives`: the driver's
    repository may be set up, and its key checked. `orders`: a certificate is ordered by ACME.
    `watched`: metrics are exported. `buckets`: weights come from a bucket. `rdma`: GPUs of several
    machines exchange data by RDMA.
    """

    kernel: bool = False
    drives: bool = False
    orders: bool = False
    watched: bool = False
    buckets: bool = False
    rdma: bool = False

    @property
    def packages(self) -> list[str]:
        """List the Debian packages of all features."""
        names = list(expert_backend.PACKAGES) if self.kernel else []
        names += ["gpg", "python3-debian"] if self.drives else []
        names += ["certbot"] if self.orders else []
        names += [metrics.PACKAGE] if self.watched else []
        names += RDMA_PACKAGES if self.rdma else []
        return names + (["rclone"] if self.buckets else [])


def list_packages(
    host: Host, python: str | None, parts: PackageGroups, *, compiles: bool
) -> list[str]:
    """List the Debian packages that the roles need; `python` is the interpreter's path.

    `python` is None for a bundled interpreter, which has its own headers. uv itself is installed
    with the system's Python.
    """
    named = _name_python_package(host, python)
    more = ["g++"] if compiles else []
    more += [f"{named}-dev"] if compiles and python else []
    return sorted({*_PACKAGES, "python3-venv", f"{named}-venv", *more, *parts.packages})


def _name_python_package(host: Host, python: str | None) -> str:
    """Name the Debian package of an interpreter by its path, python3 for the system's own."""
    name = (python or "").rsplit("/", 1)[-1]
    versioned = name.startswith("python3.") and python != host.python_path
    own = (host.python_version or "").startswith(name.removeprefix("python") + ".")
    return name if versioned and not own else "python3"


def list_web_ui_packages(host: Host, python: str | None) -> list[str]:
    """List the Debian packages of a web UI without an engine; `python` None: the bundled one."""
    return sorted({"python3-venv", f"{_name_python_package(host, python)}-venv"})


def list_gateway_packages(
    *, orders: bool, shared: bool, watched: bool, page: Sequence[str] = ()
) -> list[str]:
    """List the Debian packages of a gateway. `shared`: the gateways share one address.

    `watched`: metrics are exported. `page`: the packages of its web UI, where it has one.
    """
    more = ["certbot"] if orders else []
    # ufw's rules name VRRP, which is in netbase's list of protocols.
    more += ["keepalived", "netbase"] if shared else []
    more += [metrics.PACKAGE] if watched else []
    more += page
    return sorted({*_PACKAGES, *more} - {"numactl"})


def list_image_packages(*, compiles: bool, proxied: bool) -> list[str]:
    """List the Debian packages of an image: no firewall runs in a pod. `proxied`: HAProxy does."""
    more = ["g++", "python3-dev", *RDMA_PACKAGES] if compiles else []
    return sorted(
        ["ca-certificates", "numactl", "python3", *more, *(["haproxy"] if proxied else [])]
    )
