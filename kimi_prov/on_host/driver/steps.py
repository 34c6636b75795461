"""Applies the plan's `driver`: key, packages, rollback, and the check that the GPUs answer.

`driver VERB [--check]` reads one JSON object from standard input and answers with one.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import sys
import time
from pathlib import Path
from typing import Any, Callable

from kimi_prov.contract import paths, unit_names
from kimi_prov.contract.errors import HostError, describe_error
from kimi_prov.contract.state_files import KEPT
from kimi_prov.on_host.driver import apt, keyring
from kimi_prov.on_host.probe import nvidia_smi
from kimi_prov.on_host.system import (
    boot,
    files,
    forward_proxy,
    kept_state,
    kernels,
    process,
    units,
)
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.machine import Machine, parse_fields
from kimi_prov.on_host.weights import sources

KEYRING = "/etc/apt/keyrings/kimi-nvidia"
PIN = "/etc/apt/preferences.d/kimi-nvidia.pref"
PREVIOUS = f"{paths.DRIVER}/previous"
WANTED = f"{paths.DRIVER}/wanted.json"
_STATE = KEPT[paths.DRIVER_STATE]
_PINNED = re.compile(r"^Pin: version (\S+)-\*$", re.MULTILINE)
# Versions of the driver look like this; those of its tools and toolkits do not.
_DRIVER_VERSION = re.compile(r"\d{3}\.\d{2,3}(\.\d{2})?")
_NAME = re.compile(r".*nvidia.*|cuda-drivers.*|lib(cuda1|cudadebugger1|nvcuvid1|nvoptix1|xnvctrl0)")
_FOREIGN = re.compile(r".*nvidia-(container|docker).*")
_POLL_INTERVAL_S = 2.0
# DKMS compiles with all cores; a slow machine takes minutes.
_BUILD_S = 1800.0
Answer = dict[str, Any]


def main(argv: list[str]) -> int:
    """`driver VERB [--check]`."""
    verb = _VERBS.get(argv[0] if argv else "")
    if verb is None:
        raise HostError(f"usage: driver {' | '.join(_VERBS)}")
    request = {"check": "--check" in argv, **json.load(sys.stdin)}
    # apt and the key's download read the forward proxy here; the program that is sent has no unit
    # with that file.
    os.environ.update(forward_proxy.read_variables())
    return answer(verb(request))


def install_key(request: Answer) -> Answer:
    """Install the pinned key, and no other key of the repository's file."""
    repository = request["repository"]
    url = repository["key_url"]
    file = _fetch(url, request.get("ca_bundle"))
    content = keyring.extract_key(file, repository["fingerprint"], url)
    path = f"{KEYRING}.gpg"
    changed = _read_content(path) != content
    if changed and not request["check"]:
        os.makedirs(os.path.dirname(path), mode=0o755, exist_ok=True)
        with open(path, "wb") as stream:
            stream.write(content)
        os.chmod(path, 0o644)
    return {"changed": changed, "path": path}


def _fetch(url: str, ca_bundle: str | None) -> bytes:
    bundle = ca_bundle if ca_bundle and os.path.exists(ca_bundle) else None
    try:
        return sources.read_all(sources.Web(bundle, 30.0).open(url, {}, 0))
    except (OSError, HostError) as error:
        raise HostError(
            f"NVIDIA's repository cannot be reached from the machine: {url}: "
            f"{describe_error(error)}; nothing was changed",
            "let the machine reach it, or set kimi_nvidia_repo_url to a mirror of it",
        ) from None


def _read_content(path: str) -> bytes | None:
    try:
        with open(path, "rb") as stream:
            return stream.read()
    except FileNotFoundError:
        return None


def prepare(request: Answer) -> Answer:
    """Find the packages, simulate the transaction, keep the installed ones, download the new ones.

    Nothing is installed yet, and after this no network is needed.
    """
    # A run that was cut off in the middle of dpkg left work that is finished first.
    process.run("dpkg", "--configure", "-a", timeout=600)
    try:
        apt.refresh()
    except HostError as error:
        raise HostError(
            f"NVIDIA's repository does not answer as it should: {error}; nothing was changed",
            "check kimi_nvidia_repo_url, and the machine's network",
        ) from None
    headers = _find_headers()
    words = _build_transaction(request)
    steps = apt.simulate(*headers, *words)
    _check_transaction(steps, request["version"], request["repository"]["url"])
    kept = _keep_present(request["version"])
    apt.run_apt("apt-get", "install", "--download-only", *apt.ALLOWED, *headers, *words)
    files.write_json(WANTED, {"version": request["version"], "headers": headers, "words": words})
    return {
        "changed": bool(steps),
        "installs": [f"{s.name} {s.version}" for s in steps if s.version],
        "removes": [s.name for s in steps if not s.version],
        **kept,
    }


