"""Inventory variables as typed settings; an error names file, line and the nearest known name.

Decides: which variables exist, their checks and defaults (which go together).
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from kimi_prov import documents
from kimi_prov.contract.addresses import (
    is_sent_in_clear,
)
from kimi_prov.contract.documents.facts.kimi import ServedFacts  # noqa: TC001  (read at run time)
from kimi_prov.contract.documents.plan.weights import WeightsFile, WeightsManifest
from kimi_prov.errors import UserError
from kimi_prov.packaging import resources
from kimi_prov.planner.settings import certificates, lifecycle, walltime
from kimi_prov.planner.settings.definitions import (
    BY_NAME,
    INTERNAL,
    LENGTH_VARIABLES,
    VARIABLES,
)
from kimi_prov.planner.settings.kinds import Occurrence, parse_int, parse_value
from kimi_prov.sizing.load import INPUT_TOKENS, OUTPUT_TOKENS

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    Locate = Callable[[str], str | None]
_MAX_MANIFEST_BYTES = 16 << 20


# The settings that may be left to the planner.
Auto = Literal[
    "context",
    "cache_offload",
    "weights_format",
    "kt_method",
    "instances",
    "kv_dtype",
    "engine",
    "engine_version",
    "experts",
    "dense_weights",
    "threads",
    "speculative",
    "speculative_tokens",
    "start_timeout_s",
    "request_body_max",
    "prepared_weights",
    "nvidia_driver_version",
    "slurm_gres",
    "slurm_conda",
    "kubernetes_access_mode",
    "kubernetes_cpus",
    "kubernetes_memory_gib",
    "serial",
]


@dataclass(frozen=True)
class Settings:
    """The checked variables of one host: a field for each variable of `definitions`.

    Paths are absolute, on the control machine. None and "auto" leave the choice to the planner.
    `speculative_model` is the draft that either variable names, or that the planner takes.
    `host` and `address` are the inventory's; a `manifest` is the content of its file. `served`:
    what the machine serves by and keeps where a setting is left to the planner.
    """

    host: str
    address: str | None
    model: str
    context: int | Literal["auto"]
    concurrency: int
    optimise: Literal["latency", "throughput", "balanced"]
    choose_anew: bool
    served_names: list[str]
    weights_source: str | None
    weights_manifest: str | None
    weights_format: Literal["int4", "nvfp4", "mxfp4", "fp8", "bf16", "auto"]
    kt_method: Literal["AMXINT4", "AMXINT8", "auto"]
    kt_weights_source: str | None
    kt_weights_manifest: str | None
    draft_weights_source: str | None
    draft_weights_manifest: str | None
    weights_from: Literal["auto", "source", "neighbours"]
    weights_port: int
    weights_workers: int
    hf_endpoint: str | None
    hf_token_file: str | None
    bucket_credentials_file: str | None
    bucket_endpoint: str | None
    bucket_region: str | None
    ram_disk: Literal["auto", "always", "never"]
    prepared_weights: Literal["auto", "on", "off"]
    instances: int | Literal["auto"]
    kv_dtype: Literal["bf16", "fp8", "auto"]
    port: int
    allowed_networks: list[str]
    request_body_max: int | Literal["auto"]
    tls: Literal["auto", "files", "self-signed", "acme"]
    tls_cert_file: str | None
    tls_key_file: str | None
    tls_names: list[str]
    acme_directory_url: str
    acme_contact: str | None
    acme_challenge: Literal["http-01", "dns-01"]
    acme_dns_hook: str | None
    api_keys_file: str | None
    web_ui: bool
    web_port: int
    web_admin_file: str | None
    web_signup: bool
    engine: Literal["vllm", "ktransformers", "auto"]
    engine_version: str
    engine_args: dict[str, Any]
    threads: int | Literal["auto"]
    experts: Literal["native", "kt", "vllm", "auto"]
    dense_weights: Literal["bf16", "int8", "auto"]
    workload: Literal["mixed", "chat", "code", "agents"]
    speculative: str
    speculative_model: str | None
    speculative_tokens: int | Literal["auto"]
    prefix_reuse: float | None
    cache_offload: int | Literal["auto", "off"]
    engine_stand_in: str | None
    start_timeout_s: int | Literal["auto"]
    drift_timer: bool
    usage_keep_days: int
    metrics: bool
    metrics_port: int
    metrics_networks: list[str]
    metrics_key_file: str | None
    monitor_local: bool
    watchdog: bool
    upgrade_min_speed: float | None
    upgrade_in_place: bool
    keep_versions: int
    stopped_memory: Literal["free", "keep"]
    idle_stop: int | None
    idle_action: Literal["stop", "sleep", "poweroff", "hook"]
    idle_hook: str | None
    idle_poweroff_self: bool
    wake: Literal["refuse", "hold", "off"]
    hosts_per_model: int
    group_port: int
    group_address: str | None
    gateway_address: str | None
    gateway_requests: int | None
    serial: int | Literal["auto"]
    slurm_root: str | None
    slurm_partition: str | None
    slurm_cpu_partition: str | None
    slurm_account: str | None
    slurm_qos: str | None
    slurm_cpu_qos: str | None
    slurm_constraint: str | None
    slurm_gres: str
    slurm_time: str
    slurm_signal_s: int
    slurm_requeue: bool
    slurm_idle_minutes: int
    slurm_modules: list[str]
    slurm_conda: Literal["conda", "mamba", "micromamba", "none", "auto"]
    slurm_python: str | None
    slurm_login: str | None
    kubernetes_name: str
    kubernetes_namespace: str | None
    kubernetes_image: str | None
    kubernetes_image_pull_secret: str | None
    kubernetes_storage_class: str | None
    kubernetes_access_mode: Literal["ReadWriteOnce", "ReadWriteMany", "auto"]
    kubernetes_cache_volume: bool
    kubernetes_node_selector: dict[str, str]
    kubernetes_tolerations: dict[str, str]
    kubernetes_runtime_class: str | None
    kubernetes_gpu_resource: str
    kubernetes_rdma_resource: str | None
    kubernetes_cpus: int | Literal["auto"]
    kubernetes_memory_gib: int | Literal["auto"]
    kubernetes_seccomp_profile: str | None
    kubernetes_grace_s: int
    kubernetes_tls: bool
    kubernetes_hostname: str | None
    kubernetes_web_hostname: str | None
    kubernetes_ingress_class: str | None
    kubernetes_gateway_class: str | None
    kubernetes_issuer: str | None
    kubernetes_internal_issuer: str | None
    kubernetes_ingress_namespace: str | None
    kubernetes_monitoring_namespace: str | None
    kubernetes_stop_schedule: str | None
    kubernetes_start_schedule: str | None
    kubernetes_time_zone: str
    kubernetes_kubectl_image: str
    kubernetes_web_image: str | None
    cloud: Literal["gcp", "aws"]
    cloud_regions: list[str]
    cloud_machines: list[str]
    cloud_terms: Literal["spot-first", "spot", "on-demand"]
    cloud_image: str | None
    cloud_package: str | None
    cloud_give_up: int
    hour_usd: float | None
    budget_usd: float | None
    nvidia_driver_version: str
    nvidia_repo_url: str | None
    nvidia_repo_key_url: str | None
    nvidia_repo_key_fingerprint: str | None
    bundle: str | None
    bundle_key: str | None
    ca_bundle: str | None
    pip_index_url: str | None
    pip_extra_index_urls: list[str]
    pip_find_links: str | None
    python_mirror: str | None
    torch_index_url: str | None
    apt_mirror: str | None
    http_proxy: str | None
    https_proxy: str | None
    no_proxy: list[str]
    manifest: WeightsManifest | None = None
    draft_manifest: WeightsManifest | None = None
    kt_manifest: WeightsManifest | None = None
    input_tokens: int = INPUT_TOKENS
    output_tokens: int = OUTPUT_TOKENS
    served: ServedFacts | None = None

    @property
    def request_tokens(self) -> int:
        """The tokens of a typical request and its answer, for estimates."""
        return self.input_tokens + self.output_tokens

    def auto(self, name: Auto) -> bool:
        """Whether the planner chooses this setting."""
        return bool(getattr(self, name) == "auto")


def parse_settings(
    variables: Mapping[str, Any],
    *,
    host: str,
    base: Path | None = None,
    locate: Locate | None = None,
) -> Settings:
    """Check one host's variables and ignore those not named `kimi_*`.

    `base`: directory from which relative paths start. `locate` returns "FILE:LINE" of a variable.
    Raises UserError for the first wrong variable.
    """
    find = locate or (lambda _name: None)
    names = sorted(str(n) for n in variables if str(n).startswith("kimi_") and n not in INTERNAL)
    for name in names:
        if name not in BY_NAME:
            raise _refuse_unknown(name, find(name))
    values = {}
    for variable in VARIABLES:
        occurrence = Occurrence(
            variable, host, find(variable.name) if variable.name in names else None
        )
        values[variable.name] = parse_value(
            variable, variables.get(variable.name), occurrence, base
        )
    _check_together(values, host, find)
    named = _choose_draft_name(
        values["kimi_speculative"],
        values["kimi_speculative_model"],
        find("kimi_speculative") or f"host {host}",
    )
    if named is not None:
        values |= {"kimi_speculative": named, "kimi_speculative_model": named}
    if values["kimi_bundle"]:
        values |= _replace_mirrors(values["kimi_bundle"])
    manifest, draft, converted = (
        _read_manifest(Path(file)) if (file := values[f"kimi_{name}weights_manifest"]) else None
        for name in ("", "draft_", "kt_")
    )
    address = variables.get("ansible_host")
    return Settings(
        host=host,
        address=str(address) if address else None,
        **{name.removeprefix("kimi_"): value for name, value in values.items()},
        manifest=manifest,
        draft_manifest=draft,
        kt_manifest=converted,
        **_read_lengths(variables),
    )


def _check_together(values: Mapping[str, Any], host: str, find: Locate) -> None:
    """Raise UserError for variables that contradict each other, although each is valid alone."""
    if values["kimi_model"] is None:
        raise UserError(
            f"host {host}: kimi_model is not set",
            fix="name the model in the inventory, for example  kimi_model: kimi-k2.5",
        )
    if (values["kimi_tls_cert_file"] is None) != (values["kimi_tls_key_file"] is None):
        raise UserError(
            f"host {host}: kimi_tls_cert_file and kimi_tls_key_file go together, one is not set",
            fix="set both, or neither for a self-signed certificate",
        )
    certificates.check_certificate(values, host, find)
    lifecycle.check_lifecycle(values, host, find)
    walltime.check_walltime(values, host, find)
    if values["kimi_kt_weights_manifest"] and values["kimi_kt_weights_source"] is None:
        raise UserError(
            f"host {host}: kimi_kt_weights_manifest is set and kimi_kt_weights_source is not",
            fix="name the converted experts in kimi_kt_weights_source, or remove the manifest",
        )
    endpoint = values["kimi_hf_endpoint"]
    if endpoint and values["kimi_hf_token_file"] and is_sent_in_clear(endpoint):
        raise UserError(
            f"{find('kimi_hf_endpoint') or f'host {host}'}: kimi_hf_endpoint: expected https, "
            f"found {endpoint!r}: kimi_hf_token_file's token would be sent to it in clear",
            fix="name the hub's https address, or remove kimi_hf_token_file",
        )
    endpoint = values["kimi_bucket_endpoint"]
    if endpoint and is_sent_in_clear(endpoint):
        raise UserError(
            f"{find('kimi_bucket_endpoint') or f'host {host}'}: kimi_bucket_endpoint: expected "
            f"https, found {endpoint!r}: what is asked and answered could be read and changed on "
            "the way",
            fix="name the server's https address",
        )


def _replace_mirrors(bundle: str) -> dict[str, object]:
    """Return the site's variables by which everything comes from an offline bundle."""
    return {
        "kimi_apt_mirror": None,
        "kimi_pip_index_url": None,
        "kimi_torch_index_url": None,
        "kimi_pip_extra_index_urls": [],
        "kimi_pip_find_links": f"{bundle}/wheels",
        "kimi_python_mirror": f"{bundle}/python",
    }


