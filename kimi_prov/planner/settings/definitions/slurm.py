"""Variables of an inventory: a SLURM cluster."""

from __future__ import annotations

from kimi_prov.planner.settings.definitions.variable import OFF, Variable, define

_SLURM = "On a SLURM cluster"

VARIABLES: tuple[Variable, ...] = (
    define(
        _SLURM,
        "slurm_root",
        "place",
        None,
        "/project/ab12/kimi",
        "Folder on the cluster's shared file system with the engine, the weights and the keys. "
        "`render slurm` needs it; the variables of this group only count for that command.",
    ),
    define(
        _SLURM,
        "slurm_partition",
        "partition",
        None,
        "gpu",
        "Partition of the jobs that need GPUs. Not set: the cluster's default.",
    ),
    define(
        _SLURM,
        "slurm_cpu_partition",
        "partition",
        None,
        "common",
        "Partition of the jobs that need no GPU. Not set: the one of kimi_slurm_partition.",
    ),
    define(_SLURM, "slurm_account", "slurm", None, "ab12", "Account that the jobs are charged to."),
    define(_SLURM, "slurm_qos", "slurm", None, "8gpu", "QOS of the jobs that need GPUs."),
    define(
        _SLURM,
        "slurm_cpu_qos",
        "slurm",
        None,
        "2cpu-single-host",
        "QOS of the jobs that need no GPU. Not set: the one of kimi_slurm_qos.",
    ),
    define(
        _SLURM,
        "slurm_constraint",
        "slurm",
        None,
        "h200&nvlink",
        "Features that the nodes with GPUs must have.",
    ),
    define(
        _SLURM,
        "slurm_gres",
        "gres",
        "auto",
        "gpu:h200:8",
        "Generic resources of each node. auto: gpu:N with the plan's N.",
        auto=True,
    ),
    define(
        _SLURM,
        "slurm_time",
        "walltime",
        "24:00:00",
        "2-00:00:00",
        "Walltime of the server's job.",
    ),
    define(
        _SLURM,
        "slurm_signal_s",
        "seconds",
        300,
        "600",
        "Seconds before the walltime's end at which the server takes no more requests, finishes "
        "those it has, and hands over to its successor: fewer than kimi_slurm_time has, 65535 at "
        "most.",
        most=65_535,
    ),
    define(
        _SLURM,
        "slurm_requeue",
        "switch",
        OFF,
        "true",
        "Let SLURM queue the server's job again after a preemption or the failure of a node.",
    ),
    define(
        _SLURM,
        "slurm_idle_minutes",
        "minutes",
        0,
        "120",
        "Minutes without a request after which the server's job ends. 0: never.",
    ),
    define(
        _SLURM,
        "slurm_modules",
        "texts",
        [],
        "[nvidia/cuda/12/12.8, python/3.11]",
        "Environment modules that every job loads.",
    ),
    define(
        _SLURM,
        "slurm_conda",
        "choice",
        "auto",
        "mamba",
        "The program that makes the Python below kimi_slurm_root, in a job, where the site has "
        "only conda. auto: conda, if a module of kimi_slurm_modules is named after it and "
        "kimi_slurm_python is not set. none: the site's Python is used.",
        auto=True,
        choices=("conda", "mamba", "micromamba", "none"),
    ),
    define(
        _SLURM,
        "slurm_python",
        "place",
        None,
        "/project/ab12/conda/envs/py311",
        "Python of the engine's environment: a program, or the prefix of a conda "
        "environment. Not set: pythonX.Y of the version that the packages are pinned for.",
    ),
    define(
        _SLURM,
        "slurm_login",
        "login",
        None,
        "user@login.cluster.example.com",
        "USER@HOST of the login node, which submit, jobs, cancel and connect reach by ssh. Not "
        "set: they run on the login node.",
    ),
)