def _build_transaction(request: Answer) -> list[str]:
    """Return the arguments of one `apt-get install`; a package to remove ends with `-`."""
    version, url = request["version"], request["repository"]["url"]
    have = select_driver_packages(apt.list_installed())
    chosen = dict(_resolve(slot, version, url) for slot in request["packages"])
    going = []
    for name in have:
        if name in chosen:
            continue
        exact = None if name in request["replaced"] else _find_exact_version(name, version, url)
        if exact:
            chosen[name] = exact
        else:
            going.append(name)
    return [
        *(f"{name}={exact}" for name, exact in sorted(chosen.items())),
        *(f"{name}-" for name in sorted(going)),
    ]


def _resolve(slot: str, version: str, url: str) -> tuple[str, str]:
    """Return the first of the names `a|b` that exists in this version, and that exact version."""
    names = slot.split("|")
    for name in names:
        exact = _find_exact_version(name, version, url)
        if exact:
            return name, exact
    there = [v for name in names for v in apt.list_versions(name, url)]
    raise HostError(
        f"the repository has no {' or '.join(names)} of version {version}; "
        f"it has {', '.join(sorted(set(there))[-6:]) or 'none at all'}; nothing was changed",
        "set kimi_nvidia_driver_version to a version that it has",
    )


def _find_exact_version(name: str, version: str, url: str) -> str | None:
    return next((v for v in apt.list_versions(name, url) if apt.parse_upstream(v) == version), None)


def _find_headers() -> list[str]:
    """Return the kernel headers that the module is built against, where they are not installed.

    Includes those of the kernel that the next start brings: the driver's own restart may be that
    start.
    """
    lacking = [
        release
        for release in kernels.list_needed()
        if not os.path.exists(f"/lib/modules/{release}/build")
    ]
    for name in (f"linux-headers-{release}" for release in lacking):
        if not apt.list_versions(name):
            raise HostError(
                f"the machine's package sources have no {name}, which the driver's module is built "
                "against; nothing was changed",
                "restart the machine into a kernel that they have: apt-get update; apt-get install "
                "linux-image-amd64 linux-headers-amd64; reboot",
            )
    return [f"linux-headers-{release}" for release in lacking]


def select_driver_packages(packages: dict[str, str]) -> dict[str, str]:
    """Select a driver's packages: by name, and by a version like a driver's."""
    return {
        name: version
        for name, version in packages.items()
        if _NAME.fullmatch(name)
        and not _FOREIGN.fullmatch(name)
        and _DRIVER_VERSION.fullmatch(apt.parse_upstream(version))
    }


def _check_transaction(steps: list[apt.Step], version: str, url: str) -> None:
    """Refuse a transaction that mixes versions, or that removes other packages."""
    new = {s.name: s.version for s in steps if s.version}
    mixed = {
        name: v
        for name, v in select_driver_packages(new).items()
        if _find_exact_version(name, version, url) != v
    }
    if mixed:
        raise HostError(
            f"apt would take {_format_package_names(mixed)}, not {version} of {url}; nothing was "
            "changed",
            "look for a pin of another branch or origin: grep -r nvidia /etc/apt/preferences.d",
        )
    have = apt.list_installed()
    gone = {s.name: have.get(s.name, "") for s in steps if not s.version}
    others = sorted(set(gone) - set(select_driver_packages(gone)))
    if others:
        raise HostError(
            f"apt would remove {', '.join(others)} with the old driver; nothing was changed",
            f"remove them yourself if they may go: apt-get remove {' '.join(others)}",
        )


def _format_package_names(packages: dict[str, str]) -> str:
    return ", ".join(f"{name} {version}" for name, version in sorted(packages.items()))


def _keep_present(version: str) -> Answer:
    """Store the packages that are installed now, for a rollback."""
    have = select_driver_packages(apt.list_installed())
    old = {name: v for name, v in have.items() if apt.parse_upstream(v) != version}
    state = _read_state()
    if not old or (state.get("previous") or {}).get("packages") == old:
        return {"kept": len(old), "not_kept": []}
    shutil.rmtree(PREVIOUS, ignore_errors=True)
    os.makedirs(PREVIOUS)
    missing = [name for name, exact in sorted(old.items()) if not _keep_deb(name, exact)]
    previous = {"packages": old, "version": find_main_version(old), "whole": not missing}
    files.write_json(paths.DRIVER_STATE, {**state, "previous": previous})
    return {"kept": len(old) - len(missing), "not_kept": missing}


