"""Orders the certificate from an authority that speaks ACME (RFC 8555), by certbot.

Root decides, opens the port and installs the certificate. certbot, which reads the authority's
answers, runs as its own user, who may do neither. The present certificate stays until a new one has
come.

Decides: when a certificate is ordered, and when its end is reported (the order).
"""

from __future__ import annotations

import contextlib
import json
import os
import pwd
import sys
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kimi_prov.contract import paths as layout
from kimi_prov.contract import unit_names
from kimi_prov.contract.errors import HostError
from kimi_prov.contract.paths import Paths
from kimi_prov.on_host.endpoint import certificate, tls
from kimi_prov.on_host.proxy import acme_problem, converge
from kimi_prov.on_host.system import archive, kept_state, units
from kimi_prov.on_host.system.envelope import answer
from kimi_prov.on_host.system.files import (
    find_owner_ids,
    make_directory,
    read_json,
    read_text,
    remove,
    write_atomic,
    write_json,
)
from kimi_prov.on_host.system.process import TIMED_OUT, Unfinished, run

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kimi_prov.contract.documents.answers import AcmeAnswer

PORT = 80
SET = "challenge"
LINEAGE = "kimi"
# A hook that writes DNS records may wait until the zone has spread.
CERTBOT_TIMEOUT_S = 840.0
# The port closes by itself after that, whatever the result of the order.
OPEN_S = 900
LOG_BYTES = 256 << 10
CHAIN_BYTES = 256 << 10
PROXY_VARIABLES = ("http_proxy", "https_proxy", "no_proxy")


def build_command(settings: dict[str, Any], home: str) -> list[str]:
    """Return certbot's command line for an order; `home`: certbot's own directory."""
    challenge = settings["challenge"]
    if challenge == "http-01":
        how = ["--standalone", "--http-01-address", "127.0.0.1"]
        how += ["--http-01-port", str(settings["port"])]
    else:
        hook = layout.ACME_HOOK
        how = ["--manual", "--manual-auth-hook", hook + " auth"]
        how += ["--manual-cleanup-hook", hook + " cleanup"]
    names = [word for name in settings["names"] for word in ("--domain", name)]
    return [
        *("certbot", "certonly", *_build_account_options(settings, home), *how),
        *("--preferred-challenges", challenge, "--cert-name", LINEAGE, "--key-type", "ecdsa"),
        *("--force-renewal", "--renew-with-new-domains", *names),
    ]


def _build_account_options(settings: dict[str, Any], home: str) -> list[str]:
    """Return the options by which certbot finds, or registers, the account."""
    contact = settings["contact"]
    mail = ["--email", contact] if contact else ["--register-unsafely-without-email"]
    return [
        *("--non-interactive", "--agree-tos", "--server", settings["directory_url"], *mail),
        *("--config-dir", home + "/config", "--work-dir", home + "/work"),
        *("--logs-dir", home + "/logs", "--max-log-backups", "10"),
    ]


