"""Variables of an inventory: a cloud's machine."""

from __future__ import annotations

from kimi_prov.planner.settings.definitions.variable import Variable, define

_CLOUD = "On a cloud's machine"

# What SkyPilot also starts, and why nothing is rendered for it. Held against SkyPilot's own code by
# tests/component/render/test_skypilot_itself.py.
_CONTAINER = "SkyPilot gives a container there, without systemd: nothing can be provisioned in it"
# Of OCI it is recalled, for machines with GPUs.
_STAYS_PAID = (
    "a machine there is paid for until somebody deletes it: switching itself off, which is all "
    "that it can do when its setup fails, does not end that"
)
_POD_FIX = "use its Kubernetes: kimi-prov render kubernetes SHEET --image IMAGE"
_OWN_FIX = (
    "start a machine with Ubuntu 22.04 or 24.04 yourself, provision it with  kimi-prov apply "
    "INVENTORY, and delete it yourself"
)
_NOT_RENDERED = (
    ("runpod", _CONTAINER, "use gcp or aws, or a machine of your own"),
    ("vast", _CONTAINER, "use gcp or aws, or a machine of your own"),
    ("coreweave", _CONTAINER, _POD_FIX),
    ("kubernetes", _CONTAINER, _POD_FIX),
    ("lambda", _STAYS_PAID, _OWN_FIX),
    ("azure", _STAYS_PAID, _OWN_FIX),
    ("oci", _STAYS_PAID, _OWN_FIX),
    (
        "nebius",
        "no kind of machine of it is in the catalogue, and nothing there was tried",
        _OWN_FIX,
    ),
)

VARIABLES: tuple[Variable, ...] = (
    define(
        _CLOUD,
        "cloud",
        "choice",
        "gcp",
        "aws",
        "The cloud of `render cloud-init` and `render skypilot`.",
        choices=("gcp", "aws"),
        refused=_NOT_RENDERED,
    ),
    define(
        _CLOUD,
        "cloud_regions",
        "texts",
        [],
        "[us-central1, europe-west4]",
        "Regions to try, in their order; on gcp zones for `render cloud-init`. Empty: SkyPilot "
        "chooses, and the launch.sh of `render cloud-init` asks for one.",
    ),
    define(
        _CLOUD,
        "cloud_machines",
        "texts",
        [],
        "[a3-highgpu-8g, a3-ultragpu-8g]",
        "Kinds of machines to try, in their order, by the cloud's names (kimi-prov catalog "
        "clouds). Empty: those of the catalogue that serve the model, the cheapest first.",
    ),
    define(
        _CLOUD,
        "cloud_terms",
        "choice",
        "spot-first",
        "spot",
        "spot-first: spot in all regions, then on demand.",
        choices=("spot-first", "spot", "on-demand"),
    ),
    define(
        _CLOUD,
        "cloud_image",
        "text",
        None,
        "projects/YOUR-PROJECT/global/images/NAME",
        "Image of the machine: Debian 12 or 13, Ubuntu 22.04 or 24.04. Not set: SkyPilot's own "
        "(Ubuntu 22.04); for cloud-init Debian 12 on gcp, and required on aws. SkyPilot takes "
        "an image's name or a tag of its own (`skypilot:TAG`), and no family.",
    ),
    define(
        _CLOUD,
        "cloud_package",
        "wheel",
        None,
        f"https://files.example.com/kimi_prov-1.0-py3-none-any.whl#sha256={'0' * 64}",
        "The wheel of kimi-prov that the machine installs, with its SHA-256. Not set: the one that "
        "renders; for cloud-init from the bucket of the weights.",
    ),
    define(
        _CLOUD,
        "cloud_give_up",
        "interval",
        7200,
        "3h",
        "Time after which a machine that does not serve yet deletes itself.",
    ),
    define(
        _CLOUD,
        "hour_usd",
        "dollars",
        None,
        "26",
        "Price of an hour of the machine, US dollars. With kimi_idle_stop, `status` and the end "
        "of a session show its cost, with starts and idle time apart.",
    ),
    define(
        _CLOUD,
        "budget_usd",
        "dollars",
        None,
        "60",
        "Budget of a session, from a boot to the machine's end: at 80 % of it the journal and "
        "`status` warn, at 100 % the machine does what kimi_idle_action says.",
    ),
)
