"""Of a vendor's key file apt gets the pinned key alone, whatever else the file holds."""

from __future__ import annotations

import base64
import functools
import http.server
import io
import json
import subprocess
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from own_apt import OwnApt

from kimi_prov.contract.errors import HostError
from kimi_prov.on_host.__main__ import main
from kimi_prov.on_host.driver import steps

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    Capture = pytest.CaptureFixture[str]
    Install = Callable[..., dict[str, Any]]

# One moment for all: a key's fingerprint covers when it was made.
BORN = "20260101T000000!"
_BEGIN = b"-----BEGIN PGP PUBLIC KEY BLOCK-----"


@dataclass
class Maker:
    """A keyring of gpg's own, in which the tests' keys are made."""

    home: Path

    def gpg(self, *words: str) -> bytes:
        base = ["gpg", "--homedir", str(self.home), "--batch", "--quiet"]
        command = [*base, "--pinentry-mode", "loopback", "--passphrase", "", *words]
        return subprocess.run(command, check=True, capture_output=True).stdout

    def fingerprint(self, name: str) -> str:
        listed = self.gpg("--with-colons", "--list-keys", name).decode().splitlines()
        return next(line.split(":")[9] for line in listed if line.startswith("fpr"))

    def armoured(self, *names: str) -> bytes:
        return self.gpg("--armor", "--export", *names)

    def repository(self, folder: Path, signer: str) -> Path:
        """A flat repository that `signer` signed, without packages."""
        folder.mkdir()
        (folder / "Packages").write_text("")
        (folder / "Release").write_text(
            "Origin: test\nLabel: test\nArchitectures: amd64\nSHA256:\n"
            " e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855 0 Packages\n"
        )
        signed = ["--local-user", signer, "--clearsign", "-o", str(folder / "InRelease")]
        self.gpg(*signed, str(folder / "Release"))
        return folder


@pytest.fixture(scope="module")
def maker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Maker]:
    """Keys of a vendor, an attacker and a bystander."""
    home = tmp_path_factory.mktemp("keys")
    home.chmod(0o700)
    made = Maker(home)
    for name in ("vendor", "evil", "other"):
        made.gpg("--faked-system-time", BORN, "--quick-gen-key", name, "ed25519", "sign", "never")
    yield made
    subprocess.run(["gpgconf", "--homedir", str(home), "--kill", "all"], check=False)


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Path, str]]:
    """A folder and the address at which a server gives its files."""
    folder = tmp_path_factory.mktemp("served")

    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            """Say nothing."""

    handler = functools.partial(Quiet, directory=str(folder))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield folder, f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.fixture
