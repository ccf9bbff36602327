"""A plain function as a transform, for `module:function` in `CONNECTOR_TRANSFORMS`: it is called with each record.

A record is a dict of `topic`, `partition`, `offset`, `timestamp`, `key`, `value` and `headers`, as `Batch.column` has
them. The function returns True (it goes on), False (it is left out), or the record with another key, value or headers.
Called on the pipeline's thread.
"""

from __future__ import annotations

import inspect
import traceback
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, TypeAlias

from connector.api.errors import ConnectorError, PoisonError, RecordErrors, TransientError
from connector.api.settings import Settings
from connector.api.transform import Transform

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from connector.api.batch import Batch
    from connector.api.types import LaneId

Record: TypeAlias = dict[str, Any]

_PLACE = ("topic", "partition", "offset", "timestamp")
_CONTENT = ("key", "value", "headers")


class FunctionTransform(Transform[Settings]):
    """Base of what `make_transform` makes, a class for each function."""

    function: ClassVar[Callable[[Record], object]]

    def open(self) -> None:
        """Begin without results."""
        # Of records that come again because others of their batch failed. A function may change a record's value in
        # place, which must not happen to it twice.
        self._results: dict[tuple[LaneId, int], bool | Record] = {}

    def apply(self, batch: Batch) -> Batch:
        """Call the function with each record that has no result yet."""
        known, self._results = self._results, {}
        errors: dict[int, TransientError | PoisonError] = {}
        results: list[bool | Record] = []
        for index, record in enumerate(_records(batch)):
            key = batch.metadata.lane, record["offset"]
            try:
                result = known[key] if key in known else self._call(record)
            except PoisonError as error:
                errors[index] = error
            except ConnectorError:
                raise
            else:
                self._results[key] = result
                results.append(result)
        if errors:
            raise RecordErrors(errors)
        self._results = {}
        kept = [index for index, result in enumerate(results) if result is not False]
        rest = batch if len(kept) == len(batch) else batch.select(kept)
        changed = {number: result for number, index in enumerate(kept) if isinstance(result := results[index], dict)}
        for name in _CONTENT if changed else ():
            rest = _with_changes(rest, name, changed)
        return rest

    def _call(self, record: Record) -> bool | Record:
        place = {name: record[name] for name in _PLACE}
        try:
            result = type(self).function(record)
        except ConnectorError:
            raise
        except Exception as error:  # whatever it is: it is about this record, and the next one may do
            raise PoisonError(f"{type(error).__name__}: {error} ({_line(error)})") from error
        if isinstance(result, bool):
            return result
        if not isinstance(result, dict):
            raise PoisonError(f"the function returned {_described(result)}; it returns the record, True or False")
        _check(result, place)
        return result


def make_transform(name: str, function: object) -> type[Transform[Any]]:
    """Return a transform that calls a function.

    Raises:
        ValueError: It is no function of one record; the text ends a sentence.
    """
    if not callable(function) or isinstance(function, type):
        raise ValueError(f"is {_described(function)}, not a function")  # noqa: TRY004  # a setting has a wrong value
    if inspect.iscoroutinefunction(function) or inspect.isgeneratorfunction(function):
        raise ValueError("is asynchronous, or yields; write a plain function, which returns its result")
    try:
        inspect.signature(function).bind({})
    except TypeError:
        raise ValueError("cannot be called with one argument; it takes the record") from None
    return type(name, (FunctionTransform,), {"function": staticmethod(function), "__doc__": inspect.getdoc(function)})


def _records(batch: Batch) -> list[Record]:
    names = (*_PLACE, *_CONTENT)
    records = [dict(zip(names, row, strict=True)) for row in batch.rows(*names)]
    for record in records:
        record["headers"] = list(record["headers"])  # the client's own list, which goes into a dead letter
    return records


def _with_changes(batch: Batch, name: str, changed: Mapping[int, Record]) -> Batch:
    old = batch.column(name)
    new = [changed[index][name] if index in changed else entry for index, entry in enumerate(old)]
    # Values that were changed in place are the same objects: nothing tells that they are not what the decoder made.
    is_same = name not in batch.decoded and new == list(old)
    return batch if is_same else batch.with_column(name, new)


def _check(record: Record, place: Mapping[str, object]) -> None:
    if record.keys() != {*_PLACE, *_CONTENT}:
        odd = sorted(map(repr, record.keys() ^ {*_PLACE, *_CONTENT}))
        raise PoisonError(f"the function returned a record in which {', '.join(odd)} is missing or too much")
    if any(record[name] != each for name, each in place.items()):
        raise PoisonError("the function changed topic, partition, offset or timestamp, which stay")
    headers = record["headers"]
    if not isinstance(headers, list) or not all(map(_is_header, headers)):
        raise PoisonError("the function returned headers that are no list of (name, bytes or None)")


def _is_header(header: object) -> bool:
    match header:
        case (str(), bytes() | None):
            return True
    return False


def _described(value: object) -> str:
    return "None" if value is None else f"a {type(value).__name__}"


def _line(error: Exception) -> str:
    frame = traceback.extract_tb(error.__traceback__)[-1]
    return f"{Path(frame.filename).name}, line {frame.lineno}"
