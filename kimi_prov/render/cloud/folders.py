"""The folders of `render cloud-init` and `render skypilot`: every file of them."""

from __future__ import annotations

import base64
import gzip
import shlex
from typing import TYPE_CHECKING, Any

import yaml

from kimi_prov.contract import clean_text, paths
from kimi_prov.contract.addresses import BUCKET_ADDRESS
from kimi_prov.contract.rendered_kinds import CLOUD_INIT, SKYPILOT
from kimi_prov.planner.storage.weights import is_bucket
from kimi_prov.render import folder_writer, templates
from kimi_prov.render.cloud import images, machine, offers, ranking, skypilot
from kimi_prov.render.folder_writer import File

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from jinja2 import Environment

    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.contract.documents.findings import Finding
    from kimi_prov.contract.documents.plan import MachinePlan
    from kimi_prov.planner.settings.parsing import Settings
    from kimi_prov.render.cloud.package import Package
    from kimi_prov.render.cloud.ranking import MachineChoice

_UP = ["kimi-up.service", "kimi-give-up.timer"]
# A text below this size is not compressed.
_PACKED_BYTES = 4096
# Ends each text in a script.
_END = "END_OF_FILE"
_HOOK_S = 60


def render_cloud_init(
    name: str,
    plan: MachinePlan,
    findings: Sequence[Finding],
    settings: Settings,
    chosen: MachineChoice,
    package: Package,
) -> folder_writer.RenderedFolder:
    """Give the folder of `render cloud-init`. Pure: the same input gives the same bytes."""
    files = make_metadata(settings, package)
    values = _make_values(name, plan, findings, settings, chosen)
    values["package"] = package
    values["offers"] = offers.list_offers(settings, chosen.kinds, settings.cloud_regions)
    values["size"] = len(files[0].content)
    templates_used = ["README.md", "launch.sh", *(["upload.sh"] if package.object else [])]
    return folder_writer.RenderedFolder(
        CLOUD_INIT,
        name,
        folder_writer.compute_plan_digest(plan),
        [
            _make_plan_file({**plan, "findings": list(findings)}),
            *files,
            *([File(package.name, package.content)] if package.content else []),
            File("meta-data", b"instance-id: kimi\nlocal-hostname: kimi\n"),
            _render_check(CLOUD_INIT, values, chosen),
            *(_render_template(CLOUD_INIT, path, values) for path in templates_used),
        ],
    )


def make_metadata(settings: Settings, package: Package) -> list[File]:
    """Give the metadata files that a machine is started with.

    user-data is for cloud-init. Google's own Debian has none, and Google wants none beside its
    agent, which runs a startup-script: that one has the same files.
    """
    files = machine.make_files(settings, CLOUD_INIT, package)
    metadata = [File("user-data", _make_user_data(files, settings))]
    return (
        [*metadata, _make_startup_script(files, settings)] if settings.cloud == "gcp" else metadata
    )


def _make_user_data(files: Sequence[File], settings: Settings) -> bytes:
    """Give the cloud-config that lays the machine's files and starts their units."""
    document = {
        "write_files": [_describe_file(file) for file in files],
        "runcmd": _make_start_commands(settings),
    }
    text = yaml.dump(document, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=1000)
    return b"#cloud-config\n# Written by kimi-prov render cloud-init.\n" + text.encode()


