"""Templates in settings: a path, a table or a topic with placeholders like `{topic}`, `{{` and `}}` for the braces."""

from __future__ import annotations

import string
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def placeholders(template: str, known: Sequence[str]) -> frozenset[str]:
    """Return which placeholders a template uses; afterwards `template.format(…)` of the known ones cannot fail.

    Raises:
        ValueError: One that is not known, or braces that do not match.
    """
    found = set()
    for _, name, specification, conversion in string.Formatter().parse(template):
        if name is None:
            continue
        if name not in known or specification or conversion:
            raise ValueError(
                f"has the unknown placeholder {{{name}{'!' + conversion if conversion else ''}"
                f"{':' + specification if specification else ''}}}; the known ones are "
                f"{', '.join(f'{{{known_name}}}' for known_name in known)}"
            )
        found.add(name)
    return frozenset(found)
