"""Finds sinks and transforms: entry points, and the files of `CONNECTOR_PLUGIN_DIR`. Importing one runs its code.

Called at start, before any thread, and at a reload, by one thread at a time. A plugin that cannot be imported breaks
nothing but itself. The rules for a file:

- `NAME.py` is the plugin NAME; a file whose name begins with `_` or `.` is left alone.
- It defines one class, a `Sink` or a `Transform`, or functions, each a transform `NAME:function`. What begins with `_`
  does not count, nor what is imported.
- It may import what is installed, but not another file of the directory, which is not on the import path.
"""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from inspect import isfunction
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from connector.api.errors import ConfigError
from connector.api.sink import Sink
from connector.api.transform import Transform
from connector.plugins.function import make_transform
from connector.plugins.modules import import_again, import_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from importlib.metadata import Distribution
    from pathlib import Path
    from types import ModuleType

P = TypeVar("P")
_FILE_NAME = re.compile(r"[a-z][a-z0-9_-]*")


@dataclass(frozen=True, slots=True)
class Kind(Generic[P]):
    """A kind of plugin."""

    noun: str
    group: str  # of entry points
    setting: str  # that names plugins of this kind
    base: type[P]

    @property
    def base_name(self) -> str:
        """How plugin authors know the base class."""
        return f"connector.{self.base.__name__}"


SINK: Kind[Sink[Any]] = Kind("sink", "connector.sinks", "CONNECTOR_SINK", Sink)
TRANSFORM: Kind[Transform[Any]] = Kind("transform", "connector.transforms", "CONNECTOR_TRANSFORMS", Transform)
_KINDS: tuple[Kind[Any], ...] = (SINK, TRANSFORM)


@dataclass(frozen=True, slots=True)
class Plugin(Generic[P]):
    """A plugin: its class, or the problem with it and the way out. `origin` is a distribution, or the path of a file.

    What kind of plugin a broken file would be is not known: `kind` is None.
    """

    name: str
    kind: Kind[P] | None
    origin: str
    loaded: type[P] | None
    problem: str | None = None


class Plugins:
    """What is installed, and what is in the directory `CONNECTOR_PLUGIN_DIR`."""

    def __init__(self, directory: Path | None = None) -> None:
        self._directory = directory

    def installed(self) -> list[Plugin[Any]]:
        """Return every plugin, sinks first, by name; imports all of them."""
        found: list[Plugin[Any]] = [
            _from_point(kind, point, EntryPoint.load) for kind in _KINDS for point in entry_points(group=kind.group)
        ]
        found += [plugin for path in self._files() for plugin in _from_file(path)]
        order = {kind: number for number, kind in enumerate((*_KINDS, None))}
        return sorted(found, key=lambda plugin: (order[plugin.kind], plugin.name, plugin.origin))

    def load(self, kind: Kind[P], name: str) -> type[P]:
        """Return the class of a plugin; imports what has this name only.

        Raises:
            ConfigError: There is none, there are several, or it cannot be imported.
        """
        return self._only(kind, name, EntryPoint.load)

    def reload(self, kind: Kind[P], name: str) -> type[P]:
        """Import the newest version of a plugin and return its class; instances of the old one go on as they are.

        Raises:
            ConfigError: As for `load`; the old version stays the one that is imported.
        """
        return self._only(kind, name, import_again)

    def load_transform(self, name: str) -> type[Transform[Any]]:
        """Return a transform by its name, or one that calls the function `module:function`.

        Raises:
            ConfigError: As for `load`, or it is no function that takes a record.
        """
        return self._function(name, EntryPoint.load) if ":" in name else self.load(TRANSFORM, name)

    def reload_transform(self, name: str) -> type[Transform[Any]]:
        """As `load_transform`, of the newest version.

        Raises:
            ConfigError: As for `load_transform`; the old version stays the one that is imported.
        """
        return self._function(name, import_again) if ":" in name else self.reload(TRANSFORM, name)

    def _function(self, name: str, import_: Callable[[EntryPoint], object]) -> type[Transform[Any]]:
        """Find a function: in the file of the directory that has the module's name, else on the import path."""
        module_name, _, function_name = name.partition(":")
        path = next((path for path in self._files() if path.stem == module_name), None)
        try:
            point = EntryPoint(module_name, module_name, TRANSFORM.group)
            module = import_(point) if path is None else import_file(path)
        except ImportError as error:
            way_out = (
                "Put its file into CONNECTOR_PLUGIN_DIR, or its directory into PYTHONPATH, and install what it imports"
                if path is None
                else "Install what is missing, or correct the file"
            )
            raise ConfigError(f"{TRANSFORM.setting}={name}: cannot be imported: {error}. {way_out}.") from error
        except (Exception, SystemExit) as error:
            problem = f"cannot be imported: {type(error).__name__}: {error}. Correct {path or module_name}."
            raise ConfigError(f"{TRANSFORM.setting}={name}: {problem}") from error
        if not hasattr(module, function_name):
            nearest = get_close_matches(function_name, vars(module), n=1)
            meant = f" Did you mean {nearest[0]}?" if nearest else ""
            raise ConfigError(f"{TRANSFORM.setting}={name}: {path or module_name} has no {function_name}.{meant}")
        try:
            return make_transform(function_name, getattr(module, function_name))
        except ValueError as error:
            raise ConfigError(f"{TRANSFORM.setting}={name} {error}.") from error

    def _only(self, kind: Kind[P], name: str, import_: Callable[[EntryPoint], object]) -> type[P]:
        points = list(entry_points(group=kind.group, name=name))
        files = [plugin for path in self._files() if path.stem == name for plugin in _from_file(path)]
        files = [plugin for plugin in files if plugin.kind in (kind, None)]
        if kind is TRANSFORM and files and files[0].name != name:
            ways = " or ".join(plugin.name for plugin in files)
            raise ConfigError(f"{kind.setting}={name}: {files[0].origin} has functions. Name one of them: {ways}.")
        offers = sorted([*map(_distribution_name, points), *(plugin.origin for plugin in files)])
        if not offers:
            raise ConfigError(f"{kind.setting}={name}: {self._unknown(kind, name)}")
        if len(offers) > 1:
            raise ConfigError(
                f"{kind.setting}={name}: {' and '.join(offers)} both offer this name. Remove one of them."
            )
        plugin = _from_point(kind, points[0], import_) if points else files[0]
        if plugin.loaded is None:
            raise ConfigError(f"{kind.setting}={name}: {plugin.problem}")
        return plugin.loaded

    def _unknown(self, kind: Kind[Any], name: str) -> str:
        files = [plugin for path in self._files() for plugin in _from_file(path)]
        names = {*entry_points(group=kind.group).names, *(file.name for file in files if file.kind is kind)}
        nearest = get_close_matches(name, sorted(names), n=1)
        meant = f" Did you mean {nearest[0]}?" if nearest else ""
        return f"no such {kind.noun} is installed.{meant} Installed: {', '.join(sorted(names)) or 'none'}."

    def _files(self) -> Iterator[Path]:
        if self._directory is not None:
            yield from sorted(path for path in self._directory.glob("*.py") if path.name[0] not in "_.")


