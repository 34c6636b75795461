"""`cloud`: what a machine of a cloud does at its end.

    cloud watch --provider gcp|aws     wait for the notice that it is taken; then let answers end
    cloud leave --provider gcp|aws     let answers end now, and send no new ones
    cloud release --provider gcp|aws   delete this machine, by the cloud's own means

On AWS a machine is deleted by switching itself off, where it was started with
`--instance-initiated-shutdown-behavior terminate`. On Google its service account deletes it.
"""

from __future__ import annotations

import argparse
import json
import time
import urllib.parse
from typing import Callable

from kimi_prov.contract import clean_text
from kimi_prov.contract.errors import HostError
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.cloud import metadata
from kimi_prov.on_host.endpoint import draining
from kimi_prov.on_host.lifecycle import session_history
from kimi_prov.on_host.system import plans, process

_POLL_INTERVAL_S = 2.0
# Seconds between the notice and the end: 30 by Google, 120 by AWS.
_DRAIN_S = {metadata.GCP: 22.0, metadata.AWS: 100.0}
# Seconds after which a machine that still runs was not taken.
_SPARED_S = 600.0
_API = "https://compute.googleapis.com"

Tell = Callable[[str], None]


def main(argv: list[str]) -> int:
    """Entry point of the subcommand; see the module's docstring."""
    parser = argparse.ArgumentParser(prog="cloud")
    parser.add_argument("verb", choices=("watch", "leave", "release"))
    parser.add_argument("--provider", choices=metadata.PROVIDERS, required=True)
    parser.add_argument("--api", default=_API)
    options = parser.parse_args(argv)
    if options.verb == "release":
        tell(release(options.provider, options.api))
        return 0
    if options.verb == "leave":
        leave(Paths(), "the machine ends", _DRAIN_S[options.provider], tell)
        return 0
    while True:
        why = wait(options.provider, tell)
        leave(Paths(), why, _DRAIN_S[options.provider], tell)
        time.sleep(_SPARED_S)
        tell("the machine is still there: it takes requests again")
        draining.set_state(Paths(), draining.READY)


def tell(line: str) -> None:
    """Write a line to the journal."""
    print(clean_text.clean_line(line), flush=True)


def wait(
    provider: str, told: Tell, look_s: float = _POLL_INTERVAL_S, most: int | None = None
) -> str:
    """Wait for the notice and return it; a server that does not answer is reported once.

    `most`: how often to ask, without end where it is None. Raises HostError after that.
    """
    silent, looked = "", 0
    while most is None or looked < most:
        looked += 1
        try:
            found = metadata.read_notice(provider)
        except HostError as error:
            if error.message != silent:
                told(f"no answer of the metadata server: {error.message}")
            silent, found = error.message, None
        else:
            silent = ""
        if found:
            return found
        time.sleep(look_s)
    raise HostError("no notice came")


def leave(paths: Paths, why: str, limit_s: float, told: Tell) -> int:
    """Send no more requests to the engines and let those under way end; return those left.

    Meanwhile the history of sessions records that this session ends.
    """
    told(f"{why}: no new requests, and {limit_s:.0f} s for those under way")
    kept = session_history.begin_saving_end(paths, plans.read_machine_plan(paths.plan), why, told)
    try:
        left = draining.drain(paths, limit_s, handed=False)
    except HostError as error:
        told(error.line)
        return 0
    finally:
        kept()
    told("all answers have ended" if not left else f"{left} requests had not ended")
    return left


def release(provider: str, api: str = _API) -> str:
    """Delete this machine. Raises HostError where the cloud refuses."""
    if provider == metadata.AWS:
        done = process.run("systemctl", "poweroff")
        if done.returncode != 0:
            raise HostError(f"systemctl poweroff: {clean_text.clean_line(done.stderr)}")
        return "switching the machine off, which ends it at AWS"
    token = json.loads(metadata.ask_gcp("instance/service-accounts/default/token"))["access_token"]
    project = metadata.ask_gcp("project/project-id").strip()
    zone = metadata.ask_gcp("instance/zone").strip().rpartition("/")[2]
    name = metadata.ask_gcp("instance/name").strip()
    place = (f"projects/{project}", f"zones/{zone}", f"instances/{name}")
    path = "/".join(urllib.parse.quote(part, safe="/") for part in place)
    try:
        metadata.ask(
            f"{api.rstrip('/')}/compute/v1/{path}",
            method="DELETE",
            headers={"Authorization": f"Bearer {token}"},
        )
    except HostError as error:
        raise HostError(
            f"{name} was not deleted: {error.message}",
            "give the machine's service account the role Compute Instance Admin (v1) and the scope "
            "cloud-platform; meanwhile  "
            f"gcloud compute instances delete {clean_text.quote_word(name)} --zone {zone}",
        ) from None
    return f"Google deletes {name}"
