import pytest

from kimi_prov.lab.settings import (
    AptSettings,
    find_resolvers,
    make_product_variables,
    parse_apt_options,
    parse_pip_config,
)
from kimi_prov.packaging.apt_sources import find_archives

DEB822 = """\
Types: deb
URIs: http://mirror.site/debian/
Suites: bookworm
Components: main

Types: deb
URIs: http://mirror.site/debian-security
Suites: bookworm-security
"""


def test_nothing_set_means_no_variables():
    assert make_product_variables({}, {}, AptSettings()) == {}


def test_pips_configuration_reaches_the_hosts(tmp_path):
    bundle = tmp_path / "ca.pem"
    bundle.write_text("x")
    listing = (
        "global.index-url='https://index.site/simple'\n"
        f"global.cert='{bundle}'\n"
        "global.extra-index-url='file:///opt/simple https://more.site/simple'\n"
        "install.find-links='/srv/wheels'\n"
        "global.timeout='60'\n"
    )
    assert make_product_variables({}, parse_pip_config(listing), AptSettings()) == {
        "kimi_pip_index_url": "https://index.site/simple",
        "kimi_pip_extra_index_urls": ["https://more.site/simple"],
        "kimi_pip_find_links": "/srv/wheels",
        "kimi_ca_bundle": str(bundle),
    }


def test_the_environment_wins_over_the_configuration_file():
    config = {"index-url": "https://file.site/simple"}
    environment = {"PIP_INDEX_URL": "https://env.site/simple", "PIP_FIND_LINKS": "file:///w"}
    assert make_product_variables(environment, config, AptSettings()) == {
        "kimi_pip_index_url": "https://env.site/simple",
        "kimi_pip_find_links": "/w",
    }


def test_addresses_on_the_control_machines_own_disk_are_left_out():
    config = {"index-url": "file:///opt/simple", "extra-index-url": "file:///a file:///b"}
    assert make_product_variables({}, config, AptSettings()) == {}


@pytest.mark.parametrize("variable", ["SSL_CERT_FILE", "PIP_CERT", "REQUESTS_CA_BUNDLE"])
def test_each_way_to_name_a_ca_bundle_is_seen(tmp_path, variable):
    bundle = tmp_path / "ca.pem"
    bundle.write_text("x")
    found = make_product_variables({variable: str(bundle)}, {}, AptSettings())
    assert found == {"kimi_ca_bundle": str(bundle)}


def test_a_ca_bundle_that_is_not_there_is_not_handed_on(tmp_path):
    assert make_product_variables({"SSL_CERT_FILE": str(tmp_path / "x")}, {}, AptSettings()) == {}


def test_an_archive_over_tls_is_handed_on_and_others_are_in_the_image_already():
    mirror = AptSettings(mirror="https://mirror.site/debian")
    assert make_product_variables({}, {}, mirror) == {
        "kimi_apt_mirror": "https://mirror.site/debian"
    }
    assert make_product_variables({}, {}, AptSettings(mirror="http://mirror.site/debian")) == {}


def test_debian_archives_are_found_among_others_in_either_form():
    others = "deb [signed-by=/k.gpg] https://packages.site/apt stable main\n"
    assert find_archives([others, DEB822], "debian") == (
        "http://mirror.site/debian",
        "http://mirror.site/debian-security",
    )
    old = "# deb http://commented.site/debian x main\ndeb http://old.site/debian bookworm main\n"
    assert find_archives([old], "debian")[0] == "http://old.site/debian"
    assert find_archives([old], "debian")[1] is None
    assert find_archives([others], "debian") == (None, None)


def test_only_options_that_decide_over_access_are_taken():
    dump = (
        'Acquire::Check-Valid-Until "false";\n'
        'Acquire::http::Proxy "http://proxy.site:3128";\n'
        'Acquire::https::Proxy "";\n'
        'APT::NeverAutoRemove:: "^linux";\n'
    )
    assert parse_apt_options(dump) == (
        'Acquire::Check-Valid-Until "false"',
        'Acquire::http::Proxy "http://proxy.site:3128"',
    )


def test_a_local_stub_resolver_is_no_use_to_a_host():
    stub = "nameserver 127.0.0.53\noptions edns0\n"
    behind = "nameserver 192.0.2.53\nnameserver ::1\n"
    assert find_resolvers([stub, behind]) == ["192.0.2.53"]
    assert find_resolvers([stub]) == []
