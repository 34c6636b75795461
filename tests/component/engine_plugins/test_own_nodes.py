"""The own kernel with its weights cut over any number of NUMA nodes: the same bits as on one.

The nodes are groups of threads here; that memory lies on a real node is asked of the kernel's own
list of a process' memory.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from kimi_kt_experts import build

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="there is no C compiler")
MODEL = Path(__file__).parent / "data" / "tiles_model.h"

# In a process of its own: OpenMP has as many threads as its environment says.
_WORK = """
import json, sys
from pathlib import Path
from kimi_kt_experts.kernel import Library
from kimi_kt_experts.prove import Case, DenseCase
from kimi_kt_experts.prove_step import StepCase
kernel = Library(Path(sys.argv[1]))
found = {}
for build in ("avx2", "avx512", "amx"):
    try:
        kernel.choose(build)
    except SystemExit:
        continue
    for nodes in json.loads(sys.argv[2]):
        kernel.cut(nodes)
        for crossover in (1, 99) if build == "amx" else (99,):
            cases = (Case(4, 96, 224, 9, 2), DenseCase(112, 192, 11), StepCase((9, 5), heads=5),
                     StepCase((3,), hidden=192, expert_width=96))
            found.setdefault(f"{build} {crossover}", []).append(
                [case.by(kernel, crossover) for case in cases])
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The library with a model of AMX's tiles."""
    into = tmp_path_factory.mktemp("kernel") / "experts.so"
    more = {"amx": ("-include", str(MODEL)), "main": ("-DMODEL_OF_TILES",)}
    return build.build(into, more=more)


def _run(code: str, *arguments: str, threads: int) -> str:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={
            **os.environ,
            "OMP_NUM_THREADS": str(threads),
            "PYTHONPATH": os.pathsep.join(sys.path),
        },
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_any_number_of_nodes_gives_the_same_bits(path: Path) -> None:
    """Two, three, six and eight, unequal, more than an expert has groups, and threads in any order.

    The seven groups of 32 columns, seven blocks of rows and five heads divide by none of them.
    """
    cuts = [
        [],
        [0, 1],
        [0, 0, 1],
        [0, 1, 2],
        [2, 0, 1, 0, 0],
        [0, 1, 2, 3, 4, 5],
        [0, 1, 2, 3, 4, 5, 6, 7],
        list(range(12)),
    ]
    found = json.loads(_run(_WORK, str(path), json.dumps(cuts), threads=3))
    assert "avx2 99" in found
    for name, answers in found.items():
        for nodes, answer in zip(cuts, answers, strict=True):
            assert answer == answers[0], (name, nodes)


_REFUSED = """
import sys
from pathlib import Path
from kimi_kt_experts.kernel import Dense, Library
kernel = Library(Path(sys.argv[1]))
held = Dense(kernel, bytearray(16 * 64 * 2) and kernel.new(4096), 16, 64)
for nodes in ([0, 1], []):
    try:
        kernel.cut(nodes)
    except SystemExit as refused:
        print(refused)
"""


def test_nodes_do_not_change_under_weights(path: Path) -> None:
    said = _run(_REFUSED, str(path), threads=2)
    assert said.count("before any are there") == 2


_PLACED = """
import sys
from pathlib import Path
from kimi_kt_experts.kernel import Library, Rows
kernel = Library(Path(sys.argv[1]))
kernel.cut([0, 1], [int(sys.argv[2])] * 2)
size = 8 << 20
first = Rows(kernel, kernel.new(size), size, 4)
print(f"{first.address:x}")
print(Path("/proc/self/numa_maps").read_text())
"""


def test_memory_lies_on_the_node_of_its_threads(path: Path) -> None:
    """On the machine's own node: this one may have no other."""
    maps = Path("/proc/self/numa_maps")
    if not maps.exists():
        pytest.skip("this system does not say where memory lies")
    node = re.findall(r" N(\d+)=", maps.read_text())[0]
    address, *rows = _run(_PLACED, str(path), node, threads=2).splitlines()
    mine = [row for row in rows if row.startswith(address)]
    assert mine
    assert "prefer" in mine[0]
    assert f":{node} " in mine[0]


_WHERE = """
import os, sys
from pathlib import Path
from kimi_kt_experts.kernel import Library
kernel = Library(Path(sys.argv[1]))
print(kernel.bound_nodes())
"""


def test_a_thread_that_is_bound_to_one_cpu_knows_its_node(path: Path) -> None:
    free = json.loads(_run(_WHERE, str(path), threads=2))
    assert len(free) == 2
    alone = f"import os; os.sched_setaffinity(0, {{{min(os.sched_getaffinity(0))}}})\n{_WHERE}"
    assert all(node >= 0 for node in json.loads(_run(alone, str(path), threads=2)))


_BOUND = """
import os, sys
from pathlib import Path
from kimi_kt_experts.kernel import Library
kernel = Library(Path(sys.argv[1]))
before = os.sched_getaffinity(0)
kernel.bind([min(before)] * 3)
assert os.sched_getaffinity(0) == before
os.sched_setaffinity(0, {min(before)})
print(kernel.bound_nodes())
"""


def test_each_thread_but_the_programs_own_is_bound(path: Path) -> None:
    """vLLM allows all its CPUs to each."""
    assert all(node >= 0 for node in json.loads(_run(_BOUND, str(path), threads=3)))