class Client:
    """certbot, run as its own user in its directory."""

    def __init__(self, paths: Paths, settings: dict[str, Any]) -> None:
        self.paths = paths
        self.settings = settings
        self.home = str(paths.acme / "client")
        self.user = pwd.getpwnam(layout.ACME_USER)
        self.problem: dict[str, Any] = {}

    def _environment(self) -> dict[str, str]:
        given = {name: os.environ.get(name) for name in PROXY_VARIABLES}
        found = {name: value for name, value in given.items() if value}
        found |= {name.upper(): value for name, value in found.items()}
        if self.settings["ca_bundle"]:
            found["REQUESTS_CA_BUNDLE"] = str(self.paths.acme / "ca-bundle.pem")
        return {
            "PATH": "/usr/sbin:/usr/bin:/sbin:/bin",
            "LC_ALL": "C.UTF-8",
            "HOME": self.home,
            **found,
        }

    def run(self, *argv: str) -> str:
        """Run a command as the user; return its output. Stores `problem` where it failed."""
        done = run(
            *argv, env=self._environment(), timeout=CERTBOT_TIMEOUT_S, cwd="/", user=self.user
        )
        if isinstance(done, Unfinished):
            # If it wrote no log, the present log may be from an earlier order.
            timed_out = done.returncode == TIMED_OUT
            self.problem = acme_problem.explain_unfinished(
                done.stderr, self.settings, timed_out=timed_out
            )
            return ""
        if done.returncode != 0:
            log = run("tail", "-c", str(LOG_BYTES), self.home + "/logs/letsencrypt.log",
                      user=self.user, cwd="/").stdout  # fmt: skip
            self.problem = acme_problem.explain_failure(
                done.stdout + "\n" + done.stderr, log, self.settings
            )
            return ""
        self.problem = {}
        return done.stdout

    def order(self, known: dict[str, Any]) -> str:
        """Order the certificate; return chain and key as one PEM text.

        `known`: authority and contact of the last order. Raises HostError with the cause.
        """
        make_own(self.home, self.user)
        self._require_whole_account()
        if self.settings["ca_bundle"]:
            bundle = read_text(self.paths.locate(self.settings["ca_bundle"]))
            write_atomic(self.paths.acme / "ca-bundle.pem", bundle, 0o644)
        same = known.get("directory_url") == self.settings["directory_url"]
        if same and known.get("contact") != self.settings["contact"]:
            # An outdated contact address harms only the authority: the order goes on.
            self.run("certbot", "update_account", *_build_account_options(self.settings, self.home))
        self.run(*build_command(self.settings, self.home))
        if self.problem.get("kind") == "account" and self.forget():
            self.run(*build_command(self.settings, self.home))
        if self.problem:
            raise HostError(self.problem["message"], self.problem["fix"])
        return self.issued()

    def _require_whole_account(self) -> None:
        """Raise HostError for a damaged account: certbot would register another one silently."""
        top = self.paths.acme / "client" / "config" / "accounts"
        for name in archive.list_names(top):
            try:
                if name.endswith(".json"):
                    json.loads(kept_state.read_regular(top / name) or "")
            except (OSError, ValueError, RecursionError):
                raise HostError(
                    f"the ACME account is damaged: {top / name} holds no whole JSON",
                    "kimi-prov restore INVENTORY FILE brings it back; without a backup: sudo rm -r "
                    f"{top} on this machine, then the next order makes a new account",
                ) from None

    def forget(self) -> bool:
        """Remove the key of an account that the authority does not know any more."""
        host = urlsplit(self.settings["directory_url"]).netloc
        kept = self.home + "/config/accounts/" + host
        there = run("test", "-d", kept, user=self.user, cwd="/").returncode == 0
        return there and run("rm", "-rf", "--", kept, user=self.user, cwd="/").returncode == 0

    def issued(self) -> str:
        """Return the chain and key that certbot stored, as one PEM text; read as its user."""
        live = self.home + "/config/live/" + LINEAGE
        parts = []
        for name in ("fullchain.pem", "privkey.pem"):
            done = run("head", "-c", str(CHAIN_BYTES), live + "/" + name, user=self.user, cwd="/")
            if done.returncode != 0:
                raise HostError(
                    "certbot left no certificate: " + done.stderr.strip(), acme_problem.READ_LOG
                )
            parts.append(done.stdout)
        try:
            return tls.read_given(parts[0], parts[1])
        except HostError:
            raise HostError(
                "what certbot left is no certificate with its key", acme_problem.READ_LOG
            ) from None


def make_own(path: str, user: pwd.struct_passwd) -> None:
    """Make the directory, owned by the user."""
    with contextlib.suppress(FileExistsError):
        os.mkdir(path, 0o700)
    if os.geteuid() == 0:
        os.chown(path, user.pw_uid, user.pw_gid, follow_symlinks=False)


@contextlib.contextmanager
def open_challenge_port(settings: dict[str, Any]) -> Iterator[None]:
    """Open port 80 while a challenge may come; it closes by itself if this process is killed."""
    if settings["challenge"] != "http-01":
        yield
        return
    element = f"{{ {PORT} timeout {OPEN_S}s }}"
    done = run("nft", "add", "element", *layout.FIREWALL_TABLE, SET, element)
    if done.returncode != 0:
        raise HostError(
            f"port {PORT} could not be opened for the challenge: {done.stderr.strip()[:200]}",
            "run `kimi-prov apply`, which loads the firewall's table",
        )
    try:
        yield
    finally:
        close_challenge_port()