def _from_point(kind: Kind[P], point: EntryPoint, import_: Callable[[EntryPoint], object]) -> Plugin[P]:
    distribution = _distribution_name(point)
    try:
        loaded = import_(point)
    except ImportError as error:
        problem = f"cannot be imported: {error}. {_way_out(error, point)}"
    except (Exception, SystemExit) as error:  # noqa: BLE001  # a plugin's module may raise anything; the others must still work
        problem = f"cannot be imported: {type(error).__name__}: {error}. Report it to the makers of {distribution}."
    else:
        if isinstance(loaded, type) and issubclass(loaded, kind.base):
            return Plugin(point.name, kind, distribution, loaded)
        problem = f"{point.value} is not a subclass of {kind.base_name}. Report it to the makers of {distribution}."
    return Plugin(point.name, kind, distribution, None, problem)


def _from_file(path: Path) -> list[Plugin[Any]]:
    """Return what a file offers: one plugin, usable or not, or one for each function."""
    if not _FILE_NAME.fullmatch(path.stem):
        return [_broken(path, "cannot be named: the file's name has other than a-z, 0-9, _ and -. Rename it.")]
    try:
        module = import_file(path)
    except ImportError as error:
        return [_broken(path, f"cannot be imported: {error}. Install what is missing, or correct the file.")]
    except (Exception, SystemExit) as error:  # noqa: BLE001  # as for an entry point
        return [_broken(path, f"cannot be imported: {type(error).__name__}: {error}. Correct the file.")]
    found = [(kind, each) for kind in _KINDS for each in _defined(module, kind.base)]
    functions = {} if found else _functions(module)
    if functions:
        return [Plugin(f"{path.stem}:{name}", TRANSFORM, str(path), made) for name, made in functions.items()]
    if len(found) != 1:
        names = " and ".join(each.__name__ for _, each in found) or "none"
        rule = "a file defines one subclass of connector.Sink or connector.Transform, or functions of a record"
        return [_broken(path, f"cannot be used: {rule}, and this one has {names}.")]
    [(kind, loaded)] = found
    return [Plugin(path.stem, kind, str(path), loaded)]


def _broken(path: Path, problem: str) -> Plugin[Any]:
    return Plugin(path.stem, None, str(path), None, problem)


def _defined(module: ModuleType, base: type) -> list[type]:
    own = {
        each: None for each in vars(module).values() if isinstance(each, type) and each.__module__ == module.__name__
    }
    return [each for each in own if issubclass(each, base) and not each.__name__.startswith("_")]


def _functions(module: ModuleType) -> dict[str, type[Transform[Any]]]:
    """Return a transform for each function that takes a record, by its name."""
    made: dict[str, type[Transform[Any]]] = {}
    for name, each in vars(module).items():
        if isfunction(each) and each.__module__ == module.__name__ and not name.startswith("_"):
            with suppress(ValueError):  # a helper with other arguments
                made[name] = make_transform(name, each)
    return made


def _distribution_name(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else "unknown"


def _way_out(error: ImportError, point: EntryPoint) -> str:
    """Say what to install: the extra of the plugin's distribution that brings the missing module, if there is one."""
    distribution = point.dist
    missing = (error.name or "").partition(".")[0]
    if distribution is None or not missing or missing == point.module.partition(".")[0]:
        return "The installation is broken; install it again."
    extra = _extra_with(distribution, missing)
    return f"Install it: pip install '{distribution.name}[{extra}]'" if extra else f"Install {missing}."


def _extra_with(distribution: Distribution, module: str) -> str | None:
    for requirement in distribution.requires or ():
        name = re.match(r"[A-Za-z0-9._-]+", requirement)
        extra = re.search(r"extra\s*==\s*[\"']([^\"']+)", requirement)
        if name and extra and name[0].lower().replace("-", "_") == module.lower():
            return extra[1]
    return None
