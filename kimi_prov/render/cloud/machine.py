"""The files by which a cloud machine provisions itself, goes on after a boot, and ends."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from kimi_prov.contract import paths
from kimi_prov.packaging import own_wheel
from kimi_prov.planner.software.installation import UV_LOCK, describe_download
from kimi_prov.render import templates
from kimi_prov.render.cloud import variables
from kimi_prov.render.folder_writer import File

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kimi_prov.catalog.pythons import Interpreter
    from kimi_prov.planner.settings.parsing import Settings
    from kimi_prov.render.cloud.package import Package

TEMPLATES = Path(__file__).resolve().parent / "templates"
# Time to look at a machine whose provisioning failed, until it is given back.
FAILED_MINUTES = 15
HOME = "/etc/kimi-up"
VENV = "/opt/kimi-prov"
INSTALL = "/usr/local/sbin/kimi-install"
STATE = "/var/lib/kimi-up"
UP = "/usr/local/sbin/kimi-up"
_DISKS = "/usr/local/sbin/kimi-disks"
# Links that the clouds' images make to disks of the machine itself.
_LOCAL_DISKS = {
    "gcp": "/dev/disk/by-id/google-local-nvme-ssd-*",
    "aws": "/dev/disk/by-id/nvme-Amazon_EC2_NVMe_Instance_Storage_*",
}
_UNITS = "/etc/systemd/system"
_HOSTS = {"kimi": {"hosts": {"localhost": {"ansible_connection": "local"}}}}
# What ends the machine comes first: it is armed before anything else of ours is there.
_PLACES = {
    "kimi-release": (variables.RELEASE, 0o755),
    "kimi-give-up.service": (f"{_UNITS}/kimi-give-up.service", 0o644),
    "kimi-give-up.timer": (f"{_UNITS}/kimi-give-up.timer", 0o644),
    "kimi-failed.timer": (f"{_UNITS}/kimi-failed.timer", 0o644),
    "kimi-up": (UP, 0o755),
    "kimi-install": (INSTALL, 0o755),
    "kimi-disks": (_DISKS, 0o755),
    "kimi-wait": ("/usr/local/sbin/kimi-wait", 0o755),
    "kimi-up.service": (f"{_UNITS}/kimi-up.service", 0o644),
    "kimi-preemption.service": (f"{_UNITS}/kimi-preemption.service", 0o644),
}
# The last of the files that end it.
WAY_OUT = _PLACES["kimi-give-up.timer"][0]
PREEMPTION = "kimi-preemption.service"


WAIT = "kimi-wait"


def make_files(settings: Settings, launcher: str, package: Package) -> list[File]:
    """Give the machine's files by their paths there. Pure: the same input gives the same bytes.

    `launcher`: cloud-init or skypilot, which ends a machine itself. Where the folder's files reach
    the machine, the wheel is one of them.
    """
    release = f"cloud release --provider {settings.cloud}"
    values = {
        "settings": settings,
        "package": package,
        "fetched": launcher == "cloud-init" and package.object is not None,
        "rclone": _make_rclone_environment(settings, package),
        "remote": _name_remote(package),
        "folder": STATE,
        "lock": own_wheel.LOCK,
        "uv_lock": f"{own_wheel.LOCKS}/{UV_LOCK}",
        "build": package.interpreter,
        "downloads": _make_downloads(settings, package.interpreter),
        "venv": VENV,
        "install": INSTALL,
        "pip": _make_pip_options(settings),
        "environment": _make_environment(settings),
        "apt": settings.apt_mirror,
        "zipapp": paths.ZIPAPP,
        "home": HOME,
        "state": STATE,
        "release": f"/usr/bin/python3 -I {paths.ZIPAPP} {release}",
        "release_words": release,
        "failed_minutes": FAILED_MINUTES,
        "disks": _DISKS,
        "local_disks": _LOCAL_DISKS[settings.cloud],
        "models": paths.MODELS,
        "release_script": variables.RELEASE,
        "launcher": launcher,
        "spot": settings.cloud_terms != "on-demand",
    }
    left_out = {
        *([] if values["spot"] else [PREEMPTION]),
        *([] if launcher == "skypilot" else [WAIT]),
    }
    made = {name: _render_file(name, values) for name in _PLACES if name not in left_out}
    inventory = {
        f"{HOME}/inventory/hosts.yml": _format_yaml(_HOSTS),
        f"{HOME}/inventory/group_vars/kimi.yml": _format_yaml(variables.make_variables(settings)),
    }
    pinned = variables.make_manifest(settings)
    if pinned is not None:
        inventory[f"{HOME}/inventory/{variables.MANIFEST}"] = pinned
    if settings.ca_bundle:
        bundle = Path(settings.ca_bundle).read_bytes()
        inventory[f"{HOME}/inventory/{variables.CA_BUNDLE}"] = bundle
    carried = package.content if launcher == "skypilot" else None
    return [
        *([File(f"{STATE}/{package.name}", carried)] if carried else []),
        *(File(_PLACES[name][0], content, _PLACES[name][1]) for name, content in made.items()),
        *(File(path, content) for path, content in inventory.items()),
    ]


def _render_file(name: str, values: Mapping[str, Any]) -> bytes:
    environment = templates.make_environment(TEMPLATES / "machine")
    environment.filters |= {"sh": shlex.quote, "url": _make_url}
    return environment.get_template(f"{name}.j2").render(values).encode()


def _make_downloads(settings: Settings, build: Interpreter) -> str:
    """Return uv's list of one build. A directory of a mirror is one of the machine's own."""
    url = build.mirrored(settings.python_mirror)
    return json.dumps({build.key: describe_download(build, _make_url(url))})


def _make_pip_options(settings: Settings) -> list[str]:
    """Return the options of pip: where the site's packages come from."""
    options = []
    if settings.pip_index_url:
        options += ["--index-url", settings.pip_index_url]
    for url in settings.pip_extra_index_urls:
        options += ["--extra-index-url", url]
    if settings.pip_find_links and "://" in settings.pip_find_links:
        options += ["--find-links", settings.pip_find_links]
    return options