def close_challenge_port() -> None:
    """Close port 80."""
    run("nft", "delete", "element", *layout.FIREWALL_TABLE, SET, f"{{ {PORT} }}")


def read_current(paths: Paths) -> certificate.Certificate | None:
    """Return the certificate that was issued last, None without one."""
    pem = read_text(paths.acme_pem)
    return certificate.read(pem) if pem else None


def explain_order(paths: Paths, settings: dict[str, Any], now: int) -> str:
    """Return why a certificate is to be ordered now, empty where none is."""
    record = read_json(paths.acme_state)
    return certificate.explain_order(read_current(paths), record.get("issued") or {}, settings, now)


def order(paths: Paths) -> dict[str, Any]:
    """Order a certificate where one is due and make the proxy use it.

    Raises HostError with the cause on failure; the certificate in use stays in use.
    """
    settings = read_json(paths.acme_settings)
    if not settings:
        raise HostError(f"there is no {paths.acme_settings}", "run `kimi-prov apply`")
    now = int(time.time())
    why = explain_order(paths, settings, now)
    record = read_json(paths.acme_state)
    if why:
        print("ordering a certificate: " + why, file=sys.stderr, flush=True)
        client = Client(paths, settings)
        try:
            with open_challenge_port(settings):
                pem = client.order(record.get("issued") or {})
        except HostError as error:
            problem = client.problem or acme_problem.from_host_error(error)
            save_record(paths, {**record, "tried": now, "problem": problem})
            raise
        write_atomic(paths.acme_pem, pem, 0o600)
        issued = {name: settings[name] for name in ("directory_url", "names", "contact")}
        save_record(paths, {"tried": now, "problem": None, "issued": issued})
    else:
        settle_record(paths)
    return {"ordered": bool(why), "reason": why, "used": use_issued(paths)}


def settle_record(paths: Paths) -> None:
    """Forget a failed order where the present certificate is the one that is set."""
    record = read_json(paths.acme_state)
    if record.get("problem"):
        save_record(paths, {**record, "problem": None})


def save_record(paths: Paths, record: dict[str, Any]) -> None:
    """Record the result of an order."""
    make_directory(paths.state, 0o700)
    write_json(str(paths.acme_state), record, mode=0o600)


def use_issued(paths: Paths) -> bool:
    """Make a running proxy use the issued certificate; return True where it did not.

    A stopped proxy stays stopped. Does nothing where another certificate was set while this one
    was ordered.
    """
    if not paths.acme_settings.exists():
        return False
    changed = bool(tls.ensure(paths, {"mode": "acme", "names": []})["changed"])
    if units.read_states(unit_names.PROXY).get(unit_names.PROXY, {}).get("state") != "active":
        return changed
    return bool(converge.converge(paths)["changed"]) or changed


def ensure(paths: Paths, wanted: dict[str, Any], *, check: bool = False) -> AcmeAnswer:
    """Converge to {"acme": the plan's, None for none, "hook": a program's text or None}.

    Orders by its unit what is due. A failed renewal is a warning while the certificate in use is
    valid for the same names: {"changed", "ordered", "warning"}. Otherwise HostError is raised.
    """
    settings = wanted["acme"]
    if settings is None:
        return {"changed": stop_ordering(paths, check=check), "ordered": "", "warning": None}
    changed = install(paths, settings, wanted["hook"], check=check)
    states = units.read_states(unit_names.ACME_TIMER, unit_names.ACME)
    timer = states.get(unit_names.ACME_TIMER, {})
    stale = any(unit.get("stale") for unit in states.values())
    runs = timer.get("state") == "active" and timer.get("enabled") and not stale
    why = explain_order(paths, settings, int(time.time()))
    if check or (runs and not why):
        if not why and not check:
            settle_record(paths)
        return {"changed": changed or not runs or bool(why), "ordered": why, "warning": None}
    if not runs:
        run("systemctl", "daemon-reload")
        units.run_systemctl("enable", unit_names.ACME_TIMER)
        units.run_systemctl("restart", unit_names.ACME_TIMER)
    warning = _run_order(paths, settings) if why else None
    return {"changed": True, "ordered": why, "warning": warning}