def install(
    maker: Maker,
    served: tuple[Path, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: Capture,
) -> Install:
    """Let the command install the key from a file of this content; returns its answer."""

    def ask(content: bytes, *more: str, pin: str = "vendor") -> dict[str, Any]:
        folder, url = served
        (folder / "key.pub").write_bytes(content)
        fingerprint = maker.fingerprint(pin)
        question = {
            "repository": {"url": url, "key_url": f"{url}/key.pub", "fingerprint": fingerprint}
        }
        monkeypatch.setattr(steps, "KEYRING", str(tmp_path / "keyrings" / "kimi-nvidia"))
        monkeypatch.setattr("sys.stdin", io.StringIO(json.dumps(question)))
        main(["driver", "key", *more])
        return dict(json.loads(capsys.readouterr().out))

    return ask


def update(repository: Path, keyring: str, work: Path) -> subprocess.CompletedProcess[str]:
    """Let apt read the repository, with a state and sources of its own."""
    source = f"deb [signed-by={keyring}] file:{repository} ./\n"
    return OwnApt(work, source).run("apt-get", "update")


def with_the_vendors_key_below(maker: Maker) -> bytes:
    """The attacker's key, with the vendor's bound to it as if it were one of its subkeys."""
    listed = maker.gpg("--with-colons", "--with-keygrip", "--list-keys", "vendor").decode()
    grip = next(line.split(":")[9] for line in listed.splitlines() if line.startswith("grp"))
    existing = "13"
    command = ["gpg", "--homedir", str(maker.home), "--quiet", "--expert", "--no-tty"]
    command += ["--faked-system-time", BORN, "--pinentry-mode", "loopback", "--passphrase", ""]
    typed = "\n".join(["addkey", existing, grip, "q", "0", "save", ""])
    command += ["--command-fd", "0", "--edit-key", "evil"]
    subprocess.run(command, input=typed.encode(), check=True, capture_output=True)
    exported = maker.gpg("--export", "evil")
    shown = maker.gpg("--with-colons", "--with-subkey-fingerprint", "--list-keys", "evil").decode()
    assert f":{maker.fingerprint('vendor')}:" in shown
    return exported


def attacks(maker: Maker) -> dict[str, bytes]:
    """Files that hold the vendor's key, and the attacker's so that a reader may overlook it."""
    evil, vendor = maker.armoured("evil"), maker.armoured("vendor")
    hidden = evil.replace(b"PGP PUBLIC", b"PGP  PUBLIC")
    spaced = evil.replace(_BEGIN + b"\n\n", _BEGIN + b"\n \n")
    assert spaced != evil
    return {
        "a header that is written otherwise": hidden + vendor,
        "an empty line that is not empty": vendor + spaced,
        "a second block": vendor + evil,
        "both in one block": maker.armoured("evil", "vendor"),
        "both, not armoured": maker.gpg("--export", "evil", "vendor"),
    }


_ATTACKS = (
    "a header that is written otherwise",
    "an empty line that is not empty",
    "a second block",
    "both in one block",
    "both, not armoured",
)


@pytest.mark.parametrize("attack", _ATTACKS)
def test_apt_takes_no_repository_of_another_key_in_the_file(
    maker: Maker, install: Install, tmp_path: Path, attack: str
) -> None:
    told = install(attacks(maker)[attack])
    if "path" not in told:
        return  # refused whole
    evil = update(maker.repository(tmp_path / "evil", "evil"), told["path"], tmp_path / "one")
    assert evil.returncode != 0, evil.stdout
    assert "NO_PUBKEY" in evil.stderr
    good = update(maker.repository(tmp_path / "good", "vendor"), told["path"], tmp_path / "two")
    assert good.returncode == 0, good.stderr


def test_the_vendors_own_file_is_taken_once(maker: Maker, install: Install) -> None:
    first = install(maker.armoured("vendor"))
    assert first["changed"] is True
    keyring = Path(first["path"])
    assert not keyring.read_bytes().startswith(b"-----")
    assert keyring.stat().st_mode & 0o777 == 0o644
    for again in (maker.armoured("vendor"), maker.gpg("--export", "vendor")):
        assert install(again) == {"changed": False, "path": first["path"]}


def test_check_writes_nothing(maker: Maker, install: Install) -> None:
    told = install(maker.armoured("vendor"), "--check")
    assert told["changed"] is True
    assert not Path(told["path"]).exists()


def test_another_key_is_refused_with_both_names(maker: Maker, install: Install) -> None:
    error = HostError.from_answer(install(maker.armoured("other"), pin="vendor"))
    assert error is not None
    assert maker.fingerprint("other") in error.message
    assert f"pinned is {maker.fingerprint('vendor')}" in error.message
    assert "kimi_nvidia_repo_key_fingerprint" in str(error.fix)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"<html>404</html>",
        _BEGIN + b"\n\n####\n-----END PGP PUBLIC KEY BLOCK-----\n",
        bytes([0x99, 0x01]),
        bytes([0xC6, 0xFF]),
        base64.b64decode("mQENBGA="),
        b"-----BEGIN PGP PUBLIC KEY BLOCK-----\n" * 1000,
    ],
)
def test_what_is_no_key_is_refused(install: Install, content: bytes) -> None:
    error = HostError.from_answer(install(content))
    assert error is not None
    assert "is not an OpenPGP key" in error.message
    assert "kimi_nvidia_repo_key_url" in str(error.fix)


def test_without_gpg_the_message_names_the_package(
    maker: Maker, install: Install, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    content = maker.armoured("vendor")
    fingerprint = maker.fingerprint("vendor")
    monkeypatch.setattr(Maker, "fingerprint", lambda *_: fingerprint)
    monkeypatch.setenv("PATH", str(tmp_path))
    error = HostError.from_answer(install(content))
    assert error is not None
    assert error.fix == "apt-get install gpg"


def test_a_key_below_which_the_pinned_one_stands_is_not_taken(
    install: Install, maker: Maker
) -> None:
    """gpg finds a key by its subkeys as well, and would bring the attacker's whole one along."""
    told = install(with_the_vendors_key_below(maker))
    error = HostError.from_answer(told)
    assert error is not None
    assert f"pinned is {maker.fingerprint('vendor')}" in error.message
