"""`python3 kimi-target.pyz SUBCOMMAND ...`: the entry point of the code on the managed machine."""

from __future__ import annotations

import sys
import traceback
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.system import utf8
from kimi_prov.on_host.system.envelope import fail

if TYPE_CHECKING:
    from collections.abc import Mapping


class Subcommand(NamedTuple):
    """A module with `main(argv) -> exit status`, which is imported only when it is called.

    `answer`: the type of its answer, in a module of kimi_prov/contract/documents; where verbs have
    different answers, a type for each first word, "" without a word, and "*" for all others. None
    where it has no answer: a unit's own work, and output for other programs.
    """

    module: str
    answer: str | Mapping[str, str] | None = None


COMMANDS = {
    "probe": Subcommand(
        "kimi_prov.on_host.probe.collect",
        {"--lock": "facts:LockedProbeAnswer", "*": "facts:ProbeAnswer"},
    ),
    "cluster": Subcommand("kimi_prov.on_host.cluster.main"),
    "pod": Subcommand("kimi_prov.on_host.pod.main"),
    "lock": Subcommand("kimi_prov.on_host.system.apply_lock", "lock:LockAnswer"),
    "engine": Subcommand("kimi_prov.on_host.engine.launch"),
    "group": Subcommand("kimi_prov.on_host.group.supervisor"),
    "engine-check": Subcommand("kimi_prov.on_host.engine.command_check", "answers:Changed"),
    "cuda-home": Subcommand("kimi_prov.on_host.engine.cuda_home"),
    "kt-prove": Subcommand("kimi_prov.on_host.kt.prove"),
    "kt-quantise": Subcommand("kimi_prov.on_host.kt.quantise"),
    "convert": Subcommand("kimi_prov.on_host.kt.convert"),
    "manifest": Subcommand("kimi_prov.on_host.weights.manifest"),
    "ready": Subcommand("kimi_prov.on_host.engine.ready"),
    "serve-ensure": Subcommand("kimi_prov.on_host.engine.serve", "answers:ServeAnswer"),
    "fetch": Subcommand("kimi_prov.on_host.weights.fetch"),
    "share": Subcommand(
        "kimi_prov.on_host.weights.sharing",
        {"key": "answers:ShareKeyAnswer", "open": "answers:ShareOpenAnswer", "*": "answers:Done"},
    ),
    "bucket": Subcommand("kimi_prov.on_host.weights.bucket_check", "answers:BucketAnswer"),
    "cloud": Subcommand("kimi_prov.on_host.cloud.main"),
    "stage": Subcommand("kimi_prov.on_host.weights.stage"),
    "follow": Subcommand("kimi_prov.on_host.system.follow", "answers:FollowAnswer"),
    "logs": Subcommand("kimi_prov.on_host.system.journals", "answers:JournalAnswer"),
    "settled": Subcommand("kimi_prov.on_host.converged", "answers:SettledAnswer"),
    "proxy-ensure": Subcommand(
        "kimi_prov.on_host.proxy.converge",
        {"": "answers:ProxyAnswer", "run": "answers:Applied", "remove": "answers:Applied"},
    ),
    "proxy-state": Subcommand("kimi_prov.on_host.endpoint.haproxy"),
    "gateway-health": Subcommand("kimi_prov.on_host.endpoint.health"),
    "gateway-door": Subcommand("kimi_prov.on_host.proxy.pins", "answers:PinsAnswer"),
    "gateway-return": Subcommand("kimi_prov.on_host.proxy.rejoin", "answers:ReturnAnswer"),
    "web-ensure": Subcommand("kimi_prov.on_host.web.converge", "answers:WebUiAnswer"),
    "acme": Subcommand("kimi_prov.on_host.proxy.acme", {"ensure": "answers:AcmeAnswer"}),
    "keys": Subcommand(
        "kimi_prov.on_host.keys.publish",
        {"list": "answers:KeyListAnswer", "*": "answers:KeysAnswer"},
    ),
    "firewall-ensure": Subcommand("kimi_prov.on_host.endpoint.firewall", "answers:FirewallAnswer"),
    "smoke-test": Subcommand("kimi_prov.on_host.endpoint.smoke_test", "answers:SmokeTestAnswer"),
    "suite": Subcommand(
        "kimi_prov.on_host.acceptance.run", {"run": "answers:SuiteRunAnswer", "*": "answers:Done"}
    ),
    "runtime": Subcommand("kimi_prov.on_host.engine.runtime", "answers:RuntimeAnswer"),
    "usage-count": Subcommand("kimi_prov.on_host.usage.counter"),
    "tune": Subcommand(
        "kimi_prov.on_host.tune.run",
        {"look": "tune.jobs:TuneLookAnswer", "poll": "tune.jobs:TuneAnswer", "*": "answers:Done"},
    ),
    "usage": Subcommand("kimi_prov.on_host.usage.report", "usage:UsageOfHost"),
    "history": Subcommand("kimi_prov.on_host.history.report", "history:HistoryOfHost"),
    "clean": Subcommand("kimi_prov.on_host.history.clean", "clean:CleanedHost"),
    "switch": Subcommand(
        "kimi_prov.on_host.history.switch",
        {
            "begin": "answers:SwitchAnswer",
            "rollback": "answers:RollbackAnswer",
            "end": "answers:SwitchEndAnswer",
            "start": "answers:SwitchStartAnswer",
            "*": "answers:Done",
        },
    ),
    "wake": Subcommand("kimi_prov.on_host.lifecycle.wake"),
    "rest": Subcommand("kimi_prov.on_host.lifecycle.run", "answers:LifecycleAnswer"),
    "status": Subcommand(
        "kimi_prov.on_host.status.machine",
        {"": "status:StatusAnswer", "--now": "answers:NowAnswer"},
    ),
    "drift": Subcommand("kimi_prov.on_host.drift.run", "answers:DriftAnswer"),
    "metrics": Subcommand("kimi_prov.on_host.metrics.collect"),
    "metrics-door": Subcommand(
        "kimi_prov.on_host.metrics.scrape_target", "answers:ScrapeTargetAnswer"
    ),
    "monitor": Subcommand(
        "kimi_prov.on_host.monitor.ensure",
        {"ensure": "answers:MonitorAnswer", "*": "answers:MonitorStateAnswer"},
    ),
    "diagnose": Subcommand("kimi_prov.on_host.diagnose", "diagnose:DiagnoseAnswer"),
    "watchdog": Subcommand("kimi_prov.on_host.watchdog.service"),
    "driver": Subcommand("kimi_prov.on_host.driver.steps", "answers:DriverAnswer"),
    "update": Subcommand(
        "kimi_prov.on_host.update.steps",
        {"look": "answers:UpdateLookAnswer", "*": "answers:UpdateAnswer"},
    ),
    "package-manager": Subcommand(
        "kimi_prov.on_host.probe.package_manager", "answers:PackageManagerAnswer"
    ),
    "nccl-plugins": Subcommand(
        "kimi_prov.on_host.engine.nccl_plugins", "answers:NcclPluginsAnswer"
    ),
    "nccl-proof": Subcommand("kimi_prov.on_host.engine.nccl_proof", "answers:NcclProofAnswer"),
    "network-proof": Subcommand(
        "kimi_prov.on_host.engine.network_proof", "answers:NetworkProofAnswer"
    ),
    "destroy": Subcommand("kimi_prov.on_host.destroy", "answers:DestroyAnswer"),
    "backup": Subcommand(
        "kimi_prov.on_host.backup",
        {
            "restore": "backup:BackupContents",
            "end": "answers:Done",
            "*": "answers:ArchiveAnswer",
        },
    ),
    "web-backup": Subcommand(
        "kimi_prov.on_host.web.backup",
        {
            "restore": "web:WebUiContents",
            "end": "answers:Done",
            "*": "answers:ArchiveAnswer",
        },
    ),
    "web-data": Subcommand("kimi_prov.on_host.web.store"),
    "bench": Subcommand(
        "kimi_prov.on_host.bench.run",
        {"result": "answers:BenchAnswer", "start": "answers:BenchStartAnswer"},
    ),
    "bench-engine": Subcommand("kimi_prov.on_host.bench.engine"),
}


def main(argv: list[str] | None = None) -> int:
    """Run the subcommand named first; without one, describe this machine."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    if not arguments or arguments[0].startswith("-"):
        arguments.insert(0, "probe")
    name = arguments.pop(0)
    if name not in COMMANDS:
        return fail(HostError(f"unknown subcommand {name!r}; there are: {', '.join(COMMANDS)}"))
    try:
        status: int = import_module(COMMANDS[name].module).main(arguments)
    except HostError as error:
        return fail(error)
    except OSError as error:
        return fail(HostError.from_system(error))
    except Exception as error:  # noqa: BLE001 - a fault of ours: told in the same form
        traceback.print_exc()
        return fail(HostError(f"{name}: {type(error).__name__}: {error}"))
    return status


def run(argv: list[str] | None = None) -> int:
    """Run the subcommand as a process of its own."""
    utf8.adopt()
    return main(argv)


if __name__ == "__main__":
    sys.exit(run())
