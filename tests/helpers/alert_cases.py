"""What happens to a machine, told as series, and which alert has to follow: for promtool.

Time begins at 0, a sample each half minute. Every case has two hosts that are well, one by each
engine; it says what of one of them is otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kimi_prov.on_host.probe import gpu_faults

STEP_S = 30
LAST = 480
DAY = 86400
Changes = dict[str, str | None]


def flat(value: float) -> str:
    """The same for the whole time."""
    return f"{value}+0x{LAST}"


def rising(step: float, start: float = 0) -> str:
    """More by `step` each half minute."""
    return f"{start}+{step}x{LAST}"


def phases(*rows: tuple[float | str, float]) -> str:
    """One value after the other, each for so many minutes; the last until the end.

    "_" is no sample; a value that is text is given as promtool has it, "+STEP" rises from there.
    """
    words, at = [], 0.0
    for value, minutes in rows:
        count = round(minutes * 60 / STEP_S)
        if value == "_":
            words.append(f"_x{count}")
        elif isinstance(value, str) and value.startswith("+"):
            step = float(value)
            words.append(f"{at + step}+{step}x{count - 1}")
            at += step * count
        else:
            words.append(f"{value}+0x{count - 1}")
            at = float(value)
    return " ".join(words)


def node(name: str, host: str = "a", **labels: str) -> str:
    """A series that comes through the node exporter."""
    return _series(name, {"host": host, "job": "kimi-node", "instance": f"{host}:9443", **labels})


def engine(name: str, host: str = "a", **labels: str) -> str:
    """A series of an engine."""
    own = {"host": host, "job": "kimi-engine", "engine": "0", "instance": f"{host}:9443"}
    return _series(name, {**own, "model_name": "kimi", **labels})


def up(job: str, host: str = "a", **labels: str) -> str:
    """Whether a job of a host could be read."""
    return _series("up", {"host": host, "job": job, "instance": f"{host}:9443", **labels})


def _series(name: str, labels: dict[str, str]) -> str:
    pairs = ",".join(f'{key}="{value}"' for key, value in sorted(labels.items()))
    return f"{name}{{{pairs}}}"


ITL = "inter_token_latency_seconds"
OF_VLLM = {
    engine("vllm:num_requests_running", exported_engine="0"): flat(4),
    engine("vllm:num_requests_waiting", exported_engine="0"): flat(0),
    engine("vllm:generation_tokens_total"): rising(6000),
    engine("vllm:prompt_tokens_total"): rising(9000),
    engine("vllm:iteration_tokens_total_count"): rising(1500),
    engine(f"vllm:{ITL}_count"): rising(6000),
    engine(f"vllm:{ITL}_sum"): rising(120),
    engine("vllm:kv_cache_usage_perc"): flat(0.4),
    engine("vllm:num_preemptions_total"): flat(0),
}
OF_SGLANG = {
    engine("sglang:num_running_reqs", "b"): flat(2),
    engine("sglang:num_queue_reqs", "b"): flat(0),
    engine("sglang:realtime_tokens_total", "b", mode="decode"): rising(660),
    engine("sglang:realtime_tokens_total", "b", mode="prefill_compute"): rising(2000),
    engine(f"sglang:{ITL}_count", "b"): rising(660),
    engine(f"sglang:{ITL}_sum", "b"): rising(60),
    engine("sglang:token_usage", "b"): flat(0.3),
    engine("sglang:num_retracted_requests_total", "b"): flat(0),
}


def _machine(host: str, low: float, concurrency: int) -> dict[str, str]:
    one = {"host": host, "engine": "0"}
    return {
        up("kimi-node", host): flat(1),
        up("kimi-proxy", host): flat(1),
        up("kimi-engine", host, engine="0"): flat(1),
        node("kimi_plan_info", host, hash="p1"): flat(1),
        node("kimi_weights_verified", host): flat(1),
        node("kimi_ram_disk_planned", host): flat(1),
        node("kimi_ram_disk_filled", host): flat(1),
        node("kimi_certificate_expires_timestamp_seconds", host): flat(61 * DAY),
        node("kimi_certificate_begins_timestamp_seconds", host): flat(-29 * DAY),
        node("kimi_instance_active", **one): flat(1),
        node("kimi_instance_starting", **one): flat(0),
        node("kimi_instance_starting_seconds", **one): flat(0),
        node("kimi_instance_last_start_seconds", **one): flat(400),
        node("kimi_instance_start_limit_seconds", **one): flat(3600),
        node("kimi_instance_starts_total", **one): flat(3),
        node("kimi_instance_restarts_total", **one): flat(2),
        node("kimi_expected_decode_tokens_per_second", host, bound="low"): flat(low),
        node("kimi_measured_decode_tokens_per_second", host): flat(low * 1.3),
        node("kimi_expected_concurrency", host): flat(concurrency),
        node("kimi_gpus_planned", host): flat(2),
        node("kimi_gpus_seen", host): flat(2),
        node("kimi_gpu_throttled", host, gpu="1", reason="hw_thermal_slowdown"): flat(0),
        node("kimi_gpu_throttled", host, gpu="1", reason="sw_power_cap"): flat(1),
        node("kimi_gpu_ecc_uncorrected_total", host, gpu="1"): flat(2),
        **{
            node("kimi_gpu_fault", host, gpu="1", fault=fault.name): flat(0)
            for fault in gpu_faults.FAULTS
        },
        node("kimi_gpu_xid_errors_total", host, code="43"): flat(1),
        node("kimi_driver_changed", host): flat(0),
        node("kimi_clock_synchronised", host): flat(1),
        node("kimi_group_member_up", host, member="c"): flat(1),
        node("kimi_watchdog_stalled", **one): flat(0),
        node("kimi_watchdog_restarts_total", **one): flat(0),
        node("kimi_metrics_written_timestamp_seconds", host): rising(STEP_S),
        node("node_boot_time_seconds", host): flat(-9 * DAY),
        node("node_filesystem_size_bytes", host, mountpoint="/", fstype="ext4"): flat(9e10),
        node("node_filesystem_avail_bytes", host, mountpoint="/", fstype="ext4"): flat(5e10),
        node("node_filesystem_size_bytes", host, mountpoint="/r", fstype="tmpfs"): flat(6e11),
        node("node_filesystem_avail_bytes", host, mountpoint="/r", fstype="tmpfs"): flat(0),
    }


def _gateway(host: str, *, address: bool) -> dict[str, str]:
    """A gateway before both machines."""
    machines = {
        node(name, host, machine=machine): value
        for machine in ("a", "b")
        for name, value in (
            ("kimi_gateway_machine_up", flat(1)),
            ("kimi_gateway_clock_apart_seconds", flat(-0.3)),
            ("kimi_gateway_machine_certificate_expires_timestamp_seconds", flat(900 * DAY)),
        )
    }
    return {
        up("kimi-node", host): flat(1),
        up("kimi-proxy", host): flat(1),
        node("kimi_certificate_expires_timestamp_seconds", host): flat(61 * DAY),
        node("kimi_certificate_begins_timestamp_seconds", host): flat(-29 * DAY),
        node("kimi_clock_synchronised", host): flat(1),
        node("kimi_metrics_written_timestamp_seconds", host): rising(STEP_S),
        node("kimi_gateway_has_address", host, address="10.0.9.100"): flat(int(address)),
        node("kimi_gateway_machines_asleep", host): flat(0),
        node("kimi_gateway_requests_waiting", host): flat(3),
        node("kimi_gateway_requests_waiting_most", host): flat(16),
        **machines,
    }


WELL: dict[str, str] = {
    **_machine("a", 38, 16),
    **_machine("b", 9, 4),
    **OF_VLLM,
    **OF_SGLANG,
    **_gateway("g", address=True),
    **_gateway("h", address=False),
}
ONE = {"host": "a", "engine": "0"}
# An engine that does not serve shows nothing, and its address does not answer.
GONE: Changes = dict.fromkeys(OF_VLLM)
NO_ENGINE: Changes = {**GONE, up("kimi-engine", engine="0"): flat(0)}


@dataclass(frozen=True)
class Case:
    """What is otherwise, and when the alert of this name fires (minutes) and does not.

    `labels` are those of the alert beside its severity, `says` its summary. No other alert fires at
    these times, but those of `also`.
    """

    alert: str
    what: str
    changes: Changes
    fires: tuple[float, ...] = ()
    silent: tuple[float, ...] = ()
    labels: dict[str, str] = field(default_factory=dict)
    says: str = ""
    also: tuple[str, ...] = ()


def _down(*rows: tuple[float | str, float]) -> Changes:
    return GONE | {
        node("kimi_instance_active", **ONE): phases(*rows),
        up("kimi-engine", engine="0"): phases(*rows),
    }


def _starting(seconds: str, **more: str) -> Changes:
    return NO_ENGINE | {
        node("kimi_instance_active", **ONE): flat(0),
        node("kimi_instance_starting", **ONE): flat(1),
        node("kimi_instance_starting_seconds", **ONE): seconds,
        **more,
    }


def _vllm(name: str) -> str:
    own = {"exported_engine": "0"} if "num_requests" in name else {}
    return engine(f"vllm:{name}", **own)


def _step(values: str) -> float:
    return float(values.partition("+")[2].partition("x")[0])


def _hung(series: dict[str, str]) -> Changes:
    """Counters of an engine that stand still from the 20th to the 40th minute."""
    found: Changes = {}
    for name, values in series.items():
        step = _step(values)
        if not step:
            continue
        at = step * 40
        found[name] = f"0+{step}x39 {at}+0x39 {at + step}+{step}x{LAST}"
    return found


_A1 = {"host": "a", "engine": "0"}
_MUCH_SLOWER = (
    "a: a request gets {} tokens a second, less than seven tenths of the lowest prediction"
)
_B1 = {"host": "b", "engine": "0"}
_SLOW = {_vllm(f"{ITL}_sum"): rising(300)}
CASES: tuple[Case, ...] = (
    Case(
        "KimiEngineDown",
        "it ends, and comes back after 20 minutes",
        _down((1, 10), (0, 20), (1, 200)),
        fires=(13, 29),
        silent=(11, 32),
        labels=_A1,
        says="a: instance 0 of the engine is down",
    ),
    Case(
        "KimiEngineDown",
        "the machine was stopped on purpose",
        _down((1, 10), (0, 200)) | {node("kimi_stopped"): phases((0, 10), (1, 200))},
        silent=(11, 30, 100),
    ),
    Case("KimiEngineDown", "a blip", _down((1, 10), (0, 1), (1, 200)), silent=(10.5, 12, 15)),
    Case(
        "KimiEngineDown",
        "it loads within its time",
        _starting(rising(1.5)),
        silent=(1, 10, 100),
    ),
    Case(
        "KimiEngineDown",
        "after a boot the RAM disk is filled first",
        _down((0, 40), (1, 200))
        | {
            node("node_boot_time_seconds"): flat(0),
            node("kimi_ram_disk_filled"): phases((0, 30), (1, 200)),
            node("kimi_instance_starting", **ONE): phases((0, 30), (1, 10), (0, 190)),
        },
        silent=(5, 20, 35, 50),
    ),
    Case(
        "KimiEngineDown",
        "after a boot its start fails for good",
        _down((0, 240))
        | {
            node("node_boot_time_seconds"): flat(0),
            node("kimi_instance_starting", **ONE): phases((0, 5), (1, 5), (0, 200)),
        },
        fires=(14,),
        silent=(4, 8),
        labels=_A1,
        says="a: instance 0 of the engine is down",
    ),
    Case(
        "KimiStartTooLong",
        "close to its limit, the first time",
        _starting(rising(30), **{node("kimi_instance_last_start_seconds", **ONE): flat(0)}),
        fires=(50, 60),
        silent=(20, 48),
        labels=_A1,
        says="a: instance 0 is starting for longer than expected",
    ),
    Case(
        "KimiStartTooLong",
        "far longer than the last time; then it serves",
        NO_ENGINE
        | {
            node("kimi_instance_active", **ONE): phases((0, 40), (1, 200)),
            node("kimi_instance_starting", **ONE): phases((1, 40), (0, 200)),
            node("kimi_instance_starting_seconds", **ONE): f"0+30x79 {flat(0)}",
        },
        fires=(20, 39),
        silent=(10, 18, 43),
        labels=_A1,
        says="a: instance 0 is starting for longer than expected",
    ),
    Case(
        "KimiStartTooLong",
        "longer than the last time by a moment",
        NO_ENGINE
        | {
            node("kimi_instance_active", **ONE): phases((0, 19), (1, 200)),
            node("kimi_instance_starting", **ONE): phases((1, 19), (0, 200)),
            node("kimi_instance_starting_seconds", **ONE): f"0+30x37 {flat(0)}",
        },
        silent=(18.5, 19, 22),
    ),
    Case(
        "KimiEngineEnded",
        "it is killed, loads for 10 minutes and serves; what systemd restarted before is no matter",
        NO_ENGINE
        | {
            node("kimi_instance_restarts_total", **ONE): phases((2, 10), (3, 200)),
            node("kimi_instance_active", **ONE): phases((1, 10), (0, 10), (1, 200)),
            node("kimi_instance_starting", **ONE): phases((0, 10), (1, 10), (0, 200)),
        },
        fires=(10.5, 15, 24),
        silent=(9, 26),
        labels=_A1,
        says="a: instance 0 of the engine ended by itself and was started again",
    ),
    Case(
        "KimiEngineEnded",
        "somebody restarts it",
        {node("kimi_instance_starts_total", **ONE): phases((3, 10), (4, 200))},
        silent=(9, 11, 20),
        labels=_A1,
        says="",
    ),
    Case(
        "KimiRestartLoop",
        "each start fails; the fourth one serves",
        NO_ENGINE
        | {
            node("kimi_instance_starts_total", **ONE): phases((3, 10), (4, 10), (5, 10), (6, 200)),
            node("kimi_instance_active", **ONE): phases((1, 10), (0, 40), (1, 200)),
            node("kimi_instance_starting", **ONE): phases((0, 10), (1, 40), (0, 200)),
            node("kimi_instance_starting_seconds", **ONE): flat(60),
        },
        fires=(33, 48),
        silent=(25, 30.5, 52),
        labels=_A1,
        says="a: instance 0 began to start 3 times in three hours and does not serve",
    ),
    Case(
        "KimiRestartLoop",
        "it was woken three times, and sleeps",
        {
            node("kimi_instance_starts_total", **ONE): phases((3, 10), (4, 10), (5, 10), (6, 200)),
            node("kimi_instance_active", **ONE): phases((1, 40), (0, 200)),
            node("kimi_stopped"): phases((0, 40), (1, 200)),
        },
        silent=(25, 33, 45, 60),
    ),
    Case(
        "KimiNoProgress",
        "vLLM hangs for 20 minutes",
        _hung(OF_VLLM),
        fires=(30, 39),
        silent=(19, 24, 44),
        labels=_A1,
        says="a: instance 0 hangs: requests run and no token comes",
    ),
    Case(
        "KimiNoProgress",
        "sglang hangs for 20 minutes",
        _hung(OF_SGLANG),
        fires=(30, 39),
        silent=(19, 24, 44),
        labels=_B1,
        says="b: instance 0 hangs: requests run and no token comes",
    ),
    Case(
        "KimiNoProgress",
        "the watchdog's chat is not answered",
        {node("kimi_watchdog_stalled", **ONE): phases((0, 10), (1, 10), (0, 200))},
        fires=(15,),
        silent=(9, 12, 22),
        labels=_A1,
        says="a: instance 0 hangs: requests run and no token comes",
    ),
    Case(
        "KimiNoProgress",
        "a long prompt gives no token, but steps",
        {
            _vllm("num_requests_running"): flat(1),
            _vllm("generation_tokens_total"): flat(5),
            _vllm("prompt_tokens_total"): flat(5),
            _vllm(f"{ITL}_sum"): flat(1),
            _vllm(f"{ITL}_count"): flat(50),
            _vllm("iteration_tokens_total_count"): rising(15),
        },
        silent=(15, 60),
    ),
    Case(
        "KimiNoProgress",
        "nothing is asked",
        {name: flat(0) for name in (*OF_VLLM, *OF_SGLANG)},
        silent=(15, 60, 200),
    ),
    Case(
        "KimiSlowerThanPredicted",
        "20 tokens a second where 38 to 66 were predicted; mended after an hour",
        {_vllm(f"{ITL}_sum"): f"0+300x119 {300 * 120}+120x{LAST}"},
        fires=(21, 59),
        silent=(14, 70),
        labels=_A1,
        says=_MUCH_SLOWER.format("20.0"),
    ),
    Case(
        "KimiSlowerThanPredicted",
        "slow for five minutes",
        {_vllm(f"{ITL}_sum"): f"0+120x39 4800+300x9 7800+120x{LAST}"},
        silent=(22, 26, 40),
    ),
    Case(
        "KimiSlowerThanPredicted",
        "more at once than the plan counts on",
        {**_SLOW, _vllm("num_requests_running"): flat(40)},
        silent=(21, 59),
    ),
    Case(
        "KimiSlowerThanPredicted",
        "the last probe was slow",
        {node("kimi_measured_decode_tokens_per_second"): phases((12, 40), (50, 200))},
        fires=(16, 39),
        silent=(14, 42),
        labels={"host": "a"},
        says=_MUCH_SLOWER.format("12.0"),
    ),
    Case(
        "KimiPreemptions",
        "one each half minute, for half an hour",
        {_vllm("num_preemptions_total"): f"0+1x59 60+0x{LAST}"},
        fires=(13, 29),
        silent=(9, 40),
        labels=_A1,
        says="a: instance 0 preempts answers because its cache is full",
    ),
    Case(
        "KimiPreemptions",
        "sglang retracts",
        {engine("sglang:num_retracted_requests_total", "b"): f"0+1x59 60+0x{LAST}"},
        fires=(13, 29),
        silent=(9, 40),
        labels=_B1,
        says="b: instance 0 preempts answers because its cache is full",
    ),
    Case(
        "KimiPreemptions",
        "two in a burst",
        {_vllm("num_preemptions_total"): phases((0, 10), (2, 200))},
        silent=(12, 14, 21),
    ),
    Case(
        "KimiPreemptions",
        "one in ten minutes, again and again",
        {_vllm("num_preemptions_total"): phases(*((float(n), 10) for n in range(20)))},
        silent=(35, 95),
    ),
    Case(
        "KimiQueue",
        "20 wait where 16 are served at once",
        {_vllm("num_requests_waiting"): phases((0, 5), (20, 25), (3, 200))},
        fires=(16, 29),
        silent=(14, 31),
        labels=_A1,
        says="a: 20 requests wait at instance 0, more than it serves at once",
    ),
    Case(
        "KimiQueue",
        "a burst",
        {_vllm("num_requests_waiting"): phases((0, 5), (40, 8), (0, 200))},
        silent=(9, 12.5, 20),
    ),
    Case(
        "KimiQueue",
        "sglang: 5 where 4",
        {engine("sglang:num_queue_reqs", "b"): phases((0, 5), (5, 25), (0, 200))},
        fires=(16,),
        silent=(14, 31),
        labels=_B1,
        says="b: 5 requests wait at instance 0, more than it serves at once",
    ),
    Case(
        "KimiCacheFull",
        "full, and one waits",
        {
            _vllm("kv_cache_usage_perc"): phases((0.4, 5), (0.97, 25), (0.6, 200)),
            _vllm("num_requests_waiting"): flat(1),
        },
        fires=(16, 29),
        silent=(14, 31),
        labels=_A1,
        says="a: the cache of instance 0 is 97% full and requests wait for it",
    ),
    Case(
        "KimiCacheFull",
        "full, and nobody waits",
        {_vllm("kv_cache_usage_perc"): flat(0.99)},
        silent=(16, 60),
    ),
    Case(
        "KimiGpuLost",
        "one of two; it comes back",
        {node("kimi_gpus_seen"): phases((2, 10), (1, 20), (2, 200))},
        fires=(12, 29),
        silent=(9, 10.5, 31),
        labels={"host": "a"},
        says="a: the driver sees 1 GPUs, fewer than the plan uses",
    ),
    Case(
        "KimiGpuXid",
        "a code that was never there",
        {node("kimi_gpu_xid_errors_total", code="79"): phases(("_", 30), (1, 200))},
        fires=(31, 44),
        silent=(29, 46),
        labels={"host": "a", "code": "79"},
        says="a: the kernel logged Xid 79 of a GPU",
    ),
    Case(
        "KimiGpuXid",
        "a code that comes again",
        {node("kimi_gpu_xid_errors_total", code="43"): phases((1, 30), (2, 200))},
        fires=(31, 44),
        silent=(29, 46),
        labels={"host": "a", "code": "43"},
        says="a: the kernel logged Xid 43 of a GPU",
    ),
    Case(
        "KimiGpuEcc",
        "one more error",
        {node("kimi_gpu_ecc_uncorrected_total", gpu="1"): phases((2, 30), (3, 200))},
        fires=(31, 89),
        silent=(29, 92),
        labels={"host": "a", "gpu": "1"},
        says="a: memory of GPU 1 has uncorrected errors",
    ),
    Case(
        "KimiGpuRowRemapFailed",
        "no spare row; the card is replaced",
        {
            node("kimi_gpu_fault", gpu="1", fault="row_remap_failed"): phases(
                (0, 10), (1, 20), (0, 90)
            )
        },
        fires=(11, 29),
        silent=(9, 31),
        labels={"host": "a", "gpu": "1"},
        says="a: GPU 1 has a faulty row of memory and no spare one for it",
    ),
    Case(
        "KimiGpuRowRemapPending",
        "a row waits; the machine is restarted",
        {
            node("kimi_gpu_fault", gpu="1", fault="row_remap_pending"): phases(
                (0, 10), (1, 20), (0, 90)
            )
        },
        fires=(11, 29),
        silent=(9, 31),
        labels={"host": "a", "gpu": "1"},
        says="a: a row of memory of GPU 1 is faulty and is replaced when the GPU is reset",
    ),
    Case(
        "KimiGpuEccStorm",
        "many corrected errors, and an hour without",
        {node("kimi_gpu_fault", gpu="1", fault="ecc_storm"): phases((0, 10), (1, 60), (0, 90))},
        fires=(11, 69),
        silent=(9, 71),
        labels={"host": "a", "gpu": "1"},
        says="a: GPU 1 corrected more memory errors in an hour than it should",
    ),
    Case(
        "KimiGpuNvlinkErrors",
        "a link recovers, and an hour without",
        {node("kimi_gpu_fault", gpu="1", fault="nvlink_errors"): phases((0, 10), (1, 60), (0, 90))},
        fires=(11, 69),
        silent=(9, 71),
        labels={"host": "a", "gpu": "1"},
        says="a: NVLink of GPU 1 had to repeat or to be set up again",
    ),
    Case(
        "KimiGpuPcieWidth",
        "half its lanes, until the card is seated again",
        {node("kimi_gpu_fault", gpu="1", fault="pcie_width"): phases((0, 5), (1, 30), (0, 90))},
        fires=(16, 34),
        silent=(14, 36),
        labels={"host": "a", "gpu": "1"},
        says="a: GPU 1 has a PCIe link that is narrower than card and slot can have",
    ),
    Case(
        "KimiGpuPcieWidth",
        "narrow while it is trained",
        {node("kimi_gpu_fault", gpu="1", fault="pcie_width"): phases((0, 5), (1, 8), (0, 90))},
        silent=(10, 14, 20),
    ),
    Case(
        "KimiGpuThrottled",
        "too hot for half an hour",
        {
            node("kimi_gpu_throttled", gpu="1", reason="hw_thermal_slowdown"): phases(
                (0, 5), (1, 30), (0, 200)
            )
        },
        fires=(16, 34),
        silent=(14, 36),
        labels={"host": "a", "gpu": "1", "reason": "hw_thermal_slowdown"},
        says="a: GPU 1 is throttled: hw_thermal_slowdown",
    ),
    Case(
        "KimiGpuThrottled",
        "hot for some minutes",
        {
            node("kimi_gpu_throttled", gpu="1", reason="hw_thermal_slowdown"): phases(
                (0, 5), (1, 8), (0, 200)
            )
        },
        silent=(10, 14, 20),
    ),
    Case(
        "KimiCertificateExpires",
        "14 days from the 20th minute on; renewed",
        {
            node("kimi_certificate_begins_timestamp_seconds"): flat(-76 * DAY),
            node("kimi_certificate_expires_timestamp_seconds"): phases(
                (14 * DAY + 1200, 60), (90 * DAY, 200)
            ),
        },
        fires=(31, 59),
        silent=(19, 29, 61),
        labels={"host": "a"},
        says="a: the certificate ends in 13d 23h 49m 0s",
    ),
    Case(
        "KimiCertificateExpires",
        "one of six days, renewed every four",
        {
            node("kimi_certificate_begins_timestamp_seconds"): flat(-3 * DAY),
            node("kimi_certificate_expires_timestamp_seconds"): flat(3 * DAY),
        },
        silent=(15, 60),
    ),
    Case(
        "KimiCertificateExpires",
        "one of six days, in its last quarter",
        {
            node("kimi_certificate_begins_timestamp_seconds"): flat(-5 * DAY),
            node("kimi_certificate_expires_timestamp_seconds"): flat(1 * DAY),
        },
        fires=(15,),
        labels={"host": "a"},
        says="a: the certificate ends in 23h 45m 0s",
    ),
    Case(
        "KimiDiskFull",
        "two of 90 GB are left, for half an hour",
        {
            node("node_filesystem_avail_bytes", mountpoint="/", fstype="ext4"): phases(
                (5e10, 5), (2e9, 30), (4e10, 200)
            )
        },
        fires=(16, 34),
        silent=(14, 36),
        labels={"host": "a", "mountpoint": "/"},
        says="a: 1.863GiB are left on /",
    ),
    Case(
        "KimiDiskFull",
        "a large disk with 3 %, which is 90 GB",
        {
            node("node_filesystem_size_bytes", mountpoint="/srv", fstype="xfs"): flat(3e12),
            node("node_filesystem_avail_bytes", mountpoint="/srv", fstype="xfs"): flat(9e10),
        },
        silent=(16, 60),
    ),
    Case(
        "KimiDiskFull",
        "a small one with half of it free",
        {
            node("node_filesystem_size_bytes", mountpoint="/boot", fstype="ext4"): flat(1e9),
            node("node_filesystem_avail_bytes", mountpoint="/boot", fstype="ext4"): flat(5e8),
        },
        silent=(16, 60),
    ),
    Case(
        "KimiRamDiskLost",
        "unmounted under the engine, filled again",
        {node("kimi_ram_disk_filled"): phases((1, 10), (0, 30), (1, 200))},
        fires=(26, 39),
        silent=(24, 41),
        labels={"host": "a"},
        says="a: the plan has a RAM disk, and it is not filled",
    ),
    Case(
        "KimiRamDiskLost",
        "nothing fills it, and the engine is down",
        _down((0, 240))
        | {
            node("kimi_ram_disk_filled"): phases((1, 10), (0, 200)),
            node("kimi_instance_starting", **ONE): flat(1),
            node("kimi_instance_starting_seconds", **ONE): flat(60),
        },
        fires=(90,),
        silent=(60, 70),
        labels={"host": "a"},
        says="a: the plan has a RAM disk, and it is not filled",
    ),
    Case(
        "KimiRamDiskLost",
        "none is planned",
        {node("kimi_ram_disk_planned"): flat(0), node("kimi_ram_disk_filled"): flat(0)},
        silent=(26, 100),
    ),
    Case(
        "KimiWeightsMarkGone",
        "removed, and verified again",
        {node("kimi_weights_verified"): phases((1, 10), (0, 20), (1, 200))},
        fires=(16, 29),
        silent=(14, 31),
        labels={"host": "a", "hash": "p1"},
        says="a: the weights are no longer marked as verified",
    ),
    Case(
        "KimiWeightsMarkGone",
        "the weights of a new plan are fetched",
        {
            node("kimi_weights_verified"): phases((1, 10), (0, 200)),
            node("kimi_plan_info", hash="p1"): f"1+0x19 stale _x{LAST}",
            node("kimi_plan_info", hash="p2"): phases(("_", 10), (1, 200)),
        },
        silent=(16, 60, 120),
    ),
    Case(
        "KimiClock",
        "not synchronised for half an hour",
        {node("kimi_clock_synchronised"): phases((1, 5), (0, 30), (1, 200))},
        fires=(21, 34),
        silent=(19, 36),
        labels={"host": "a"},
        says="a: the clock is not synchronised",
    ),
    Case(
        "KimiDriverChanged",
        "packages came, and the restart",
        {node("kimi_driver_changed"): phases((0, 5), (1, 30), (0, 200))},
        fires=(21, 34),
        silent=(19, 36),
        labels={"host": "a"},
        says="a: another NVIDIA driver is installed than runs",
    ),
    Case(
        "KimiGroupMemberLost",
        "it is gone for ten minutes",
        {node("kimi_group_member_up", member="c"): phases((1, 5), (0, 10), (1, 200))},
        fires=(8, 14),
        silent=(6, 16),
        labels={"host": "a", "member": "c"},
        says="a: member c of its group is lost",
    ),
    Case(
        "KimiGroupMemberLost",
        "the group starts",
        _starting(flat(60)) | {node("kimi_group_member_up", member="c"): flat(0)},
        silent=(8, 30),
    ),
    Case(
        "KimiGroupMemberLost",
        "the group was stopped on purpose, or is asleep",
        {
            node("kimi_group_member_up", member="c"): phases((1, 5), (0, 200)),
            node("kimi_stopped"): phases((0, 5), (1, 200)),
        },
        silent=(8, 30),
    ),
    Case(
        "KimiWatchdogRestarted",
        "once",
        {node("kimi_watchdog_restarts_total", **ONE): phases((0, 30), (1, 200))},
        fires=(31, 89),
        silent=(29, 92),
        labels=_A1,
        says="a: the watchdog restarted instance 0, which hung",
    ),
    Case(
        "KimiWatchdogRestarted",
        "with a cause",
        {
            node("kimi_watchdog_restarts_total", **ONE): phases((0, 30), (1, 200)),
            node("kimi_watchdog_last_cause", **ONE, id="diagnose.xid_79"): flat(1),
        },
        fires=(31, 89),
        silent=(29, 92),
        labels=_A1,
        says="a: the watchdog restarted instance 0, which hung; its logs show diagnose.xid_79",
    ),
    Case(
        "KimiHostUnreachable",
        "nothing answers for ten minutes",
        {
            up("kimi-node"): phases((1, 5), (0, 10), (1, 200)),
            up("kimi-proxy"): phases((1, 5), (0, 10), (1, 200)),
            up("kimi-engine", engine="0"): phases((1, 5), (0, 10), (1, 200)),
        },
        fires=(11, 14),
        silent=(9, 16),
        labels={"host": "a"},
        says="a: no metrics of the machine can be read",
    ),
    Case(
        "KimiGatewaySplit",
        "the gateways do not hear each other for half an hour",
        {
            node("kimi_gateway_has_address", "h", address="10.0.9.100"): phases(
                (0, 10), (1, 30), (0, 100)
            )
        },
        fires=(12, 39),
        silent=(9, 10.5, 41),
        labels={"address": "10.0.9.100"},
        says="10.0.9.100: 2 gateways have the shared address",
    ),
    Case(
        "KimiGatewayNoMachine",
        "the network to the machines is cut for half an hour",
        {
            node("kimi_gateway_machine_up", "g", machine="a"): phases((1, 10), (0, 30), (1, 100)),
            node("kimi_gateway_machine_up", "g", machine="b"): phases((1, 10), (0, 30), (1, 100)),
        },
        fires=(12, 39),
        silent=(9, 10.5, 41),
        labels={"host": "g"},
        says="g: the gateway sends to no machine",
    ),
    Case(
        "KimiGatewayNoMachine",
        "all machines are asleep",
        {
            node("kimi_gateway_machine_up", "g", machine="a"): flat(0),
            node("kimi_gateway_machine_up", "g", machine="b"): flat(0),
            node("kimi_gateway_machines_asleep", "g"): flat(2),
        },
        silent=(5, 60),
        labels={"host": "g"},
    ),
    Case(
        "KimiGatewayMachineOut",
        "one of two machines is left out for half an hour",
        {node("kimi_gateway_machine_up", "g", machine="a"): phases((1, 10), (0, 30), (1, 100))},
        fires=(16, 39),
        silent=(9, 14, 41),
        labels={"host": "g", "machine": "a"},
        says="g: the gateway sends nothing to a",
    ),
    Case(
        "KimiGatewayMachineOut",
        "a machine that was stopped",
        {
            node("kimi_gateway_machine_up", "g", machine="a"): flat(0),
            node("kimi_stopped", "a"): flat(1),
        },
        silent=(7, 60),
        labels={"host": "g", "machine": "a"},
    ),
    Case(
        "KimiGatewayCertificateExpires",
        "the certificate of a machine ends in 14 days and an hour",
        {
            node(
                "kimi_gateway_machine_certificate_expires_timestamp_seconds", "g", machine="b"
            ): phases((14 * DAY + 3600, 90), (1000 * DAY, 100))
        },
        fires=(72, 89),
        silent=(59, 68, 91),
        labels={"host": "g", "machine": "b"},
        says="g: the certificate that it trusts at b ends soon",
    ),
    Case(
        "KimiClocksApart",
        "a machine's clock is behind for half an hour",
        {
            node("kimi_gateway_clock_apart_seconds", "g", machine="b"): phases(
                (1, 10), (-90, 30), (-1, 100)
            )
        },
        fires=(16, 39),
        silent=(9, 14, 41),
        labels={"host": "g", "machine": "b"},
        says="g: its clock and that of b are 90 s apart",
    ),
    Case(
        "KimiAllBusy",
        "as many wait as may for half an hour",
        {
            node("kimi_gateway_requests_waiting", "g"): phases((15, 10), (16, 30), (15, 100)),
        },
        fires=(13, 39),
        silent=(9, 11.5, 41),
        labels={"host": "g"},
        says="g: all machines are busy, and 16 requests wait",
    ),
    Case(
        "KimiAllBusy",
        "a gateway without machines",
        {
            node("kimi_gateway_requests_waiting", "g"): flat(0),
            node("kimi_gateway_requests_waiting_most", "g"): flat(0),
        },
        silent=(10, 60),
        labels={"host": "g"},
    ),
    Case(
        "KimiTargetDown",
        "the proxy's metrics",
        {up("kimi-proxy"): phases((1, 5), (0, 20), (1, 200))},
        fires=(16, 24),
        silent=(14, 26),
        labels={"host": "a", "job": "kimi-proxy", "instance": "a:9443"},
        says="a: metrics of kimi-proxy cannot be read",
    ),
    Case(
        "KimiTargetDown",
        "an engine that serves shows none",
        GONE | {up("kimi-engine", engine="0"): phases((1, 5), (0, 20), (1, 200))},
        fires=(16, 24),
        silent=(14, 26),
        labels={"host": "a", "job": "kimi-engine", "engine": "0", "instance": "a:9443"},
        says="a: metrics of kimi-engine cannot be read",
    ),
    Case(
        "KimiMetricsNotWritten",
        "the timer stands still for half an hour",
        {node("kimi_metrics_written_timestamp_seconds"): (f"0+30x19 600+0x59 {30 * 80}+30x{LAST}")},
        fires=(26, 39),
        silent=(14, 24, 41),
        labels={"host": "a"},
        says="a: kimi-prov's own metrics are old or missing",
    ),
    Case(
        "KimiMetricsNotWritten",
        "the file is gone, the node exporter answers",
        {name: None for name in WELL if name.startswith("kimi_") and 'host="a"' in name},
        fires=(12,),
        silent=(8,),
        labels={"host": "a"},
        says="a: kimi-prov's own metrics are old or missing",
    ),
)
