"""The web UI: its version, ports, environment and variables.

Decides: the web UI: its ports and variables.
Applied by: roles/web_ui, roles/proxy, roles/firewall.
Held by: tests/unit/planner/test_web.py, tests/component/on_host/web/test_page.py,
  tests/component/on_host/endpoint/test_web_frontend.py, tests/lab/test_web_ui.py,
  tests/lab/test_web_answers.py.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, NamedTuple

from kimi_prov.catalog.currency import format_dated_source
from kimi_prov.contract import paths, unit_names
from kimi_prov.contract.sizes import format_bytes
from kimi_prov.planner.selection import engine
from kimi_prov.planner.service import certificates

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kimi_prov.catalog.loader import Catalogue
    from kimi_prov.catalog.models import Model
    from kimi_prov.catalog.pythons import Interpreter
    from kimi_prov.catalog.web import WebUi
    from kimi_prov.contract.documents.plan.service import WebUiPlan
    from kimi_prov.facts.host import Python
    from kimi_prov.planner.findings import Findings
    from kimi_prov.planner.settings.parsing import Settings

_MIB = 1 << 20
# The largest request, in bytes: the upload of a file to a chat.
_UPLOAD_BYTES = 100 * _MIB
# With the most connections, the proxy's buffers take 512 MiB; the rest is for the system.
_GATEWAY_BYTES = 1024 * _MIB


# What the web UI may do; its own settings cannot change it.
_SWITCHES = {
    # The variables count, not the values that an earlier start wrote into the database.
    "ENABLE_PERSISTENT_CONFIG": False,
    # Slim: otherwise the web UI would import torch.
    "USE_SLIM_DOCKER": True,
    "OFFLINE_MODE": True,
    "HF_HUB_OFFLINE": True,
    "ENABLE_VERSION_UPDATE_CHECK": False,
    "ENABLE_OLLAMA_API": False,
    "ENABLE_OPENAI_API": True,
    # Each account may use the model that is served.
    "BYPASS_MODEL_ACCESS_CONTROL": True,
    # Whole documents go into the prompt, because there is no model for embeddings.
    "BYPASS_EMBEDDING_AND_RETRIEVAL": True,
    # No account sees the chats of another, and no administrator does.
    "ENABLE_ADMIN_CHAT_ACCESS": False,
    "ENABLE_ADMIN_EXPORT": False,
    # An administrator's code would run in the web UI's process.
    "ENABLE_PLUGINS": False,
    "ENABLE_PIP_INSTALL_FRONTMATTER_REQUIREMENTS": False,
    "ENABLE_CODE_INTERPRETER": False,
    "ENABLE_CODE_EXECUTION": False,
    # These features would connect to other services, or run by themselves.
    "ENABLE_COMMUNITY_SHARING": False,
    "ENABLE_DIRECT_CONNECTIONS": False,
    "ENABLE_WEB_SEARCH": False,
    "ENABLE_IMAGE_GENERATION": False,
    "ENABLE_EVALUATION_ARENA_MODELS": False,
    "ENABLE_AUTOMATIONS": False,
    # Each of these would send one more request to the model: after a chat's first answer, ...
    "ENABLE_TITLE_GENERATION": False,
    "ENABLE_TAGS_GENERATION": False,
    "ENABLE_FOLLOW_UP_GENERATION": False,
    # ... and before each question about a document.
    "ENABLE_RETRIEVAL_QUERY_GENERATION": False,
    "ENABLE_SEARCH_QUERY_GENERATION": False,
    "WEBUI_SESSION_COOKIE_SECURE": True,
    "WEBUI_AUTH_COOKIE_SECURE": True,
    "USER_PERMISSIONS_CHAT_WEB_UPLOAD": False,
}

# What the model may use. The web UI's own tools would add 21 KB to each request: too long for a
# small context, and the first answer on a CPU would begin half a minute later.
_CAPABILITIES = {
    "builtin_tools": False,
    "web_search": False,
    "image_generation": False,
    "code_interpreter": False,
}
# The web UI shows the notes of its own release to an administrator after each upgrade.
_INTERFACE = {"showChangelog": False}
# Questions that a new chat offers: a title in two lines, and what is asked.
_SUGGESTIONS = (
    ("Explain an error", "and what to try next", "Explain this error and what to try next:\n\n"),
    ("Write a function", "with its tests", "Write a function with its tests. It should "),
    ("Summarise a text", "in five sentences", "Summarise this text in five sentences:\n\n"),
)
_IMAGE_SUGGESTION = (
    "Describe an image",
    "that I attach",
    "Describe what the attached image shows.",
)


class Runtime(NamedTuple):
    """What a web UI runs on: the interpreter, its build if it is bundled, the architecture."""

    python: Python
    build: Interpreter | None
    arch: str | None


def choose_ports(settings: Settings, instances: int) -> tuple[int, int]:
    """Return the loopback ports of the web UI and of the proxy that it sends requests to.

    They are the next ports after the engines' that nothing else uses.
    """
    taken = {settings.port, settings.web_port, settings.metrics_port, settings.group_port}
    taken |= {*certificates.list_ports(settings, instances)}
    first = certificates.choose_first_port(settings) + instances
    free = [port for port in range(first, first + 5) if port not in taken]
    return free[0], free[1]


def make_document(
    settings: Settings,
    catalogue: Catalogue,
    model: Model,
    runtime: Runtime,
    served_names: Sequence[str],
    instances: int,
    findings: Findings,
) -> WebUiPlan | None:
    """Make the plan's `web`, None where the inventory asks for no web UI. Sizes are in bytes."""
    if not settings.web_ui:
        return None
    page, python, build = catalogue.web[-1], runtime.python, runtime.build
    lock = page.lock_name(python.version)
    _check_install(page, runtime, findings, locked=lock in catalogue.locks)
    backend_port, api_port = choose_ports(settings, instances)
    mark = engine.compute_env_digest(catalogue, [lock], build.sha256 if build else None)
    env_name = f"{page.version}-{mark}"
    sees = bool(model.architecture.vision_params)
    return {
        "name": page.name,
        "version": page.version,
        "lock": lock,
        "python": python.path,
        "env_name": env_name,
        "env_dir": f"{paths.WEB_ENVS}/{env_name}",
        "port": settings.web_port,
        "backend_port": backend_port,
        "api_port": api_port,
        "data": paths.WEB,
        "unit": unit_names.WEB,
        "user": paths.WEB_USER,
        "key_name": paths.WEB_KEY_NAME,
        "signup": settings.web_signup,
        "sees_images": sees,
        "upload_max_bytes": _UPLOAD_BYTES,
        "install_bytes": page.install_peak_bytes,
        "environment": _make_environment(settings, served_names, api_port, sees=sees),
    }