def _make_startup_script(files: Sequence[File], settings: Settings) -> File:
    laid = [
        {
            "path": file.path,
            "mode": f"{file.mode:04o}",
            "packed": _pack_content(file.content) if _needs_packing(file.content) else None,
            "plain": file.content.decode(),
        }
        for file in files
    ]
    values = {
        "laid": laid,
        "end": _END,
        "commands": _make_start_commands(settings),
        "state": machine.STATE,
        "up": machine.UP,
        "give_up_minutes": -(-settings.cloud_give_up // 60),
    }
    return _render_template(CLOUD_INIT, "startup-script", values)


def _needs_packing(content: bytes) -> bool:
    """Whether a script must hold a text compressed: it is binary, or too long to be read there."""
    fits = content.endswith(b"\n") and _END.encode() not in content.splitlines()
    return len(content) > _PACKED_BYTES or not fits


def _make_start_commands(settings: Settings) -> list[list[str]]:
    """Give the commands that start the units of files that were laid."""
    return [
        ["systemctl", "daemon-reload"],
        ["systemctl", "enable", *_list_units(settings)],
        ["systemctl", "start", "--no-block", *_UP],
    ]


def render_skypilot(
    name: str,
    plan: MachinePlan,
    findings: Sequence[Finding],
    settings: Settings,
    chosen: MachineChoice,
    package: Package,
    catalogue: Catalogue,
) -> folder_writer.RenderedFolder:
    """Give the folder of `render skypilot`. Pure: the same input gives the same bytes."""
    values = _make_values(name, plan, findings, settings, chosen)
    values["package"] = package
    values["offers"] = offers.list_offers(settings, chosen.kinds, settings.cloud_regions or [""])
    laid = machine.make_files(settings, SKYPILOT, package)
    seeding = skypilot.plan_seeding(plan, settings, catalogue) if values["bucket"] else None
    values["seeding"] = seeding
    if seeding:
        values["fill"] = "sky launch seed.sky.yaml -c kimi-seed --detach-run"
    return folder_writer.RenderedFolder(
        SKYPILOT,
        name,
        folder_writer.compute_plan_digest(plan),
        [
            _make_plan_file({**plan, "findings": list(findings)}),
            File("kimi.sky.yaml", _format_yaml(_make_task(plan, settings, values["offers"]))),
            *(
                [File("seed.sky.yaml", _format_yaml(skypilot.make_seed_task(seeding, settings)))]
                if seeding
                else []
            ),
            *(File(f"machine{row.path}", row.content, row.mode) for row in laid),
            File("machine/install", _make_install_script(laid, settings), 0o755),
            _render_check(SKYPILOT, values, chosen),
            *(_render_template(SKYPILOT, path, values) for path in ("README.md", "launch.sh")),
        ],
    )


def _make_task(
    plan: MachinePlan, settings: Settings, tried: Sequence[offers.Offer]
) -> dict[str, Any]:
    resources: dict[str, Any] = {
        "ordered": [
            {
                "infra": skypilot.format_infra(settings.cloud, row.place),
                "accelerators": row.accelerators,
                "use_spot": row.spot,
            }
            for row in tried
        ],
        "disk_size": offers.choose_disk_gb(plan),
        # The weights go onto the machine's own disks. "best" would be a disk with the least
        # throughput on 8x H100 of Google, and one that costs by its operations at AWS.
        "disk_tier": "high",
        # The job ends when the model is idle: the time counts from then on.
        "autostop": {"idle_minutes": skypilot.IDLE_MINUTES, "down": True, "wait_for": "jobs"},
    }
    if settings.cloud_image:
        resources["image_id"] = settings.cloud_image
    if settings.allowed_networks:
        resources["ports"] = settings.port
    leave = f"sudo /usr/bin/python3 -I {paths.ZIPAPP} cloud leave --provider {settings.cloud}"
    hook = f"[ ! -r {paths.ZIPAPP} ] || {leave}"
    return {
        "name": "kimi",
        "resources": resources,
        "config": {
            "hooks": [{"run": hook, "events": ["stop", "preemption", "down"], "timeout": _HOOK_S}]
        },
        "file_mounts": skypilot.MOUNTS,
        # After a restart for the driver the unit goes on, and the next launch waits here again.
        "setup": f"sudo bash {skypilot.MOUNTED}/install\nsudo /usr/local/sbin/kimi-wait driver\n",
        "run": "sudo /usr/local/sbin/kimi-wait\n",
    }


def _make_install_script(files: Sequence[File], settings: Settings) -> bytes:
    """Give the script that lays the files onto the machine and starts their units.

    What ends the machine is laid and started first. Where a step fails, the machine is switched off
    after the time that a failed machine has.
    """
    reload, enable, start = (" ".join(words) for words in _make_start_commands(settings))
    laid = [
        f"install -D -m {row.mode:04o} {shlex.quote(row.path.lstrip('/'))} "
        f'"$root"{shlex.quote(row.path)}'
        for row in files
    ]
    first = 1 + [row.path for row in files].index(machine.WAY_OUT)
    lines = [
        "#!/bin/bash",
        "# Lays these files onto the machine, as root, and starts what brings it up.",
        "# What ends the machine comes first: SkyPilot ends none whose setup failed.",
        "set -euo pipefail",
        "root=${KIMI_ROOT:-}",
        'cd "$(dirname "$0")"',
        f"trap '[ $? = 0 ] || shutdown -P +{machine.FAILED_MINUTES}' EXIT",
        *laid[:first],
        reload,
        "systemctl enable --now kimi-give-up.timer",
        *laid[first:],
        reload,
        enable,
        "systemctl reset-failed kimi-up.service || true",
        start,
        "# Of a try before this one.",
        "shutdown -c || true",
    ]
    return ("\n".join(lines) + "\n").encode()


def _list_units(settings: Settings) -> list[str]:
    return [*_UP, *([machine.PREEMPTION] if settings.cloud_terms != "on-demand" else [])]


def _make_values(
    name: str,
    plan: MachinePlan,
    findings: Sequence[Finding],
    settings: Settings,
    chosen: MachineChoice,
) -> dict[str, Any]:
    source = str(plan["weights"]["source"])
    return {
        "name": clean_text.clean_line(name),
        "plan": plan,
        "settings": settings,
        "findings": [row for row in findings if row["severity"] != "pass"],
        "model": plan["model"],
        "engine": plan["engine"],
        "bucket": source if is_bucket(source) else None,
        "bucket_name": _name_bucket(source, settings),
        "fill": f"kimi-prov weights seed hf://OWNER/NAME@REVISION {source}",
        "disk_gb": offers.choose_disk_gb(plan),
        "image": settings.cloud_image,
        "image_options": images.make_gcloud_options(settings.cloud_image),
        "ranked": chosen.ranked,
        "usd_hour": _find_hour_usd(settings, chosen),
        "cheaper_below": ranking.compute_break_even,
        "inputs": ranking.count_inputs(settings),
    }


def _name_bucket(source: str, settings: Settings) -> str:
    """Return the name that the cloud's own program takes; "" for a bucket of somebody else."""
    named = BUCKET_ADDRESS.fullmatch(source)
    if named is None or named[1] != {"gcp": "gs", "aws": "s3"}[settings.cloud]:
        return ""
    return f"gs://{named[2]}" if settings.cloud == "gcp" else named[2]


def _find_hour_usd(settings: Settings, chosen: MachineChoice) -> float | None:
    """Return what an hour costs: the site's word, else the dearest of the kinds that are tried."""
    prices = [row.usd_hour for row in chosen.ranked if row.kind in chosen.kinds and row.usd_hour]
    return settings.hour_usd or max(prices, default=None)


def _describe_file(file: File) -> dict[str, Any]:
    row: dict[str, Any] = {"path": file.path, "permissions": f"{file.mode:04o}"}
    if len(file.content) > _PACKED_BYTES:
        return {**row, "encoding": "gz+b64", "content": _pack_content(file.content)}
    return {**row, "content": file.content.decode()}


def _pack_content(content: bytes) -> str:
    return base64.b64encode(gzip.compress(content, mtime=0)).decode()


class _Dumper(yaml.SafeDumper):
    """Writes texts of several lines as they are."""


def _represent_text(dumper: yaml.SafeDumper, value: str) -> yaml.Node:
    return dumper.represent_scalar(
        "tag:yaml.org,2002:str", value, style="|" if "\n" in value else None
    )


_Dumper.add_representer(str, _represent_text)


def _format_yaml(document: Mapping[str, Any]) -> bytes:
    text = yaml.dump(dict(document), Dumper=_Dumper, sort_keys=False, width=1000)
    return b"# Written by kimi-prov render skypilot.\n" + text.encode()


def _make_plan_file(document: Mapping[str, Any]) -> File:
    return File(folder_writer.PLAN, (clean_text.as_json(document) + "\n").encode())


def _render_check(kind: str, values: Mapping[str, Any], chosen: MachineChoice) -> File:
    """Give check.sh, which looks at what every attempt needs, before anything is paid for."""
    tried = values["offers"]
    attempts = [
        (row, *offers.split_region(row.place), offers.list_quotas(row, chosen.kinds))
        for row in tried
    ]
    own = {**values, "launcher": kind, "attempts": attempts}
    text = _make_environment().get_template("check.sh.j2").render(own)
    return File("check.sh", text.encode(), 0o755)


def _render_template(kind: str, path: str, values: Mapping[str, Any]) -> File:
    text = _make_environment().get_template(f"{kind}/{path}.j2").render(values)
    return File(path, text.encode(), 0o755 if path.endswith(".sh") else 0o644)


def _make_environment() -> Environment:
    environment = templates.make_environment(machine.TEMPLATES)
    environment.filters["sh"] = lambda value: shlex.quote(str(value))
    return environment