def _keep_deb(name: str, exact: str) -> bool:
    """Return whether the .deb of a package was got from the sources, else from apt's cache."""
    try:
        apt.run_apt("apt-get", "download", f"{name}={exact}", folder=PREVIOUS)
    except HostError:
        pattern = f"/var/cache/apt/archives/{name}_{exact.replace(':', '%3a')}_*.deb"
        cached = Machine().glob(pattern)
        if not cached:
            return False
        shutil.copy(cached[0], PREVIOUS)
    return True


def find_main_version(packages: dict[str, str]) -> str:
    """Return the version that most of the packages have."""
    found = [apt.parse_upstream(version) for version in packages.values()]
    return max(sorted(set(found)), key=found.count)


def install(request: Answer) -> Answer:
    """Run the transaction, then hold every package. Needs `prepare` before."""
    wanted = _read_prepared()
    if wanted.get("version") != request["version"]:
        raise HostError("the driver's packages were not prepared", "run `kimi-prov apply` again")
    before = apt.list_installed()
    # DKMS builds when its package is configured, and reports success where there are no headers.
    if wanted["headers"]:
        apt.run_transaction(*wanted["headers"])
    apt.run_transaction(*wanted["words"])
    require_modules(request["version"])
    held = _hold(select_driver_packages(apt.list_installed()))
    state = {key: value for key, value in _read_state().items() if key != "restarted"}
    files.write_json(paths.DRIVER_STATE, {**state, "version": request["version"], "held": held})
    return {"changed": apt.list_installed() != before}


def _read_prepared() -> Answer:
    """Read what `prepare` recorded last."""
    return files.read_json(WANTED)


def require_modules(version: str | None = None) -> None:
    """Raise HostError where a start would be without the module, of this version or of any.

    DKMS builds it for the running kernel, but not on all systems for a kernel that waits for its
    start: then DKMS is called for it.
    """
    for release in kernels.list_needed():
        built = _find_built_version(release)
        if not built:
            process.run("dkms", "autoinstall", "-k", release, timeout=_BUILD_S)
            built = _find_built_version(release)
        if not built or version not in (None, built):
            raise HostError(
                f"NVIDIA's module {f'{version} ' if version else ''}was not built for kernel "
                f"{release} (modinfo nvidia: {built or 'none'}): a restart would be without GPUs",
                f"apt-get install linux-headers-{release}, then dkms autoinstall -k {release}; "
                "why: /var/lib/dkms/nvidia/*/build/make.log on the machine",
            )


def _find_built_version(release: str) -> str | None:
    """Return the version of the module that a start with this kernel would load."""
    words = ["modinfo", "-k", release, "nvidia"]
    return parse_fields(Machine().run(words), ":").get("version")


def _hold(packages: dict[str, str]) -> list[str]:
    if packages:
        process.run("apt-mark", "hold", *sorted(packages))
    return sorted(packages)


def _read_state() -> Answer:
    return kept_state.read_file(Path(paths.DRIVER_STATE), _STATE)


def hold(request: Answer) -> Answer:
    """Hold the driver's packages and run its daemons; change nothing that is so already.

    A pin of a version that is not installed, left by a run that was killed, is removed, and the
    repository with it.
    """
    check = request["check"]
    have = select_driver_packages(apt.list_installed())
    done = _drop_stale_pin(have, check=check)
    free = sorted(set(have) - set(process.run("apt-mark", "showhold").stdout.split()))
    if free:
        done.append(f"hold {', '.join(free)}")
        if not check:
            kept = _read_state()
            held = {*(kept.get("held") or []), *free}
            process.run("apt-mark", "hold", *free)
            files.write_json(paths.DRIVER_STATE, {**kept, "held": sorted(held)})
    names = [unit_names.PERSISTENCED]
    names += [unit_names.FABRIC_MANAGER] if request["fabric_manager"] else []
    shown = units.read_states(*names)
    for name in names:
        unit = shown.get(name, {})
        if unit.get("load_state") != "loaded":
            continue
        if not _is_starting_at_boot(name):
            done.append(f"enable {name}")
            if not check:
                process.run("systemctl", "enable", name)
        # Never a restart: setting up the fabric again ends what runs on the GPUs.
        if unit["state"] != "active":
            done.append(f"start {name}")
            if not check:
                units.control("start", name)
    return {"changed": bool(done), "done": done}


