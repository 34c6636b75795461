"""Variables of an inventory: the NVIDIA driver, mirrors and proxies of a site."""

from __future__ import annotations

from kimi_prov.planner.settings.definitions.variable import Variable, define

_DRIVER = "NVIDIA driver"
_SITE = "Sites behind a mirror"

VARIABLES: tuple[Variable, ...] = (
    define(
        _SITE,
        "bundle",
        "folder",
        None,
        "/srv/offline-bundle",
        "Folder on the control machine that `kimi-prov bundle` made: wheels, CPython and packages "
        "come from it, and the machine asks no network. It replaces the site's mirrors.",
    ),
    define(
        _SITE,
        "bundle_key",
        "fingerprint",
        None,
        "EB693B3035CD5710E231E123A4B469963BF863CC",
        "Fingerprint of the key that signed the offline bundle; another one is refused.",
    ),
    define(
        _DRIVER,
        "nvidia_driver_version",
        "text",
        "auto",
        "580.159.04",
        "Version of the driver, without the package's own revision. auto: the present one if it "
        "is new enough, else the one that the catalogue pins.",
        auto=True,
    ),
    define(
        _DRIVER,
        "nvidia_repo_url",
        "url",
        None,
        "https://nvidia.example.com/cuda/repos/debian12/x86_64",
        "A mirror of NVIDIA's repository for the machine's distribution. Not set: NVIDIA's own.",
    ),
    define(
        _DRIVER,
        "nvidia_repo_key_url",
        "url",
        None,
        "https://nvidia.example.com/key.asc",
        "The key that signs the repository. Not set: NVIDIA's file in the repository.",
    ),
    define(
        _DRIVER,
        "nvidia_repo_key_fingerprint",
        "fingerprint",
        None,
        "EB693B3035CD5710E231E123A4B469963BF863CC",
        "The key is accepted only with this fingerprint. Not set: that of NVIDIA's key.",
    ),
    define(
        _SITE,
        "ca_bundle",
        "file",
        None,
        "/etc/ssl/certs/ca-certificates.crt",
        "PEM file on the control machine; pip, uv, the hub client and the download trust it.",
    ),
    define(
        _SITE, "pip_index_url", "url", None, "https://pypi.example.com/simple", "Package index."
    ),
    define(
        _SITE,
        "pip_extra_index_urls",
        "urls",
        [],
        "[https://more.example.com/simple]",
        "Further package indexes.",
    ),
    define(
        _SITE,
        "pip_find_links",
        "links",
        None,
        "/srv/wheels",
        "A URL, or a directory on the control machine from which the wheels that the lock names "
        "are copied.",
    ),
    define(
        _SITE,
        "python_mirror",
        "links",
        None,
        "https://python.example.com/python-build-standalone",
        "Source of CPython for a machine whose own Python has no lock: a URL that replaces "
        "python-build-standalone's releases, or a directory on the control machine from which the "
        "archive is copied.",
    ),
    define(
        _SITE,
        "torch_index_url",
        "url",
        None,
        "https://download.pytorch.org/whl/cpu",
        "Index for builds of torch that the package index lacks.",
    ),
    define(
        _SITE,
        "apt_mirror",
        "url",
        None,
        "https://debian.example.com/debian",
        "Debian mirror of the machine's packages.",
    ),
    define(
        _SITE,
        "http_proxy",
        "proxy",
        None,
        "http://proxy.example.com:3128",
        "Proxy for http addresses: apt, pip, uv, the hub client and the download use it, and "
        "nothing else. A user and a password in it are stored on the machine in a file that only "
        "root reads.",
        hides="login",
    ),
    define(
        _SITE,
        "https_proxy",
        "proxy",
        None,
        "http://proxy.example.com:3128",
        "Proxy for https addresses, as kimi_http_proxy.",
        hides="login",
    ),
    define(
        _SITE,
        "no_proxy",
        "texts",
        [],
        "[mirror.example.com, .corp.example.com]",
        "Hosts and domains that are reached without the proxy, as the machine itself always is.",
    ),
)
