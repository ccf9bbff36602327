"""Filter transform: the records for which an expression is true go on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from connector import Field, Settings, Transform
from transforms.expression import Expression, ExpressionText, is_true

if TYPE_CHECKING:
    from connector import Batch


class FilterSettings(Settings):
    """Read from CONNECTOR_TRANSFORM_FILTER_EXPRESSION."""

    expression: ExpressionText = Field(
        description="JMESPath over the record: `topic`, `partition`, `offset`, `timestamp`, `key`, `value`, `headers`. "
        "A record goes on if the result is true, as in `value.status == 'paid'`."
    )


class FilterTransform(Transform[FilterSettings]):
    """Lets the records through for which a JMESPath expression is true; the others count as done."""

    def open(self) -> None:
        """Compile the expression."""
        self._expression = Expression(self.settings.expression)

    def apply(self, batch: Batch) -> Batch:
        """Return the records that go on."""
        kept = [index for index, result in enumerate(self._expression.search(batch)) if is_true(result)]
        return batch if len(kept) == len(batch) else batch.select(kept)