def _drop_stale_pin(have: dict[str, str], *, check: bool) -> list[str]:
    """Remove a pin whose version no package of the driver has; return what is removed.

    The repository is removed too, because only the pin keeps it from superseding other packages.
    """
    content = _read_content(PIN)
    if content is None:
        return []
    pinned = _PINNED.search(content.decode(errors="replace"))
    if pinned and pinned[1] in {apt.parse_upstream(version) for version in have.values()}:
        return []
    if not check:
        files.remove(apt.SOURCE)
        files.remove(PIN)
    return [f"remove {PIN}"]


def _is_starting_at_boot(name: str) -> bool:
    """Return whether it starts at boot, or, without an [Install] section, with what needs it."""
    return process.run("systemctl", "is-enabled", name).stdout.strip() != "disabled"


def record_restart(request: Answer) -> Answer:
    """Record that the machine restarts itself: after the boot the version has to answer."""
    restarted = {"version": request["version"], "boot": boot.read_boot_id(Machine())}
    files.write_json(paths.DRIVER_STATE, {**_read_state(), "restarted": restarted})
    return {"changed": True}


def wait_for_gpus(request: Answer) -> Answer:
    """Wait until nvidia-smi lists every GPU with the planned version."""
    end = time.monotonic() + float(request["timeout_s"])
    while True:
        reason = _explain_not_ready(request)
        if reason is None or time.monotonic() > end:
            break
        time.sleep(_POLL_INTERVAL_S)
    if reason is not None:
        raise HostError(
            reason, "read the kernel's messages on the machine: dmesg | grep -iE 'nvrm|nvidia'"
        )
    state = _read_state()
    if state.pop("restarted", None):
        files.write_json(paths.DRIVER_STATE, state)
    return {"gpus": request["gpus"], "version": request["version"]}


def _explain_not_ready(request: Answer) -> str | None:
    """Return why the driver is not ready; None when it is."""
    text = Machine().run(["nvidia-smi", "-q", "-x"], timeout_s=60.0)
    reported = nvidia_smi.parse_query(text)
    if reported is None:
        output = " ".join((text or "").split()) or "nvidia-smi does not answer"
        return output[:300]
    if reported["driver"] != request["version"]:
        return f"nvidia-smi reports driver {reported['driver']}, not {request['version']}"
    if len(reported["gpus"]) < int(request["gpus"]):
        return f"nvidia-smi lists {len(reported['gpus'])} of {request['gpus']} GPUs"
    states = {str(gpu["fabric_state"]) for gpu in reported["gpus"] if gpu["fabric_state"]}
    if request["fabric_manager"] and states - {"Completed"}:
        return f"the fabric is {', '.join(sorted(states))}, not Completed"
    return None


def roll_back(request: Answer) -> Answer:
    """Reinstall the kept packages; record the version that failed, which is not tried again."""
    kept = _read_state()
    previous = kept.get("previous") or {}
    failed = {"version": request["version"], "why": request["why"]}
    # The packages that were kept before another version are not those before this version.
    if not previous.get("whole") or _read_prepared().get("version") != request["version"]:
        kept.pop("restarted", None)
        files.write_json(paths.DRIVER_STATE, {**kept, "failed": failed})
        raise HostError(
            f"there is no rollback from {request['version']} ({request['why']}): the packages of "
            "the driver before it are not kept here; it stays, and no restart is tried again",
            "look at the machine's console: dmesg | grep -i nvrm; to try this version again, "
            f"remove {paths.DRIVER_STATE}",
        )
    packages: dict[str, str] = previous["packages"]
    going = sorted(set(select_driver_packages(apt.list_installed())) - set(packages))
    debs = Machine().glob(f"{PREVIOUS}/*.deb")
    apt.run_transaction(*debs, *(f"{name}-" for name in going))
    held = _hold(packages)
    files.write_json(
        paths.DRIVER_STATE,
        {"version": previous["version"], "held": held, "failed": failed},
    )
    return {"changed": True, "version": previous["version"], "why": request["why"]}


_VERBS: dict[str, Callable[[Answer], Answer]] = {
    "key": install_key,
    "prepare": prepare,
    "install": install,
    "hold": hold,
    "restarts": record_restart,
    "answer": wait_for_gpus,
    "rollback": roll_back,
}