def _make_url(address: str) -> str:
    return f"file://{address}" if address.startswith("/") else address


def _name_remote(package: Package) -> str | None:
    """Return a wheel in a bucket by the name that rclone has for it."""
    if package.bucket is None:
        return None
    scheme, _, bucket = package.bucket.partition("://")
    return f":{'gcs' if scheme == 'gs' else 's3'}:{bucket}/{package.object}"


def _make_rclone_environment(settings: Settings, package: Package) -> list[tuple[str, str]]:
    """Return rclone's settings: the machine's role opens the bucket, as it does for the weights."""
    endpoint = settings.bucket_endpoint
    if package.scheme == "gs":
        rows = [
            ("RCLONE_GCS_ENV_AUTH", "true"),
            ("RCLONE_GCS_BUCKET_POLICY_ONLY", "true"),
            ("RCLONE_GCS_ENDPOINT", f"{endpoint.rstrip('/')}/storage/v1/" if endpoint else None),
        ]
    else:
        rows = [
            ("RCLONE_S3_PROVIDER", "Other" if endpoint else "AWS"),
            ("RCLONE_S3_ENV_AUTH", "true"),
            ("RCLONE_S3_ENDPOINT", endpoint),
            ("RCLONE_S3_REGION", settings.bucket_region or ("us-east-1" if endpoint else None)),
        ]
    return [(name, value) for name, value in rows if value]


def _make_environment(settings: Settings) -> list[tuple[str, str]]:
    settings_used = variables.make_variables(settings)
    bundle = f"{HOME}/inventory/{variables.CA_BUNDLE}" if settings.ca_bundle else None
    rows = [
        ("http_proxy", settings_used.get("kimi_http_proxy")),
        ("https_proxy", settings_used.get("kimi_https_proxy")),
        ("no_proxy", ",".join(settings.no_proxy) if settings.no_proxy else None),
        ("PIP_CERT", bundle),
        ("SSL_CERT_FILE", bundle),
    ]
    return [(name, str(value)) for name, value in rows if value]


def _format_yaml(document: Mapping[str, Any]) -> bytes:
    return yaml.safe_dump(dict(document), sort_keys=True, allow_unicode=True).encode()