def check_port(
    settings: Settings, instances: int, findings: Findings, others: Sequence[int] = ()
) -> None:
    """Report a web UI's port that is already in use; `others`: other ports of gateways."""
    if not settings.web_ui:
        return
    first = certificates.choose_first_port(settings)
    engines = range(first, first + instances)
    ordering = certificates.list_ports(settings, instances)
    if settings.web_port in {settings.port, *engines, *ordering, *others}:
        findings.add(
            "web.port",
            observed=f"kimi_web_port {settings.web_port}; the API has {settings.port}"
            + (f", its engines {', '.join(map(str, engines))}" if engines else "")
            + "".join(f", the order of a certificate {port}" for port in ordering)
            + "".join(f", the other gateway {port}" for port in others),
            required="a port of its own",
            fix="set kimi_web_port to another port",
        )


def check_memory(have: int, page: WebUi, findings: Findings) -> None:
    """Report too little memory for a web UI on a gateway; `have`: total bytes, 0 if unknown."""
    need = page.memory_bytes + _GATEWAY_BYTES
    if have and have < need:
        findings.add(
            "web.memory",
            observed=f"{format_bytes(have)} of memory",
            required=f"{format_bytes(need)}: {format_bytes(page.memory_bytes)} when {page.name} "
            f"has started, and {format_bytes(_GATEWAY_BYTES)} for the proxy and the system",
            fix="give the first gateway more memory, or remove kimi_web_ui from the inventory",
        )


def _check_install(page: WebUi, runtime: Runtime, findings: Findings, *, locked: bool) -> None:
    arch = runtime.arch
    foreign = arch is not None and arch not in page.arch
    if not locked or foreign:
        findings.add(
            "web.lock",
            names={"version": page.version},
            observed=f"Python {runtime.python.version}" + (f", {arch}" if foreign else ""),
            required=f"Python {' or '.join(page.python)}"
            + (f", {' or '.join(page.arch)}" if foreign else ""),
            fix="remove kimi_web_ui from the inventory, or add a lock to a catalogue of your own",
        )
    findings.add(
        "web.licence",
        observed=f"{page.name} {page.version}: {page.licence}",
        required="it is installed as it is, under its own name",
        source=format_dated_source(page),
    )


def _make_environment(
    settings: Settings, served_names: Sequence[str], api_port: int, *, sees: bool
) -> dict[str, str]:
    """Return the web UI's variables without secrets; its own settings cannot change them."""
    switches = {"ENABLE_SIGNUP": settings.web_signup, **_SWITCHES}
    model = {"capabilities": {**_CAPABILITIES, "vision": sees}}
    rows = [*_SUGGESTIONS, *([_IMAGE_SUGGESTION] if sees else [])]
    suggestions = [{"title": [first, second], "content": text} for first, second, text in rows]
    # The models are named here so that the web UI lists them while the engine is down.
    connection = {"0": {"model_ids": list(served_names), "connection_type": "local"}}
    return {
        "DATA_DIR": paths.WEB,
        "STATIC_DIR": "/run/kimi-web/static",
        "HOME": paths.WEB,
        "ENV": "prod",
        "PYTHONDONTWRITEBYTECODE": "1",
        "DEFAULT_USER_ROLE": "pending",
        "DEFAULT_MODELS": served_names[0],
        "DEFAULT_MODEL_METADATA": json.dumps(model, sort_keys=True),
        "DEFAULT_INTERFACE_SETTINGS": json.dumps(_INTERFACE),
        "DEFAULT_PROMPT_SUGGESTIONS": json.dumps(suggestions),
        "FORWARDED_ALLOW_IPS": "127.0.0.1",
        "OPENAI_API_BASE_URL": f"http://127.0.0.1:{api_port}/v1",
        "OPENAI_API_CONFIGS": json.dumps(connection, sort_keys=True),
        "RAG_FILE_MAX_SIZE": str(_UPLOAD_BYTES // _MIB),
        # An answer that a client has seen is still there after a power cut.
        "DATABASE_SQLITE_PRAGMA_SYNCHRONOUS": "FULL",
        "GLOBAL_LOG_LEVEL": "WARNING",
        **{name: str(value).lower() for name, value in switches.items()},
    }
