"""Where things are on the managed machine. The plan carries the same paths to the roles."""

from __future__ import annotations

from pathlib import Path

# Whom the engine and its weights belong to; its group has the same name.
USER = "kimi"
PROXY_USER = "kimi-proxy"

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
# The operator's key in clear until it was shown; the key by which a machine tests itself.
OPERATOR_NEW = f"{KEYS}/operator.new"
VERIFY_KEY = f"{KEYS}/verify.key"
PROXY = f"{ETC}/proxy"
FIREWALL = f"{ETC}/firewall.nft"
# Unit files of this product and of the administrator.
UNITS = "/etc/systemd/system"

HOME = "/var/lib/kimi"
STATE = f"{HOME}/state"
# What the first apply found, for `destroy`.
BEFORE = f"{STATE}/before.json"
# Rules of ours in ufw or firewalld.
FIREWALL_STATE = f"{STATE}/firewall.json"
# The version of the driver that this product installed, held, and can go back to.
DRIVER_STATE = f"{STATE}/driver.json"
DRIVER = f"{HOME}/driver"
# With which engine and driver the GPUs were seen to sum up over NCCL.
NCCL_STATE = f"{STATE}/nccl.json"
# The units that the running engines were started with, by stamp.
STARTED = f"{STATE}/serve"
# NCCL plugins that were moved away, each by its own path, until `destroy` brings them back.
QUARANTINE = f"{HOME}/set-aside"

RUN = "/run/kimi"
PROGRESS = f"{RUN}/progress"
APPLY_LOCK = "/run/kimi-apply.lock"
PROXY_SOCKET = "/run/kimi-proxy/admin.sock"

# Written last into an engine's environment: without it the environment is half made.
ENV_COMPLETE = ".complete"
# Written last into a model's directory.
MODEL_VERIFIED = ".kimi-verified"
# The table of the firewall, as nft names it.
FIREWALL_TABLE = ("inet", "kimi")


# Files of the roles whose content, owner and mode are facts: a role writes only what differs.
MANAGED = (
    "/etc/apt/apt.conf.d/52kimi-nvidia",
    "/etc/sysctl.d/80-kimi.conf",
    f"{UNITS}/kimi-firewall.service",
    f"{UNITS}/kimi-proxy.service",
    f"{UNITS}/nftables.service.d/kimi-firewall.conf",
    "/etc/tmpfiles.d/kimi-tuning.conf",
    "/etc/tmpfiles.d/kimi.conf",
    CA_BUNDLE,
    FIREWALL,
    f"{PROXY}/haproxy.cfg",
)


def tuned(version: str) -> str:
    """Return the folder of the kernels' tables that were tuned with a version of vLLM."""
    return f"{TUNED}/vllm-{version}"


def under(root: str, name: str) -> str:
    """Return an absolute path of the machine below `root`, which is `/` on the machine.

    Code that reads files takes such a root, so that a test can give it a directory.
    """
    return root.rstrip("/") + name


class Paths:
    """Files of the proxy, the keys and the firewall under one root."""

    def __init__(self, root: str | Path = "/") -> None:
        self.root = Path(root)
        self.etc = self.at(ETC)
        self.plan = self.at(PLAN)
        self.keys = self.at(KEYS)
        self.operator_new = self.at(OPERATOR_NEW)
        self.verify_key = self.at(VERIFY_KEY)
        self.proxy = self.at(PROXY)
        self.key_map = self.proxy / "keys.map"
        self.tls_pem = self.proxy / "tls.pem"
        self.tls_crt = self.proxy / "tls.crt"
        self.proxy_config = self.proxy / "haproxy.cfg"
        self.proxy_stamp = self.proxy / "stamp.cfg"
        self.firewall = self.at(FIREWALL)
        self.srv = self.at(ROOT)
        self.home = self.at(HOME)
        self.state = self.at(STATE)
        self.firewall_state = self.at(FIREWALL_STATE)
        self.before = self.at(BEFORE)
        self.units = self.at(UNITS)
        self.socket = self.at(PROXY_SOCKET)

    def at(self, name: str) -> Path:
        """Return an absolute path of the machine below this root."""
        return Path(under(str(self.root), name))


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