def _run_order(paths: Paths, settings: dict[str, Any]) -> str | None:
    """Run the unit to its end; return a failure that can wait."""
    start = ("systemctl", "start", unit_names.ACME)
    if units.read_states(unit_names.ACME).get(unit_names.ACME, {}).get("state") == "activating":
        # The timer may have started it before, with earlier settings: wait for its end.
        run(*start, timeout=CERTBOT_TIMEOUT_S + 60)
    started = int(time.time())
    if explain_order(paths, settings, started):
        run(*start, timeout=CERTBOT_TIMEOUT_S + 60)
    left = explain_order(paths, settings, int(time.time()))
    if not left:
        return None
    record = read_json(paths.acme_state)
    if record.get("tried", 0) < started:
        what = f"{unit_names.ACME} did not order a certificate"
        raise units.make_error(what, unit_names.ACME, units.read_journal(unit_names.ACME))
    problem = record.get("problem")
    if not problem:
        raise HostError(
            f"a certificate came, and another order is due: {left}",
            "compare `date -u` with another machine's clock, and correct the one that is wrong",
        )
    found = read_current(paths)
    good = found is not None and found.not_after > time.time()
    if good and found is not None and set(settings["names"]) <= set(found.names):
        ends = certificate.format_time(found.not_after)
        return f"{problem['message']}; {problem['fix']}; the certificate in use ends on {ends}"
    raise HostError(
        f"no certificate for {', '.join(settings['names'])}: {problem['message']}", problem["fix"]
    )


def install(
    paths: Paths, settings: dict[str, Any], hook: str | None, *, check: bool = False
) -> bool:
    """Write the unit's files; return True where something differed."""
    made = make_directory(paths.acme, 0o750, layout.ACME_USER, check=check)
    text = json.dumps(settings, indent=1, sort_keys=True) + "\n"
    made |= _write(paths.acme_settings, text, 0o600, "root", check=check)
    if hook is not None:
        made |= _write(paths.acme_hook, hook, 0o750, layout.ACME_USER, check=check)
    elif paths.acme_hook.exists():
        made = True
        if not check:
            paths.acme_hook.unlink()
    return made


def _write(path: Path, text: str, mode: int, group: str, *, check: bool) -> bool:
    with contextlib.suppress(FileNotFoundError):
        state = path.stat()
        owned = os.geteuid() != 0 or (state.st_uid, state.st_gid) == find_owner_ids("root", group)
        if read_text(path) == text and state.st_mode & 0o7777 == mode and owned:
            return False
    if not check:
        write_atomic(path, text, mode, group)
    return True


def stop_ordering(paths: Paths, *, check: bool = False) -> bool:
    """Stop to order; keep account and certificates. Returns True where something was in place."""
    # The timer is removed last: it shows the next run what a killed run left.
    files = [paths.units / name for name in (unit_names.ACME, unit_names.ACME_TIMER)]
    found = [path for path in [paths.acme_settings, *files] if path.exists()]
    if found and not check:
        run("systemctl", "disable", "--now", unit_names.ACME_TIMER)
        run("systemctl", "stop", unit_names.ACME)
        for path in found:
            remove(str(path))
        run("systemctl", "daemon-reload")
    return bool(found)


def main(argv: list[str]) -> int:
    """`acme`: order; `acme close`: close the port; `acme ensure [--check] < SETTINGS`."""
    if argv[:1] == ["close"]:
        close_challenge_port()
        return answer({"ok": True})
    if argv[:1] == ["ensure"]:
        return answer(
            {"ok": True, **ensure(Paths(), json.load(sys.stdin), check="--check" in argv)}
        )
    return answer({"ok": True, **order(Paths())})
