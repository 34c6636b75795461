"""The definition of a variable of an inventory: its name, kind, default and help."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal

Kind = Literal[
    "text",  # a string
    "model",
    "off_or_gib",  # a whole number from 1, or off
    "off_or_text",  # a string; YAML's off is the text off
    "choice",  # one of `choices`; YAML's on and off are the texts
    "switch",  # true or false
    "count",  # a whole number from 1
    "share",  # a number above 0, 1 at most
    "port",
    "seconds",
    "interval",  # a time with its unit: 90s, 30m, 2h
    "url",  # http or https
    "proxy",  # a proxy's URL, which may carry a user and a password
    "wheel",  # the URL of a wheel, with its digest
    "source",  # where weights come from
    "links",  # a URL, or a directory on the control machine
    "file",  # a file on the control machine
    "folder",  # a directory on the control machine
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
    "gres",  # generic resources, as SLURM prints them too
    "partition",  # a value of an #SBATCH line, or a name as sinfo marks it
    "login",  # USER@HOST for ssh
    "object",  # a name of a Kubernetes object: a DNS label
    "image",  # a container image's reference
    "labels",  # a mapping of label keys to values, as Kubernetes has them
    "resource",  # a name of an extended resource: DOMAIN/NAME
    "issuer",  # an object of cert-manager: ClusterIssuer/NAME or Issuer/NAME
    "schedule",  # five fields, as cron and CronJob take them
    "domain",  # names with dots between them, in lower case
    "profile",  # a relative path on a Kubernetes node
]


Hidden = Literal[
    "file",  # the lines of the file that it names
    "login",  # the password in a URL
]


@dataclass(frozen=True)
class Variable:
    """One variable. `auto`: the word auto is allowed too, and means that the planner chooses.

    `most`: the largest number that a count may have. `hides`: what no log and no document may
    show; the masker reads it here. `refused`: values that people try, with the reason against them
    and what to do instead.
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
    hides: Hidden | None = None
    refused: tuple[tuple[str, str, str], ...] = ()


def define(  # noqa: PLR0913  (a row of the table)
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
    hides: Hidden | None = None,
    refused: tuple[tuple[str, str, str], ...] = (),
) -> Variable:
    """Return a row of the table; `name` is without its prefix."""
    row = (kind, default, text, example, group, auto, choices, most, hides, refused)
    return Variable(f"kimi_{name}", *row)


# As arguments: a bare true or false says nothing.
OFF, ON = False, True
