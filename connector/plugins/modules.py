"""Imports the code of a plugin, and imports it again beside the old one, which goes on working.

Called at start by the command, and at a reload by one thread at a time.
"""

from __future__ import annotations

import importlib
import sys
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_file_location
from itertools import count
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint
    from pathlib import Path
    from types import ModuleType

_versions = count(1)


class _UncachedLoader(SourceFileLoader):
    """Reads the source each time: compiled code is kept by whole seconds, and would hide a quick second version."""

    def path_stats(self, path: object) -> NoReturn:
        raise OSError(f"{path} is not cached")


def import_file(path: Path) -> ModuleType:
    """Import a file as a new module, whether or not it was imported before; what it raises comes out."""
    name = f"connector_plugin_{path.stem}_{next(_versions)}"
    spec = spec_from_file_location(name, path, loader=_UncachedLoader(name, str(path)))
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is no Python file")
    module = module_from_spec(spec)
    sys.modules[name] = module  # annotations of a settings model are looked up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def import_again(point: EntryPoint) -> object:
    """Import an entry point's whole package again and return what the point names; on an error the old one stays.

    Not `importlib.reload`, which would put the new code under the instances that still run the old one.
    """
    package = point.module.partition(".")[0]
    old = {name: module for name, module in sys.modules.items() if name == package or name.startswith(package + ".")}
    importlib.invalidate_caches()
    for name in old:
        del sys.modules[name]
    try:
        return point.load()
    except BaseException:
        for name in [name for name in sys.modules if name == package or name.startswith(package + ".")]:
            del sys.modules[name]
        sys.modules.update(old)
        raise
