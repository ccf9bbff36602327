"""What a batch loses before the transforms: records that cannot be decoded, and unwanted tombstones.

Called on the pipeline's thread, for each batch until it succeeds. With formats `bytes` and tombstones `write` it costs
nothing.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

from connector.api.errors import PoisonError
from connector.pipeline.decode import Format, Part, Schemas, decode

if TYPE_CHECKING:
    from connector.api.batch import Batch


TOMBSTONE_STAGE = "tombstones"
"""Where unwanted tombstones end, in dead letters and metrics."""


class Tombstones(Enum):
    """`CONNECTOR_TOMBSTONES`: what becomes of a record whose value is null, as the decoder or a transform has left it.

    So the text `null` under `json` is a tombstone, as is the null of Avro; under `bytes` it is four bytes.
    """

    WRITE = "write"  # a record like others
    DELETE = "delete"  # the sink deletes what its key names
    IGNORE = "ignore"
    FAIL = "fail"  # poison

    def unwanted_in(self, batch: Batch) -> frozenset[int]:
        """Return the indexes of the tombstones that no sink may get."""
        if self not in (Tombstones.IGNORE, Tombstones.FAIL):
            return frozenset()
        return frozenset(index for index, value in enumerate(batch.column("value")) if value is None)


class TombstoneError(PoisonError):
    """A record without a value, under `CONNECTOR_TOMBSTONES=fail`."""

    def __init__(self) -> None:
        super().__init__("the record has no value, and CONNECTOR_TOMBSTONES=fail")


@dataclass(frozen=True, slots=True)
class Screened:
    """A whole batch with its columns decoded, and what of it goes no further."""

    batch: Batch
    poison: dict[int, tuple[str, PoisonError]] = field(default_factory=dict)  # stage and error, by index
    ignored: frozenset[int] = frozenset()

    def rest(self) -> Batch:
        """Return what goes on."""
        if not self.poison and not self.ignored:
            return self.batch
        gone = self.ignored | self.poison.keys()
        return self.batch.select([index for index in range(len(self.batch)) if index not in gone])


@dataclass(frozen=True, slots=True)
class Screen:
    """The formats and the policy of a run. Formats with schemas need `schemas`."""

    key_format: Format = Format.BYTES
    value_format: Format = Format.BYTES
    tombstones: Tombstones = Tombstones.WRITE
    schemas: Schemas | None = None

    def look(self, batch: Batch) -> Screened:
        """Decode a batch's columns and find what goes no further.

        Raises:
            TransientError: A schema cannot be had now; nothing has been decided about any record.
            FatalError: The registry refuses the credentials.
        """
        decoded: dict[str, Any] = {}
        avro_records: dict[str, Any] = {}
        undecodable: dict[Part, dict[int, PoisonError]] = {"key": {}, "value": {}}
        formats: tuple[tuple[Part, Format], ...] = (("key", self.key_format), ("value", self.value_format))
        for part, format_ in formats:
            if format_ is not Format.BYTES:
                found = decode(batch, part, format_, self.schemas)
                decoded[part], avro_records[part] = found.values, found.avro_records
                undecodable[part] = found.problems
        batch.decoded, batch.avro_records = decoded, avro_records
        poison = {index: ("decode", error) for each in undecodable.values() for index, error in each.items()}
        ignored: frozenset[int] = frozenset()
        unwanted = self.tombstones.unwanted_in(batch) - undecodable["value"].keys()
        if self.tombstones is Tombstones.FAIL:
            poison |= dict.fromkeys(unwanted, (TOMBSTONE_STAGE, TombstoneError()))
        else:
            ignored = unwanted
            for index in ignored & poison.keys():  # for its key; one outcome for each record (INV-8)
                del poison[index]
        return Screened(batch, poison, ignored)
