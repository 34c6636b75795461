"""Where things are on the managed machine. The plan carries the same paths to the roles."""

from __future__ import annotations

USER = "kimi"

ROOT = "/srv/kimi"
ENGINES = f"{ROOT}/engines"
ENGINE = f"{ROOT}/engine"
MODELS = f"{ROOT}/models"
RAM = f"{ROOT}/ram"
LIB = f"{ROOT}/lib"
ZIPAPP = f"{LIB}/kimi-target.pyz"
TOOLS = f"{ROOT}/tools"
CACHE = f"{ROOT}/cache"
TUNED = f"{ROOT}/tuned"
# CUDA kernels of KTransformers, assembled when it is installed.
KT_CUDA = f"{CACHE}/kt-cuda"

ETC = "/etc/kimi"
PLAN = f"{ETC}/plan.json"
WEIGHTS = f"{ETC}/weights.json"
STAGE = f"{ETC}/stage.json"
CONVERT = f"{ETC}/convert.json"
CA_BUNDLE = f"{ETC}/ca-bundle.pem"
HUB_TOKEN = f"{ETC}/keys/hub-token"
ENV = f"{ETC}/env"
KEYS = f"{ETC}/keys"
PROXY = f"{ETC}/proxy"
FIREWALL = f"{ETC}/firewall.nft"

UNITS = "/etc/systemd/system"

HOME = "/var/lib/kimi"
STATE = f"{HOME}/state"
# The version of the driver that this product installed, held, and can go back to.
DRIVER_STATE = f"{STATE}/driver.json"
DRIVER = f"{HOME}/driver"
# With which engine and driver the GPUs were seen to sum up over NCCL.
NCCL_STATE = f"{STATE}/nccl.json"
# The units that the running engines were started with, by stamp.
STARTED = f"{STATE}/serve"
# What was in the engine's way, by its own path, until `destroy` brings it back.
SET_ASIDE = f"{HOME}/set-aside"

RUN = "/run/kimi"
PROGRESS = f"{RUN}/progress"
APPLY_LOCK = "/run/kimi-apply.lock"

# Written last into an engine's environment: without it the environment is half made.
ENV_COMPLETE = ".complete"
# Written last into a model's directory.
MODEL_VERIFIED = ".kimi-verified"


def tuned(version: str) -> str:
    """Return the folder of the kernels' tables that were tuned with a version of vLLM."""
    return f"{TUNED}/vllm-{version}"


def paths() -> dict[str, str]:
    """Return the plan's `paths`: a name and an absolute path for each place a role writes to."""
    return {
        "root": ROOT,
        "engines": ENGINES,
        "engine": ENGINE,
        "models": MODELS,
        "ram": RAM,
        "lib": LIB,
        "zipapp": ZIPAPP,
        "tools": TOOLS,
        "cache": CACHE,
        "tuned": TUNED,
        "kt_cuda": KT_CUDA,
        "etc": ETC,
        "plan": PLAN,
        "weights": WEIGHTS,
        "stage": STAGE,
        "convert": CONVERT,
        "ca_bundle": CA_BUNDLE,
        "hub_token": HUB_TOKEN,
        "env": ENV,
        "keys": KEYS,
        "proxy": PROXY,
        "firewall": FIREWALL,
        "home": HOME,
        "state": STATE,
        "run": RUN,
        "progress": PROGRESS,
    }
