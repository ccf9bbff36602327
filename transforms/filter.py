"""Filter transform: records go on when a key, a value, or a field of it matches a pattern."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any, Literal

from pydantic import field_validator

from connector import Batch, Field, PoisonError, RecordErrors, Settings, Transform

if TYPE_CHECKING:
    from connector import TransientError


class FilterSettings(Settings):
    """Read from CONNECTOR_TRANSFORM_FILTER_PATTERN and so on."""

    pattern: str = Field(description="Regular expression that the whole text has to match.")
    column: Literal["key", "value"] = Field("value", description="What is looked at.")
    field: str = Field(
        "", description="Path of a field in it, with dots, where it is a JSON object (format `json`). Unset: all of it."
    )
    drop: bool = Field(False, description="Leave out what matches, instead of what does not.")

    @field_validator("pattern")
    @classmethod
    def _compiles(cls, pattern: str) -> str:
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"is no regular expression: {error}") from error
        return pattern


class FilterTransform(Transform[FilterSettings]):
    """Lets records through whose key, value or field matches a pattern. Null, and a field that is missing, do not."""

    def open(self) -> None:
        """Compile the pattern."""
        self._matches = re.compile(self.settings.pattern).fullmatch
        self._path = self.settings.field.split(".") if self.settings.field else []

    def apply(self, batch: Batch) -> Batch:
        """Return the records that go on."""
        kept: list[int] = []
        errors: dict[int, TransientError | PoisonError] = {}
        for index, entry in enumerate(batch.column(self.settings.column)):
            try:
                text = self._text(entry)
            except UnicodeDecodeError as error:
                errors[index] = PoisonError(f"the {self.settings.column} is not UTF-8: {error}")
                continue
            if (text is not None and self._matches(text) is not None) is not self.settings.drop:
                kept.append(index)
        if errors:
            raise RecordErrors(errors)
        return batch if len(kept) == len(batch) else batch.select(kept)

    def _text(self, entry: Any) -> str | None:
        """Return the text that is looked at: of a number, a list and so on their JSON."""
        for name in self._path:
            entry = entry.get(name) if isinstance(entry, dict) else None
        if isinstance(entry, bytes):
            return entry.decode()
        return (
            entry if entry is None or isinstance(entry, str) else json.dumps(entry, default=str, separators=(",", ":"))
        )
