"""Imported before sglang, in its own python: what is compiled for GPUs is a stand-in."""

from __future__ import annotations

import importlib.abc
import importlib.machinery
import sys
from typing import TYPE_CHECKING, Any
from unittest.mock import MagicMock

if TYPE_CHECKING:
    from types import ModuleType

_COMPILED = ("IPython", "torchvision", "sgl_kernel", "gguf")


class _Absent(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if name.split(".", maxsplit=1)[0] not in _COMPILED:
            return None
        return importlib.machinery.ModuleSpec(name, self, is_package=True)

    def create_module(self, spec: importlib.machinery.ModuleSpec) -> ModuleType:
        module: Any = MagicMock(name=spec.name)
        module.__path__, module.__spec__, module.__name__ = [], spec, spec.name
        module.__version__ = "9"
        return module  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        pass


sys.meta_path.append(_Absent())
# Ours come first, and torch after them.
import torch  # noqa: E402

torch.cuda.get_device_capability = lambda *_, **__: (9, 0)
