"""Variables of an inventory: what is served, from which weights, and in which memory."""

from __future__ import annotations

from kimi_prov.planner.settings.definitions.variable import OFF, Variable, define

_MODEL = "What is served"
_WEIGHTS = "Weights"
_MEMORY = "Memory"

VARIABLES: tuple[Variable, ...] = (
    define(
        _MODEL,
        "model",
        "model",
        None,
        "kimi-k2.5",
        "The model, by its repository's name in lower case. The only variable without a default.",
    ),
    define(
        _MODEL,
        "context",
        "count",
        "auto",
        "32768",
        "Tokens of one conversation, question and answer together. auto: what the model allows "
        "and memory holds.",
        auto=True,
    ),
    define(_MODEL, "concurrency", "count", 16, "16", "Requests served at the same time."),
    define(
        _MODEL,
        "optimise",
        "choice",
        "balanced",
        "throughput",
        "By which speed the layout on GPUs is chosen. latency: that of one request alone; "
        "throughput: that of all kimi_concurrency requests together; balanced: both, so that as "
        "many per cent of one count as much as of the other. With kimi_context: auto the context "
        "is what this layout's cache holds, at least 32768 tokens if any layout holds so many.",
        choices=("latency", "throughput", "balanced"),
    ),
    define(
        _MODEL,
        "choose_anew",
        "switch",
        OFF,
        "true",
        "On a machine that serves the model: choose the engine's version, the layout on GPUs and "
        "the cache's format again, as for a new machine. false: they stay as they are where the "
        "inventory leaves them to the planner and they still hold the context; `plan` shows what "
        "another choice would bring.",
    ),
    define(
        _MODEL,
        "served_names",
        "texts",
        [],
        "[kimi, kimi-k2.5]",
        "Names by which clients may ask for the model. Empty: the model's own name.",
    ),
    define(
        _WEIGHTS,
        "weights_source",
        "source",
        None,
        "hf://moonshotai/Kimi-K2.5@COMMIT",
        "file:///DIRECTORY on the machine itself, an http(s) URL of a directory, "
        "hf://REPOSITORY@REVISION, or a folder of a bucket: s3://BUCKET/FOLDER, "
        "gs://BUCKET/FOLDER. Not set: the model's own repository.",
    ),
    define(
        _WEIGHTS,
        "weights_manifest",
        "file",
        None,
        "manifests/kimi-k2.5.json",
        "File on the control machine that pins size and SHA-256 of each file. Not set: the "
        "source's own kimi-manifest.json, or the hub's digests.",
    ),
    define(
        _WEIGHTS,
        "weights_format",
        "choice",
        "auto",
        "int4",
        "Number format of the routed experts. auto: that of the repository that is named, else the "
        "model's native one.",
        auto=True,
        choices=("int4", "nvfp4", "mxfp4", "fp8", "bf16"),
    ),
    define(
        _WEIGHTS,
        "kt_method",
        "choice",
        "auto",
        "AMXINT4",
        "Format of the experts in kt-kernel, for KTransformers. auto: as in the files (int4, "
        "fp8, bf16), without loss. AMXINT4 and AMXINT8 quantise once more, with loss; AMXINT4 "
        "takes half of fp8's memory.",
        auto=True,
        choices=("AMXINT4", "AMXINT8"),
    ),
    define(
        _WEIGHTS,
        "kt_weights_source",
        "source",
        None,
        "file:///srv/kimi-k2-amxint4",
        "Source of experts that were converted for kimi_kt_method elsewhere, for as many "
        "thread pools as in the plan. Not set: the machine converts them, from bf16 or fp8 "
        "weights.",
    ),
    define(
        _WEIGHTS,
        "kt_weights_manifest",
        "file",
        None,
        "manifests/kimi-k2-amxint4.json",
        "File on the control machine that pins the converted experts, as kimi_weights_manifest "
        "does.",
    ),
    define(
        _WEIGHTS,
        "draft_weights_source",
        "source",
        None,
        "file:///srv/kimi-k2.5-eagle3-mla",
        "Source of the draft's weights. Not set: the draft's own repository.",
    ),
    define(
        _WEIGHTS,
        "draft_weights_manifest",
        "file",
        None,
        "manifests/kimi-k2.5-eagle3-mla.json",
        "File on the control machine that pins the draft's files, as kimi_weights_manifest does.",
    ),
    define(
        _WEIGHTS,
        "weights_from",
        "choice",
        "auto",
        "source",
        "From where this host fetches the files. auto and neighbours: of hosts of the inventory "
        "with the same model and the same source on the network, the first asks the source, each "
        "other one a host before it, or the source if that one fails. source: only the source; "
        "this host gives no files to neighbours either.",
        choices=("auto", "source", "neighbours"),
    ),
    define(
        _WEIGHTS,
        "weights_port",
        "port",
        29600,
        "29600",
        "TCP port at which a host gives weights to its neighbours while they fetch.",
    ),
    define(_WEIGHTS, "weights_workers", "count", 4, "8", "Files fetched and verified in parallel."),
    define(
        _WEIGHTS,
        "hf_endpoint",
        "url",
        None,
        "https://hub.example.com",
        "A hub that speaks Hugging Face's protocol, in place of huggingface.co. With "
        "kimi_hf_token_file, only https, or the machine itself.",
    ),
    define(
        _WEIGHTS,
        "hf_token_file",
        "file",
        None,
        "~/.cache/huggingface/token",
        "File on the control machine that holds the hub's token. It is copied, never logged.",
        hides="file",
    ),
    define(
        _WEIGHTS,
        "bucket_credentials_file",
        "file",
        None,
        "~/.aws/credentials",
        "File on the control machine that holds the credentials of s3:// (the profile default of "
        "an AWS credentials file) or of gs:// (a service account's JSON). It is copied, never "
        "logged. Not set: the machine's own role.",
        hides="file",
    ),
    define(
        _WEIGHTS,
        "bucket_endpoint",
        "url",
        None,
        "https://objects.example.com",
        "Another server with S3's or Google's protocol: only https, or the machine itself.",
    ),
    define(
        _WEIGHTS,
        "bucket_region",
        "text",
        None,
        "eu-central-1",
        "Region of an s3:// bucket. Not set: the region in AWS's answer.",
    ),
    define(
        _MEMORY,
        "ram_disk",
        "choice",
        "auto",
        "never",
        "Keep a verified copy of the weights in memory. auto: if memory holds it beside the "
        "engine. always: also where the planner would not, unless it does not fit at all.",
        choices=("auto", "always", "never"),
    ),
    define(
        _MEMORY,
        "instances",
        "count",
        "auto",
        "2",
        "Engines side by side behind one port: each on GPUs of its own, or without GPU bound to a "
        "NUMA node of its own. auto: on GPUs as kimi_optimise chooses; else one a node if every "
        "node holds a whole engine and there are enough requests for all, or one.",
        auto=True,
    ),
    define(
        _MEMORY,
        "kv_dtype",
        "choice",
        "auto",
        "fp8",
        "Number format of the cache on GPUs. auto: bf16, or fp8 if only that holds the context.",
        auto=True,
        choices=("bf16", "fp8"),
    ),
)
