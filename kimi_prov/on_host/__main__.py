"""`python3 kimi-target.pyz SUBCOMMAND ...`: the entry point of the code on the managed machine."""

from __future__ import annotations

import sys
import traceback
from importlib import import_module

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.system import utf8
from kimi_prov.on_host.system.envelope import fail

# Each module has `main(argv) -> exit status` and is imported only when it is called.
COMMANDS = {
    "probe": "kimi_prov.on_host.probe.collect",
    "cluster": "kimi_prov.on_host.cluster.main",
    "pod": "kimi_prov.on_host.pod.main",
    "lock": "kimi_prov.on_host.system.apply_lock",
    "engine": "kimi_prov.on_host.engine.launch",
    "group": "kimi_prov.on_host.group.supervisor",
    "engine-check": "kimi_prov.on_host.engine.command_check",
    "cuda-home": "kimi_prov.on_host.engine.cuda_home",
    "kt-prove": "kimi_prov.on_host.kt.prove",
    "kt-quantise": "kimi_prov.on_host.kt.quantise",
    "convert": "kimi_prov.on_host.kt.convert",
    "manifest": "kimi_prov.on_host.weights.manifest",
    "ready": "kimi_prov.on_host.engine.ready",
    "serve-ensure": "kimi_prov.on_host.engine.serve",
    "fetch": "kimi_prov.on_host.weights.fetch",
    "share": "kimi_prov.on_host.weights.sharing",
    "bucket": "kimi_prov.on_host.weights.bucket_check",
    "cloud": "kimi_prov.on_host.cloud.main",
    "stage": "kimi_prov.on_host.weights.stage",
    "follow": "kimi_prov.on_host.system.follow",
    "logs": "kimi_prov.on_host.system.journals",
    "settled": "kimi_prov.on_host.converged",
    "proxy-ensure": "kimi_prov.on_host.proxy.converge",
    "proxy-state": "kimi_prov.on_host.endpoint.haproxy",
    "gateway-health": "kimi_prov.on_host.endpoint.health",
    "gateway-door": "kimi_prov.on_host.proxy.pins",
    "gateway-return": "kimi_prov.on_host.proxy.rejoin",
    "web-ensure": "kimi_prov.on_host.web.page",
    "acme": "kimi_prov.on_host.proxy.acme",
    "keys": "kimi_prov.on_host.keys.publish",
    "firewall-ensure": "kimi_prov.on_host.endpoint.firewall",
    "smoke-test": "kimi_prov.on_host.endpoint.smoke_test",
    "suite": "kimi_prov.on_host.acceptance.run",
    "runtime": "kimi_prov.on_host.engine.runtime",
    "usage-count": "kimi_prov.on_host.usage.counter",
    "usage": "kimi_prov.on_host.usage.report",
    "history": "kimi_prov.on_host.history.report",
    "clean": "kimi_prov.on_host.history.clean",
    "switch": "kimi_prov.on_host.history.switch",
    "wake": "kimi_prov.on_host.lifecycle.wake",
    "rest": "kimi_prov.on_host.lifecycle.run",
    "status": "kimi_prov.on_host.status.machine",
    "drift": "kimi_prov.on_host.drift.run",
    "metrics": "kimi_prov.on_host.metrics.collect",
    "metrics-door": "kimi_prov.on_host.metrics.scrape_target",
    "monitor": "kimi_prov.on_host.monitor.ensure",
    "diagnose": "kimi_prov.on_host.diagnose",
    "watchdog": "kimi_prov.on_host.watchdog.service",
    "driver": "kimi_prov.on_host.driver.steps",
    "update": "kimi_prov.on_host.update.steps",
    "package-manager": "kimi_prov.on_host.probe.package_manager",
    "nccl-plugins": "kimi_prov.on_host.engine.nccl_plugins",
    "nccl-proof": "kimi_prov.on_host.engine.nccl_proof",
    "network-proof": "kimi_prov.on_host.engine.network_proof",
    "destroy": "kimi_prov.on_host.destroy",
    "backup": "kimi_prov.on_host.backup",
    "web-backup": "kimi_prov.on_host.web.backup",
    "web-data": "kimi_prov.on_host.web.store",
    "bench": "kimi_prov.on_host.bench.run",
    "bench-engine": "kimi_prov.on_host.bench.engine",
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
        status: int = import_module(COMMANDS[name]).main(arguments)
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
