"""Select transform: what an expression gives becomes the value."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from connector import Field, PoisonError, RecordErrors, Settings, Transform
from transforms.expression import Expression, ExpressionText

if TYPE_CHECKING:
    from connector import Batch


class SelectSettings(Settings):
    """Read from CONNECTOR_TRANSFORM_SELECT_EXPRESSION and so on."""

    expression: ExpressionText = Field(
        description="JMESPath over the record, as for `filter`. The result becomes the value, as in "
        "`{id: value.id, city: value.address.city}`. A tombstone stays one."
    )
    on_null: Literal["poison", "tombstone"] = Field(
        "poison", description="What a record becomes whose result is null: poison, or a tombstone with its key."
    )


class SelectTransform(Transform[SelectSettings]):
    """Makes the result of a JMESPath expression the value of each record; tombstones pass."""

    def open(self) -> None:
        """Compile the expression."""
        self._expression = Expression(self.settings.expression)

    def apply(self, batch: Batch) -> Batch:
        """Return the batch with its new values."""
        tombstones = {index for index, value in enumerate(batch.column("value")) if value is None}
        results = self._expression.search(batch, tombstones)
        if self.settings.on_null == "poison":
            nulls = [index for index, result in enumerate(results) if result is None and index not in tombstones]
            if nulls:
                error = PoisonError(
                    "the expression gives null, which would make a tombstone of the record. Mend the expression, leave "
                    "such records out by a filter before it, or set ON_NULL of this transform to tombstone"
                )
                raise RecordErrors(dict.fromkeys(nulls, error))
        return batch.with_column("value", results)