def _choose_draft_name(request: str, name: str | None, where: str) -> str | None:
    """Return the draft that the inventory names by either variable; None for none.

    Raises UserError where both are set and differ.
    """
    if name is not None and request not in ("auto", name):
        raise UserError(
            f"{where}: kimi_speculative: {request}, and kimi_speculative_model: {name}",
            fix="remove kimi_speculative_model: kimi_speculative takes the same names",
        )
    return name or (None if request in ("auto", "off") else request)


def _read_lengths(variables: Mapping[str, Any]) -> dict[str, Any]:
    """Return the lengths of a request that `check` sets, which has already checked them."""
    lengths = {
        name.removeprefix("kimi_"): parse_int(variables.get(name)) for name in LENGTH_VARIABLES
    }
    return {name: tokens for name, tokens in lengths.items() if tokens}


def _refuse_unknown(name: str, where: str | None) -> UserError:
    # The names are compared without their common prefix, which would make all of them similar.
    tails = {known.removeprefix("kimi_"): known for known in BY_NAME}
    close = difflib.get_close_matches(name.removeprefix("kimi_"), tails, n=2, cutoff=0.6)
    near = [tails[tail] for tail in close]
    hint = f"; did you mean {' or '.join(near)}?" if near else ""
    rename = f"rename it to {near[0]}, or " if near else ""
    return UserError(
        f"{where or 'the inventory'}: unknown variable {name}{hint}",
        fix=f"{rename}remove it; {resources.find_page('reference/variables.md')} lists all "
        "variables",
    )


def _read_manifest(path: Path) -> WeightsManifest:
    """Read a manifest of the control machine: path, size and SHA-256 of every file."""
    expected = 'expected {"files": [{"path": TEXT, "size": BYTES, "sha256": 64 HEX DIGITS}, ...]}'
    fix = "make one with  kimi-prov catalog pin hf://REPOSITORY@REVISION --output FILE"
    document = documents.read_document(
        path, what="a manifest", limit=_MAX_MANIFEST_BYTES, fix=fix
    ).json(fix)
    try:
        rows = [
            WeightsFile(
                path=str(row["path"]), size=int(row["size"]), sha256=str(row["sha256"]).lower()
            )
            for row in document["files"]
        ]
    except (ValueError, KeyError, TypeError):
        raise UserError(f"{path}: {expected}", fix=fix) from None
    for index, row in enumerate(rows):
        if not re.fullmatch(r"[0-9a-f]{64}", row["sha256"]):
            raise UserError(f"{path}: files[{index}] ({row['path']}): {expected}", fix=fix)
    if not rows:
        raise UserError(f"{path}: it lists no file; {expected}", fix=fix)
    return WeightsManifest(files=sorted(rows, key=lambda row: row["path"]))
