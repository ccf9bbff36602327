"""Finds sinks by entry point, group `connector.sinks`. Called at start, before any thread; importing one runs its code.

A plugin that cannot be imported breaks nothing but itself.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from difflib import get_close_matches
from importlib.metadata import EntryPoint, entry_points
from typing import TYPE_CHECKING, Any

from connector.api.errors import ConfigError
from connector.api.sink import Sink

if TYPE_CHECKING:
    from importlib.metadata import Distribution

ENTRY_POINT_GROUP = "connector.sinks"


@dataclass(frozen=True, slots=True)
class InstalledSink:
    """A sink that some distribution offers: its class, or the problem with it and the way out."""

    name: str
    distribution: str
    sink: type[Sink[Any]] | None
    problem: str | None = None


def installed() -> list[InstalledSink]:
    """Return every sink that is installed, by name; imports all of them."""
    found = entry_points(group=ENTRY_POINT_GROUP)
    return [_load(point) for point in sorted(found, key=lambda point: (point.name, _distribution_name(point)))]


def load_sink(name: str) -> type[Sink[Any]]:
    """Return the class of the sink with this name; imports that one only.

    Raises:
        ConfigError: There is none, there are several, or it cannot be imported.
    """
    points = list(entry_points(group=ENTRY_POINT_GROUP, name=name))
    if not points:
        names = sorted(entry_points(group=ENTRY_POINT_GROUP).names)
        nearest = get_close_matches(name, names, n=1)
        meant = f" Did you mean {nearest[0]}?" if nearest else ""
        raise ConfigError(f"CONNECTOR_SINK={name}: no such sink is installed.{meant} Installed: {', '.join(names)}.")
    if len(points) > 1:
        offers = " and ".join(sorted(_distribution_name(point) for point in points))
        raise ConfigError(f"CONNECTOR_SINK={name}: {offers} both offer this sink. Uninstall one of them.")
    loaded = _load(points[0])
    if loaded.sink is None:
        raise ConfigError(f"CONNECTOR_SINK={name}: {loaded.problem}")
    return loaded.sink


def _load(point: EntryPoint) -> InstalledSink:
    distribution = _distribution_name(point)
    try:
        sink = point.load()
    except ImportError as error:
        return InstalledSink(point.name, distribution, None, f"cannot be imported: {error}. {_way_out(error, point)}")
    except Exception as error:  # noqa: BLE001  # a plugin's module may raise anything; the others must still work
        problem = f"cannot be imported: {type(error).__name__}: {error}. Report it to the makers of {distribution}."
        return InstalledSink(point.name, distribution, None, problem)
    if not (isinstance(sink, type) and issubclass(sink, Sink)):
        problem = f"{point.value} is not a subclass of connector.Sink. Report it to the makers of {distribution}."
        return InstalledSink(point.name, distribution, None, problem)
    return InstalledSink(point.name, distribution, sink)


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
