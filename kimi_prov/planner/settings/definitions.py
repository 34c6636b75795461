"""Every inventory variable there is: the one table that checks, documentation and templates use.

Decides: which variables exist, their checks and defaults.
Held by: tests/unit/planner/settings/test_parsing.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal[
    "text",  # a string
    "choice",  # one of `choices`
    "switch",  # true or false
    "count",  # a whole number from 1
    "share",  # a number above 0, 1 at most
    "port",
    "seconds",
    "interval",  # a time with its unit: 90s, 30m, 2h
    "url",  # http or https
    "proxy",  # a proxy's URL, which may carry a user and a password
    "source",  # where weights come from
    "links",  # a URL, or a directory on the control machine
    "file",  # a file on the control machine
    "networks",  # a list of IPv4 and IPv6 networks
    "texts",  # a list of strings
    "urls",
    "fingerprint",  # 40 hexadecimal digits
    "flags",  # a mapping of engine flag to value; null removes the flag
    "dollars",  # a number above 0
    "place",  # an absolute path on the machine, or a program's name
    "walltime",  # as SLURM writes it
    "minutes",  # a whole number from 0
    "slurm",  # a value of an #SBATCH line
    "login",  # USER@HOST for ssh
    "object",  # a name of a Kubernetes object: a DNS label
    "image",  # a container image's reference
    "labels",  # a mapping of label keys to values, as Kubernetes has them
    "resource",  # a name of an extended resource: DOMAIN/NAME
    "schedule",  # five fields, as cron and CronJob take them
    "domain",  # names with dots between them, in lower case
    "profile",  # a relative path on a Kubernetes node
]


@dataclass(frozen=True)
class Variable:
    """One variable. `auto`: the word auto is taken too, and means that the planner chooses.

    `most`: the largest number that a count may have.
    """

    name: str
    kind: Kind
    default: Any
    help: str
    example: str
    group: str
    auto: bool = False
    choices: tuple[str, ...] = ()
    most: int = 100_000_000


def _define(  # noqa: PLR0913  (a row of the table)
    group: str,
    name: str,
    kind: Kind,
    default: object,
    example: str,
    text: str,
    *,
    auto: bool = False,
    choices: tuple[str, ...] = (),
    most: int = Variable.most,
) -> Variable:
    return Variable(f"kimi_{name}", kind, default, text, example, group, auto, choices, most)


_OFF, _ON = False, True
_MODEL = "What is served"
_WEIGHTS = "Weights"
_MEMORY = "Memory"
_PORT = "The opened port"
_WEB_UI = "The page to talk to the model"
_ENGINE = "Engine"
_UPGRADE = "Upgrades"
_MONITORING = "Watching"
_LIFECYCLE = "Stopped and asleep"
_DRIVER = "NVIDIA driver"
_SITE = "Sites behind a mirror"
_GROUP = "One model over several machines"
_GATEWAY = "Several machines behind one address"
_SLURM = "On a SLURM cluster"
_KUBERNETES = "In a Kubernetes cluster"
_CLOUD = "On a cloud's machine"

VARIABLES: tuple[Variable, ...] = (
    _define(
        _MODEL,
        "model",
        "text",
        None,
        "kimi-k2.5",
        "The model, by its repository's name in lower case. The only variable without a default.",
    ),
    _define(
        _MODEL,
        "context",
        "count",
        "auto",
        "32768",
        "Tokens of one conversation, question and answer together. auto: what the model allows "
        "and memory holds.",
        auto=True,
    ),
    _define(_MODEL, "concurrency", "count", 16, "16", "Requests served at the same time."),
    _define(
        _MODEL,
        "served_names",
        "texts",
        [],
        "[kimi, kimi-k2.5]",
        "Names by which clients may ask for the model. Empty: the model's own name.",
    ),
    _define(
        _WEIGHTS,
        "weights_source",
        "source",
        None,
        "hf://moonshotai/Kimi-K2.5@COMMIT",
        "file:///DIRECTORY on the machine itself, an http(s) URL of a directory, "
        "hf://REPOSITORY@REVISION, or a folder of a bucket: s3://BUCKET/FOLDER, "
        "gs://BUCKET/FOLDER. Not set: the model's own repository.",
    ),
    _define(
        _WEIGHTS,
        "weights_manifest",
        "file",
        None,
        "manifests/kimi-k2.5.json",
        "File on the control machine that pins size and SHA-256 of each file. Not set: the "
        "source's own kimi-manifest.json, or what the hub tells.",
    ),
    _define(
        _WEIGHTS,
        "weights_format",
        "choice",
        "auto",
        "int4",
        "Number format of the routed experts. auto: the model's native one.",
        auto=True,
        choices=("int4", "nvfp4", "mxfp4", "fp8", "bf16"),
    ),
    _define(
        _WEIGHTS,
        "kt_method",
        "choice",
        "auto",
        "AMXINT4",
        "How kt-kernel keeps the experts, for KTransformers. auto: as the files have them (int4, "
        "fp8, bf16), without loss. AMXINT4 and AMXINT8 quantise once more, with loss; AMXINT4 "
        "takes half of fp8's memory.",
        auto=True,
        choices=("AMXINT4", "AMXINT8"),
    ),
    _define(
        _WEIGHTS,
        "kt_weights_source",
        "source",
        None,
        "file:///srv/kimi-k2-amxint4",
        "Where experts come from that were converted for kimi_kt_method elsewhere, for as many "
        "thread pools as the plan has. Not set: they are converted on the machine, from bf16 or "
        "fp8 weights.",
    ),
    _define(
        _WEIGHTS,
        "kt_weights_manifest",
        "file",
        None,
        "manifests/kimi-k2-amxint4.json",
        "File on the control machine that pins the converted experts, as kimi_weights_manifest "
        "does.",
    ),
    _define(
        _WEIGHTS,
        "draft_weights_source",
        "source",
        None,
        "file:///srv/kimi-k2.5-eagle3-mla",
        "Where the draft's weights come from. Not set: the draft's own repository.",
    ),
    _define(
        _WEIGHTS,
        "draft_weights_manifest",
        "file",
        None,
        "manifests/kimi-k2.5-eagle3-mla.json",
        "File on the control machine that pins the draft's files, as kimi_weights_manifest does.",
    ),
    _define(
        _WEIGHTS,
        "weights_from",
        "choice",
        "auto",
        "source",
        "Whom this host asks for the files. auto and neighbours: of hosts of the inventory with "
        "the same model and the same source on the network, the first asks the source, each other "
        "one a host before it, and the source where that one fails. source: the source alone; this "
        "host gives no neighbour anything either.",
        choices=("auto", "source", "neighbours"),
    ),
    _define(
        _WEIGHTS,
        "weights_port",
        "port",
        29600,
        "29600",
        "TCP port at which a host gives weights to its neighbours while they fetch.",
    ),
    _define(
        _WEIGHTS, "weights_workers", "count", 4, "8", "Files fetched and verified in parallel."
    ),
    _define(
        _WEIGHTS,
        "hf_endpoint",
        "url",
        None,
        "https://hub.example.com",
        "A hub that speaks Hugging Face's protocol, in place of huggingface.co. With "
        "kimi_hf_token_file, https alone, or the machine itself.",
    ),
    _define(
        _WEIGHTS,
        "hf_token_file",
        "file",
        None,
        "~/.cache/huggingface/token",
        "File on the control machine that holds the hub's token. It is copied, never logged.",
    ),
    _define(
        _WEIGHTS,
        "bucket_credentials_file",
        "file",
        None,
        "~/.aws/credentials",
        "File on the control machine that holds the credentials of s3:// (the profile default of "
        "an AWS credentials file) or of gs:// (a service account's JSON). It is copied, never "
        "logged. Not set: the machine's own role.",
    ),
    _define(
        _WEIGHTS,
        "bucket_endpoint",
        "url",
        None,
        "https://objects.example.com",
        "A server that speaks S3's or Google's protocol, in place of theirs: https alone, or the "
        "machine itself.",
    ),
    _define(
        _WEIGHTS,
        "bucket_region",
        "text",
        None,
        "eu-central-1",
        "Region of an s3:// bucket. Not set: the one that AWS answers with.",
    ),
    _define(
        _MEMORY,
        "ram_disk",
        "choice",
        "auto",
        "never",
        "Keep a verified copy of the weights in memory. auto: where memory holds it beside the "
        "engine. always: also where the planner would not, unless it cannot fit at all.",
        choices=("auto", "always", "never"),
    ),
    _define(
        _MEMORY,
        "instances",
        "count",
        "auto",
        "2",
        "Engines on a machine without GPU, each bound to a NUMA node of its own, behind one port. "
        "auto: one a node where every node holds an engine whole and requests are enough for all, "
        "else one.",
        auto=True,
    ),
    _define(
        _MEMORY,
        "kv_dtype",
        "choice",
        "auto",
        "fp8",
        "Number format of the cache on GPUs. auto: bf16, or fp8 where only that holds the context.",
        auto=True,
        choices=("bf16", "fp8"),
    ),
    _define(
        _PORT,
        "port",
        "port",
        8000,
        "443",
        "TCP port of the API. Engines take the ports after it, below 1024 those 8000 higher.",
    ),
    _define(
        _PORT,
        "allowed_networks",
        "networks",
        [],
        '["10.0.0.0/8", "fd00::/8"]',
        "Networks from which the port may be reached. Empty: from the machine itself alone.",
    ),
    _define(
        _PORT,
        "tls",
        "choice",
        "auto",
        "acme",
        "Where the certificate comes from: files of yours, a self-signed one made on the machine, "
        "or acme, a certificate authority that speaks ACME and is asked again before the end. "
        "auto: files where kimi_tls_cert_file is set, else self-signed.",
        choices=("auto", "files", "self-signed", "acme"),
    ),
    _define(
        _PORT,
        "tls_cert_file",
        "file",
        None,
        "certs/server.pem",
        "Certificate chain (PEM) on the control machine. Not set: a self-signed one is made.",
    ),
    _define(
        _PORT,
        "tls_key_file",
        "file",
        None,
        "certs/server.key",
        "Private key of the certificate, on the control machine.",
    ),
    _define(
        _PORT,
        "tls_names",
        "texts",
        [],
        "[kimi.example.com]",
        "Names and addresses in the self-signed certificate, beside the machine's own. With "
        "kimi_tls: acme the names that the certificate is ordered for.",
    ),
    _define(
        _PORT,
        "acme_directory_url",
        "url",
        "https://acme-v02.api.letsencrypt.org/directory",
        "https://ca.example.com/acme/acme/directory",
        "Directory of the certificate authority. One of the site's own is trusted by "
        "kimi_ca_bundle. To set kimi_tls: acme is to agree to the authority's terms.",
    ),
    _define(
        _PORT,
        "acme_contact",
        "text",
        None,
        "admin@example.com",
        "Address of mail that the certificate authority may write to. Not set: none is given.",
    ),
    _define(
        _PORT,
        "acme_challenge",
        "choice",
        "http-01",
        "dns-01",
        "How the names are proven: http-01 by an answer on port 80, which is open meanwhile, "
        "dns-01 by a record that kimi_acme_dns_hook writes.",
        choices=("http-01", "dns-01"),
    ),
    _define(
        _PORT,
        "acme_dns_hook",
        "file",
        None,
        "hooks/dns",
        "Program on the control machine that writes the record of dns-01 and takes it away; it is "
        "copied, and runs on the machine as kimi-acme.",
    ),
    _define(
        _PORT,
        "api_keys_file",
        "file",
        None,
        "secrets/api-keys",
        "File on the control machine with lines NAME:KEY or NAME:sha256:HEX, a rule behind it "
        "where there is one (expires=2027-01-31 tokens_per_day=1000000). Not set: a first key is "
        "made, and `kimi-prov key` shows it once.",
    ),
    _define(
        _WEB_UI,
        "web_ui",
        "switch",
        _OFF,
        "true",
        "Serve Open WebUI, a page with accounts and history, behind the same proxy and "
        "certificate. Behind gateways one for all machines, on the first of them.",
    ),
    _define(
        _WEB_UI,
        "web_port",
        "port",
        8443,
        "443",
        "TCP port of the page, for the same networks as the API's.",
    ),
    _define(
        _WEB_UI,
        "web_admin_file",
        "file",
        None,
        "secrets/web-admin",
        "File on the control machine with one line, E-MAIL:PASSWORD, of the page's first "
        "administrator. Not set: a password is made, and `kimi-prov key` shows it once. It counts "
        "until there is an account; later it changes nothing.",
    ),
    _define(
        _WEB_UI,
        "web_signup",
        "switch",
        _OFF,
        "true",
        "Let visitors ask for an account, which an administrator lets in. false: an administrator "
        "makes each.",
    ),
    _define(
        _ENGINE,
        "engine",
        "choice",
        "auto",
        "vllm",
        "The engine. auto: what serves the model on this machine.",
        auto=True,
        choices=("vllm", "ktransformers"),
    ),
    _define(
        _ENGINE,
        "engine_version",
        "text",
        "auto",
        "0.32.0",
        "Its version. auto: the one that the catalogue pins.",
        auto=True,
    ),
    _define(
        _ENGINE,
        "engine_args",
        "flags",
        {},
        "{max-num-batched-tokens: 4096, enforce-eager: null}",
        "Flags merged over the plan's; a value of null takes a flag away. One that memory is "
        "counted with has to be a number.",
    ),
    _define(
        _ENGINE,
        "experts",
        "choice",
        "auto",
        "vllm",
        "Who computes INT4 experts without a GPU: native, this project's kernel in vLLM's threads; "
        "kt, kt-kernel inside vLLM; vllm, its own (more memory, an hour and more at every start). "
        "auto: the first of these that the machine supports.",
        auto=True,
        choices=("native", "kt", "vllm"),
    ),
    _define(
        _ENGINE,
        "dense_weights",
        "choice",
        "auto",
        "int8",
        "How attention, shared experts, dense layers and head are held where kimi_experts is "
        "native or kt: bf16, as published; int8, by this project's kernel (faster, in less memory, "
        "and answers become somewhat worse). auto: bf16.",
        auto=True,
        choices=("bf16", "int8"),
    ),
    _define(
        _ENGINE,
        "speculative_model",
        "text",
        None,
        "kimi-k2.5-eagle3-mla",
        "A draft model that guesses tokens for the large one to verify; `kimi-prov catalog drafts` "
        "lists them. Not set: none.",
    ),
    _define(
        _ENGINE,
        "speculative_tokens",
        "count",
        3,
        "3",
        "Tokens that the draft guesses before the model verifies them.",
    ),
    _define(
        _ENGINE,
        "engine_stand_in",
        "source",
        None,
        "file:///opt/models/kimi-k2-lab",
        "For machines without the hardware: plan as ever, and serve the tiny model kimi-k2-lab "
        "from this source with vLLM's CPU build in place of it. Every output says so.",
    ),
    _define(
        _ENGINE,
        "start_timeout_s",
        "seconds",
        "auto",
        "7200",
        "Seconds until the engine has to answer. auto: by the size of the weights. The unit itself "
        "waits an hour at least.",
        auto=True,
    ),
    _define(
        _UPGRADE,
        "upgrade_min_speed",
        "share",
        None,
        "0.9",
        "Least speed of a new engine, as a share of the old one's, by the same short probe of "
        "each. Below it the machine goes back. Not set: both speeds are told, and nothing follows.",
    ),
    _define(
        _UPGRADE,
        "upgrade_in_place",
        "switch",
        _OFF,
        "true",
        "Where the disk has no room for both versions, remove what serves before the new one is "
        "fetched: nothing serves meanwhile, and there is no way back.",
    ),
    _define(
        _UPGRADE,
        "keep_versions",
        "count",
        2,
        "3",
        "Versions that stay restorable by `rollback`, the one that serves among them.",
        most=100,
    ),
    _define(
        _MONITORING,
        "drift_timer",
        "switch",
        _OFF,
        "true",
        "Have the machine compare itself once an hour with what was applied; `status` tells what "
        "came of it. `kimi-prov drift` needs no timer.",
    ),
    _define(
        _MONITORING,
        "usage_keep_days",
        "count",
        400,
        "800",
        "Days for which `kimi-prov usage` knows what each key used.",
        most=36500,
    ),
    _define(
        _MONITORING,
        "metrics",
        "switch",
        _OFF,
        "true",
        "Show metrics of engine, proxy, machine and GPUs on a port of their own, for a Prometheus.",
    ),
    _define(
        _MONITORING,
        "metrics_port",
        "port",
        9443,
        "9443",
        "TCP port of the metrics, behind the proxy, with its certificate and a key of its own.",
    ),
    _define(
        _MONITORING,
        "metrics_networks",
        "networks",
        [],
        '["10.0.9.5/32"]',
        "Networks from which metrics may be read. Empty: from the machine itself alone.",
    ),
    _define(
        _MONITORING,
        "metrics_key_file",
        "file",
        None,
        "secrets/metrics-key",
        "File on the control machine with the key that metrics ask for, in one line. Not set: the "
        "machine makes one, /etc/kimi/keys/metrics.key.",
    ),
    _define(
        _MONITORING,
        "monitor_local",
        "switch",
        _OFF,
        "true",
        "Have the machine run Prometheus and Alertmanager for itself, the head of several hosts "
        "that serve one model for all of them; hosts of the group kimi_monitor do that for all of "
        "the inventory.",
    ),
    _define(
        _MONITORING,
        "watchdog",
        "switch",
        _ON,
        "false",
        "Have the machine see that an engine hangs (requests wait, and no token comes), keep what "
        "it was at, and restart it. Its limits are options of the role watchdog.",
    ),
    _define(
        _LIFECYCLE,
        "stopped_memory",
        "choice",
        "free",
        "keep",
        "What becomes of the RAM disk while the machine is stopped or asleep. free: its memory is "
        "given back, and a start fills it again. keep: it stays, also over a reboot, and a start "
        "is quicker.",
        choices=("free", "keep"),
    ),
    _define(
        _LIFECYCLE,
        "idle_stop",
        "interval",
        None,
        "30m",
        "Time without a request after which the machine rests, as 90s, 30m or 2h. Requests under "
        "way and waiting are use; health checks, metrics, verify's own key and refused callers are "
        "not. Of hosts that serve one model together the head rests, and the others wait for it. "
        "Not set: never.",
    ),
    _define(
        _LIFECYCLE,
        "idle_action",
        "choice",
        "stop",
        "poweroff",
        "What happens then, after a drain. stop: as `kimi-prov stop`, and kimi_wake says who wakes "
        "it. poweroff: the machine is switched off; naming it is the consent. hook: kimi_idle_hook "
        "is run.",
        choices=("stop", "poweroff", "hook"),
    ),
    _define(
        _LIFECYCLE,
        "idle_hook",
        "place",
        None,
        "/usr/local/sbin/release-machine",
        "For hook: a program on the machine, run as root with JSON on its standard input.",
    ),
    _define(
        _LIFECYCLE,
        "idle_poweroff_self",
        "switch",
        _OFF,
        "true",
        "Consent to poweroff of a machine that is its own control machine.",
    ),
    _define(
        _LIFECYCLE,
        "wake",
        "choice",
        "refuse",
        "hold",
        "What a request with a valid key does to a machine that is asleep. refuse: it wakes it, "
        "and is answered 503 with Retry-After and the progress until it serves. hold: it wakes it, "
        "and is kept until it is answered or its client gives up. off: nothing.",
        choices=("refuse", "hold", "off"),
    ),
    _define(
        _GROUP,
        "hosts_per_model",
        "count",
        1,
        "2",
        "Hosts that serve one model together. Above 1 each child group of kimi with so many hosts "
        "is one such group, else all hosts of kimi are one; the first host of a group is its head, "
        "and has the API's port.",
        most=64,
    ),
    _define(
        _GROUP,
        "group_port",
        "port",
        29500,
        "29500",
        "TCP port at which the hosts of a group watch over each other. The engine takes the next "
        "one, and those from 10 to 41 after it.",
    ),
    _define(
        _GROUP,
        "group_address",
        "text",
        None,
        "10.1.0.11",
        "This host's own address on the network of the group. Not set: ansible_host where the "
        "machine has that address, else its only one.",
    ),
    _define(
        _GATEWAY,
        "gateway_address",
        "text",
        None,
        "10.0.9.10",
        "Address that the hosts of kimi_gateway share: one of them has it, and where that one is "
        "gone the other. Not set: each gateway answers at its own.",
    ),
    _define(
        _GATEWAY,
        "gateway_requests",
        "count",
        None,
        "32",
        "Requests at once that a gateway sends to this host; more wait at the gateway. Not set: "
        "twice kimi_concurrency for each instance, 8 at least.",
    ),
    _define(
        _GATEWAY,
        "serial",
        "count",
        "auto",
        "2",
        "Machines that a command changes at the same time, while the others serve; hosts that "
        "serve one model together count as one. auto: 1 where a gateway answers for the machines, "
        "all of them where each is asked by itself; update takes one at a time.",
        auto=True,
    ),
    _define(
        _SLURM,
        "slurm_root",
        "place",
        None,
        "/project/ab12/kimi",
        "Folder on the shared file system of the cluster that the engine, the weights and the keys "
        "lie in. `render slurm` needs it; the other variables of this group count for it alone.",
    ),
    _define(
        _SLURM,
        "slurm_partition",
        "slurm",
        None,
        "gpu",
        "Partition of the jobs that need GPUs. Not set: the cluster's default.",
    ),
    _define(
        _SLURM,
        "slurm_cpu_partition",
        "slurm",
        None,
        "common",
        "Partition of the jobs that need no GPU. Not set: the one of kimi_slurm_partition.",
    ),
    _define(
        _SLURM, "slurm_account", "slurm", None, "ab12", "Account that the jobs are charged to."
    ),
    _define(_SLURM, "slurm_qos", "slurm", None, "8gpu", "QOS of the jobs that need GPUs."),
    _define(
        _SLURM,
        "slurm_cpu_qos",
        "slurm",
        None,
        "2cpu-single-host",
        "QOS of the jobs that need no GPU. Not set: the one of kimi_slurm_qos.",
    ),
    _define(
        _SLURM,
        "slurm_constraint",
        "slurm",
        None,
        "h200&nvlink",
        "Features that the nodes with GPUs must have.",
    ),
    _define(
        _SLURM,
        "slurm_gres",
        "slurm",
        "auto",
        "gpu:h200:8",
        "Generic resources of each node. auto: gpu:N with the plan's N.",
        auto=True,
    ),
    _define(
        _SLURM,
        "slurm_time",
        "walltime",
        "24:00:00",
        "2-00:00:00",
        "Walltime of the server's job.",
    ),
    _define(
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
    _define(
        _SLURM,
        "slurm_requeue",
        "switch",
        _OFF,
        "true",
        "Let SLURM queue the server's job again after a preemption or the failure of a node.",
    ),
    _define(
        _SLURM,
        "slurm_idle_minutes",
        "minutes",
        0,
        "120",
        "Minutes without a request after which the server's job ends. 0: never.",
    ),
    _define(
        _SLURM,
        "slurm_modules",
        "texts",
        [],
        "[nvidia/cuda/12/12.8, python/3.11]",
        "Environment modules that every job loads.",
    ),
    _define(
        _SLURM,
        "slurm_python",
        "place",
        None,
        "/project/ab12/conda/envs/py311",
        "Python that the engine's environment is made with: a program, or the prefix of a conda "
        "environment. Not set: pythonX.Y of the version that the packages are pinned for.",
    ),
    _define(
        _SLURM,
        "slurm_login",
        "login",
        None,
        "user@login.cluster.example.com",
        "USER@HOST of the login node, to which submit, jobs, cancel and connect go by ssh. Not "
        "set: they run on the login node.",
    ),
    _define(
        _KUBERNETES,
        "kubernetes_name",
        "object",
        "kimi",
        "kimi",
        "Name of the objects of `render kubernetes`, for which alone the variables of this group "
        "count; Secrets and volumes have it before their own.",
        most=36,
    ),
    _define(
        _KUBERNETES,
        "kubernetes_namespace",
        "object",
        None,
        "kimi",
        "Namespace of the objects. Not set: the one that kubectl is set to when they are applied.",
    ),
    _define(
        _KUBERNETES,
        "kubernetes_image",
        "image",
        None,
        "registry.example.com/kimi:0.19.1",
        "The image with the engine, as the nodes pull it. `render kubernetes` needs it.",
    ),
    _define(
        _KUBERNETES,
        "kubernetes_image_pull_secret",
        "domain",
        None,
        "registry",
        "Secret by which the nodes pull the images. Not set: none.",
    ),
    _define(
        _KUBERNETES,
        "kubernetes_storage_class",
        "domain",
        None,
        "fast-nvme",
        "Storage class of the volumes. Not set: the cluster's default.",
    ),
    _define(
        _KUBERNETES,
        "kubernetes_access_mode",
        "choice",
        "auto",
        "ReadWriteMany",
        "Who mounts the volume of the weights. auto: ReadWriteOnce for one pod, ReadWriteMany for "
        "several.",
        auto=True,
        choices=("ReadWriteOnce", "ReadWriteMany"),
    ),
    _define(
        _KUBERNETES,
        "kubernetes_cache_volume",
        "switch",
        _OFF,
        "true",
        "Keep what the engine compiles in a volume of its own. Not set: it is compiled at each "
        "start. For one pod alone.",
    ),
    _define(
        _KUBERNETES,
        "kubernetes_node_selector",
        "labels",
        {},
        "{nvidia.com/gpu.product: NVIDIA-H200}",
        "Labels that the nodes must have.",
    ),
    _define(
        _KUBERNETES,
        "kubernetes_tolerations",
        "labels",
        {},
        "{dedicated: NoSchedule}",
        "Taints that the pods tolerate, whatever their value: key and effect. That of "
        "kimi_kubernetes_gpu_resource is tolerated where there are GPUs.",
    ),
    _define(
        _KUBERNETES,
        "kubernetes_runtime_class",
        "domain",
        None,
        "nvidia",
        "Runtime class by which containers get GPUs, where the cluster's default has none.",
    ),
    _define(
        _KUBERNETES,
        "kubernetes_gpu_resource",
        "resource",
        "nvidia.com/gpu",
        "nvidia.com/gpu",
        "Resource by which the cluster counts GPUs.",
    ),
    _define(
        _KUBERNETES,
        "kubernetes_rdma_resource",
        "resource",
        None,
        "rdma/hca_shared_devices_a",
        "Resource of the network cards for several nodes. Not set: the GPUs of two nodes speak "
        "over the pods' network.",
    ),
    _define(
        _KUBERNETES,
        "kubernetes_cpus",
        "count",
        "auto",
        "96",
        "Logical processors of a pod. auto: the share of the node that goes with its GPUs, less "
        "what the system of the node needs.",
        auto=True,
        most=4096,
    ),
    _define(
        _KUBERNETES,
        "kubernetes_memory_gib",
        "count",
        "auto",
        "640",
        "Memory of a pod in GiB, its /dev/shm included. auto: what the plan needs, and room for "
        "the files that are read where the node has it.",
        auto=True,
        most=1_048_576,
    ),
    _define(
        _KUBERNETES,
        "kubernetes_seccomp_profile",
        "profile",
        None,
        "profiles/numa.json",
        "Seccomp profile on the nodes that allows mbind and set_mempolicy, below the kubelet's "
        "folder of profiles: the engine then places memory on NUMA nodes. Not set: the container "
        "runtime's own, and the engine does not.",
    ),
    _define(
        _KUBERNETES,
        "kubernetes_grace_s",
        "seconds",
        300,
        "600",
        "Seconds that a pod has to end in; answers may take a minute less.",
        most=86_400,
    ),
    _define(
        _KUBERNETES,
        "kubernetes_tls",
        "switch",
        _ON,
        "true",
        "The pods speak TLS with the certificate of the Secret NAME-tls. false: the key and the "
        "chats cross the cluster's network in clear.",
    ),
    _define(
        _KUBERNETES,
        "kubernetes_hostname",
        "domain",
        None,
        "kimi.example.com",
        "Name by which clients outside the cluster reach the API; kimi_kubernetes_ingress_class or "
        "kimi_kubernetes_gateway_class says how. Not set: it is reached in the cluster alone.",
    ),
    _define(
        _KUBERNETES,
        "kubernetes_web_hostname",
        "domain",
        None,
        "chat.example.com",
        "Name of the page of kimi_web_ui. Not set: it is reached in the cluster alone.",
    ),
    _define(
        _KUBERNETES,
        "kubernetes_ingress_class",
        "domain",
        None,
        "nginx",
        "Class of the Ingress.",
    ),
    _define(
        _KUBERNETES,
        "kubernetes_gateway_class",
        "domain",
        None,
        "istio",
        "Class of the Gateway, in place of an Ingress.",
    ),
    _define(
        _KUBERNETES,
        "kubernetes_ingress_namespace",
        "object",
        None,
        "ingress-nginx",
        "Namespace of the ingress controller's, or the gateway's, pods: they may reach the API.",
    ),
    _define(
        _KUBERNETES,
        "kubernetes_monitoring_namespace",
        "object",
        None,
        "monitoring",
        "Namespace of a Prometheus with its operator: ServiceMonitor, rules and dashboard are "
        "rendered, and its pods may read the metrics. Not set: none.",
    ),
    _define(
        _KUBERNETES,
        "kubernetes_stop_schedule",
        "schedule",
        None,
        "0 20 * * 1-5",
        "When the model is stopped, as cron has it: its GPUs are free then. Not set: never.",
    ),
    _define(
        _KUBERNETES,
        "kubernetes_start_schedule",
        "schedule",
        None,
        "0 7 * * 1-5",
        "When the model is started again, as cron has it. Not set: by hand.",
    ),
    _define(
        _KUBERNETES,
        "kubernetes_time_zone",
        "text",
        "Etc/UTC",
        "Europe/Vienna",
        "Time zone of the two schedules.",
    ),
    _define(
        _KUBERNETES,
        "kubernetes_kubectl_image",
        "image",
        "registry.k8s.io/kubectl:v1.34.1",
        "registry.example.com/kubectl:v1.34.1",
        "Image with kubectl, which the two schedules run.",
    ),
    _define(
        _KUBERNETES,
        "kubernetes_web_image",
        "image",
        None,
        "registry.example.com/open-webui:0.12.4-slim",
        "Image of the page of kimi_web_ui. Not set: Open WebUI's own of the version in the "
        "catalogue.",
    ),
    _define(
        _CLOUD,
        "cloud",
        "choice",
        "gcp",
        "aws",
        "Whose machine `render cloud-init` and `render skypilot` are for.",
        choices=("gcp", "aws"),
    ),
    _define(
        _CLOUD,
        "cloud_regions",
        "texts",
        [],
        "[us-central1, europe-west4]",
        "Regions to try, in their order; on gcp zones for `render cloud-init`. Empty: SkyPilot "
        "chooses, and `render cloud-init` writes no launch.sh.",
    ),
    _define(
        _CLOUD,
        "cloud_machines",
        "texts",
        [],
        "[a3-highgpu-8g, a3-ultragpu-8g]",
        "Kinds of machines to try, in their order, by the cloud's names (kimi-prov catalog "
        "clouds). Empty: those of the catalogue that serve the model, the cheapest first.",
    ),
    _define(
        _CLOUD,
        "cloud_terms",
        "choice",
        "spot-first",
        "spot",
        "spot-first: spot in all regions, then on demand.",
        choices=("spot-first", "spot", "on-demand"),
    ),
    _define(
        _CLOUD,
        "cloud_image",
        "text",
        None,
        "projects/debian-cloud/global/images/family/debian-12",
        "Image of the machine: Debian 12 or 13. Not set: Debian 12 on gcp, and to be named on aws.",
    ),
    _define(
        _CLOUD,
        "cloud_package",
        "text",
        None,
        "https://files.example.com/kimi_prov-1.0-py3-none-any.whl",
        "What pip installs as kimi-prov on the machine. Not set: kimi-prov at this version.",
    ),
    _define(
        _CLOUD,
        "cloud_give_up",
        "interval",
        7200,
        "3h",
        "Time after which a machine that does not serve yet gives itself back.",
    ),
    _define(
        _CLOUD,
        "hour_usd",
        "dollars",
        None,
        "26",
        "What an hour of the machine costs, US dollars. With kimi_idle_stop `status` and the end "
        "of a session tell what it cost, starts and idling apart.",
    ),
    _define(
        _CLOUD,
        "budget_usd",
        "dollars",
        None,
        "60",
        "What a session may cost, from a boot to the machine's end: at four fifths of it the "
        "journal and `status` warn, at all of it the machine does what kimi_idle_action says.",
    ),
    _define(
        _DRIVER,
        "nvidia_driver_version",
        "text",
        "auto",
        "580.159.04",
        "Version of the driver, without the package's own revision. auto: the present one where it "
        "is new enough, else the one that the catalogue pins.",
        auto=True,
    ),
    _define(
        _DRIVER,
        "nvidia_repo_url",
        "url",
        None,
        "https://nvidia.example.com/cuda/repos/debian12/x86_64",
        "A mirror of NVIDIA's repository for the machine's distribution. Not set: NVIDIA's own.",
    ),
    _define(
        _DRIVER,
        "nvidia_repo_key_url",
        "url",
        None,
        "https://nvidia.example.com/key.asc",
        "The key that signs it. Not set: the file of NVIDIA's name in the repository.",
    ),
    _define(
        _DRIVER,
        "nvidia_repo_key_fingerprint",
        "fingerprint",
        None,
        "EB693B3035CD5710E231E123A4B469963BF863CC",
        "The key is taken only if this is its fingerprint. Not set: that of NVIDIA's key.",
    ),
    _define(
        _SITE,
        "ca_bundle",
        "file",
        None,
        "/etc/ssl/certs/ca-certificates.crt",
        "PEM file on the control machine; pip, uv, the hub client and the download trust it.",
    ),
    _define(
        _SITE, "pip_index_url", "url", None, "https://pypi.example.com/simple", "Package index."
    ),
    _define(
        _SITE,
        "pip_extra_index_urls",
        "urls",
        [],
        "[https://more.example.com/simple]",
        "Further package indexes.",
    ),
    _define(
        _SITE,
        "pip_find_links",
        "links",
        None,
        "/srv/wheels",
        "A URL, or a directory on the control machine from which the wheels that the lock names "
        "are copied.",
    ),
    _define(
        _SITE,
        "python_mirror",
        "links",
        None,
        "https://python.example.com/python-build-standalone",
        "Where CPython comes from for a machine whose own Python has no lock: a URL in place of "
        "python-build-standalone's releases, or a directory on the control machine from which the "
        "archive is copied.",
    ),
    _define(
        _SITE,
        "torch_index_url",
        "url",
        None,
        "https://download.pytorch.org/whl/cpu",
        "Index for builds of torch that the package index lacks.",
    ),
    _define(
        _SITE,
        "apt_mirror",
        "url",
        None,
        "https://debian.example.com/debian",
        "Debian mirror that the machine's packages come from.",
    ),
    _define(
        _SITE,
        "http_proxy",
        "proxy",
        None,
        "http://proxy.example.com:3128",
        "Proxy for http addresses: apt, pip, uv, the hub client and the download use it, and "
        "nothing else. A user and a password in it go to the machine in a file that root alone "
        "reads.",
    ),
    _define(
        _SITE,
        "https_proxy",
        "proxy",
        None,
        "http://proxy.example.com:3128",
        "Proxy for https addresses, as kimi_http_proxy.",
    ),
    _define(
        _SITE,
        "no_proxy",
        "texts",
        [],
        "[mirror.example.com, .corp.example.com]",
        "Hosts and domains that are asked without the proxy. The machine itself always is.",
    ),
)

BY_NAME = {variable.name: variable for variable in VARIABLES}

# The lengths of a typical request, of the load that `check` is asked for: they change estimates.
LENGTH_VARIABLES = ("kimi_input_tokens", "kimi_output_tokens")
# Set by the product itself while a playbook runs; nobody writes them in an inventory.
_KEY_VARIABLES = ("kimi_key_rotate", "kimi_key_list", "kimi_key_remove")
INTERNAL = frozenset(
    {
        "kimi_plan",
        "kimi_facts",
        "kimi_shared_settings",
        "kimi_batch",
        *_KEY_VARIABLES,
        *LENGTH_VARIABLES,
    }
)
