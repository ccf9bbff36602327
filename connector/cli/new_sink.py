"""`connector new-sink`: a package with a sink that works, is tested, and only needs its destination put in."""

from __future__ import annotations

import re
from importlib.metadata import entry_points
from importlib.resources import files
from pathlib import Path
from string import Template

from connector import __version__

_NAME = re.compile(r"[a-z][a-z0-9]*(-[a-z0-9]+)*")
_MAX_LENGTH = 24  # so that no generated line gets too long
_FILES = {
    "pyproject.toml": "pyproject.toml",
    "README.md": "README.md",
    ".gitignore": "gitignore",
    "src/{module}/__init__.py": "__init__.py",
    "src/{module}/sink.py": "sink.py",
    "tests/test_{module}.py": "test_sink.py",
}


def new_sink(name: str, directory: Path | None) -> Path:
    """Write the package of a sink into a new folder, by default `sluiceway-sink-NAME` here, and return the folder.

    Raises:
        ValueError: The name cannot be a sink's, or is that of an installed one.
        OSError: The folder exists, or cannot be made.
    """
    if not _NAME.fullmatch(name) or len(name) > _MAX_LENGTH:
        raise ValueError(
            f"{name!r} is no name for a sink. Use lower-case letters, digits and single hyphens between them, a letter "
            f"first, at most {_MAX_LENGTH} in all."
        )
    if name in entry_points(group="connector.sinks").names:
        raise ValueError(f"a sink {name} is installed already. Choose another name.")
    module = f"{name.replace('-', '_')}_sink"
    names = {
        "name": name,
        "module": module,
        "class_name": "".join(part.capitalize() for part in name.split("-")),
        "distribution": f"sluiceway-sink-{name}",
        "version": __version__,
    }
    folder = directory or Path(names["distribution"])
    if folder.exists():
        raise FileExistsError(f"{folder} exists already. Name another folder with --directory, or remove it.")
    templates = files("connector.cli") / "templates" / "new_sink"
    for path, template in _FILES.items():
        target = folder / path.format(module=module)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(Template((templates / f"{template}.template").read_text("utf-8")).substitute(names), "utf-8")
    (folder / "src" / module / "py.typed").touch()
    return folder
