"""A JMESPath expression over records, for `filter` and `select`.

It sees each record as a line of the sink `stdout` shows it, but for headers, which are an object here:
`{topic, partition, offset, timestamp, key, value, headers}`. What can be known without a record is refused at start.
"""

from __future__ import annotations

import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any

import jmespath
import orjson
from jmespath import exceptions, functions
from jmespath.visitor import Options, TreeInterpreter
from pydantic import AfterValidator

from connector import PoisonError, RecordErrors, json_default

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from jmespath.visitor import _TreeNode as Node

    from connector import Batch, TransientError

FIELDS = ("topic", "partition", "offset", "timestamp", "key", "value", "headers")
_LONGEST = 4096  # characters
_STEPS = frozenset({"subexpression", "index_expression", "projection", "value_projection", "filter_projection"})
_OPENING = _STEPS | {"flatten"}
_RUNTIME_ERRORS = (ArithmeticError, LookupError, TypeError, ValueError, RecursionError)


class _Functions(functions.Functions):
    """The functions of the specification, and ours."""

    @functions.signature({"types": ["string", "null"]}, {"types": ["string"]})
    def _func_matches(self, text: str | None, pattern: str) -> bool:
        """Whether a regular expression matches the whole of a text; null does not match."""
        return text is not None and re.fullmatch(pattern, text) is not None


class Expression:
    """A compiled expression. Belongs to one pipeline, and is used on its thread.

    Raises:
        ValueError: The expression cannot work, whatever the record; the text ends a sentence.
    """

    def __init__(self, text: str) -> None:
        if len(text) > _LONGEST:
            raise ValueError(f"has {len(text)} characters; write {_LONGEST} at most, or a transform in Python")
        self._tree = _compiled(text)
        self._fields: set[str] = set()  # of the record that are read
        self._opened: set[str] = set()  # those of which a part is read
        self._note(self._tree, is_record=True)
        # Kept, since it looks its methods up once; `jmespath.search` makes one each time, which takes as long again.
        self._interpreter = TreeInterpreter(Options(custom_functions=_Functions()))

    def search(self, batch: Batch, skipped: Collection[int] = ()) -> list[Any]:
        """Return what the expression gives for each record, None for those that are skipped.

        Raises:
            RecordErrors: Records that have no result; each error tells why, and nothing of the record's content.
        """
        errors = self._closed(batch)
        results: list[Any] = []
        for index, document in enumerate(self._documents(batch)):
            result = None
            if index not in skipped and index not in errors:
                try:
                    result = self._interpreter.visit(self._tree, document)
                except _RUNTIME_ERRORS as error:
                    errors[index] = PoisonError(_reason(error))
            results.append(result)
        if errors:
            raise RecordErrors(errors)
        return results

    def _documents(self, batch: Batch) -> Iterator[dict[str, Any]]:
        names = sorted(self._fields) or ["offset"]  # as many documents as records, also for an expression without any
        columns = [_COLUMNS[name](batch, name) if name in _COLUMNS else batch.column(name) for name in names]
        return (dict(zip(names, row, strict=True)) for row in zip(*columns, strict=True))

    def _closed(self, batch: Batch) -> dict[int, TransientError | PoisonError]:
        """Find records of whose key or value a part is read, where it has none: null would leave all out in silence."""
        errors: dict[int, TransientError | PoisonError] = {}
        for name in self._opened:
            for index, entry in enumerate(batch.column(name)):
                if isinstance(entry, (str, bytes)):
                    errors[index] = PoisonError(
                        f"the {name} is {'text' if isinstance(entry, str) else 'bytes'}, and the expression reads a "
                        f"part of it. Set CONNECTOR_{name.upper()}_FORMAT to json, or to what it is"
                    )
        return errors

    def _note(self, node: Node, *, is_record: bool) -> None:
        """Note which fields of the record are read; `is_record`: this node sees the record, not a part of it."""
        kind, name, children = node["type"], node.get("value"), node.get("children", ())
        if kind == "function_expression":
            _check_call(str(name), children)
        if kind in _OPENING and children[0]["type"] == "not_expression":
            # As the library parses it, which gives null whatever the record.
            raise ValueError("has a ! before a path, which takes only the first name; write !(value.name)")
        if is_record and kind == "field":
            if name not in FIELDS:
                raise ValueError(_unknown_field(str(name)))
            self._fields.add(str(name))
        elif is_record and kind in ("current", "identity"):
            self._fields.update(FIELDS)
        if is_record and kind in _STEPS and children[0]["type"] == "field":
            self._opened |= {children[0]["value"]} & {"key", "value"}
        narrows = kind in _STEPS or kind == "pipe"
        for number, child in enumerate(children):
            if isinstance(child, dict):  # the bounds of a slice are none
                inside = kind == "expref" or (narrows and number > 0)
                self._note(child, is_record=is_record and not inside)


def check_expression(text: str) -> str:
    """Return the text of an expression that compiles; a ValueError says what is wrong, and where."""
    Expression(text)
    return text


ExpressionText = Annotated[str, AfterValidator(check_expression)]


def is_true(result: Any) -> bool:
    """Whether a result counts as true by JMESPath: all but null, false, and what is empty; 0 is true."""
    return result is not None and result is not False and not (isinstance(result, (str, list, dict)) and not result)


def _compiled(text: str) -> Node:
    try:
        return jmespath.compile(text).parsed
    except RecursionError:
        raise ValueError("is nested too deeply") from None
    except exceptions.IncompleteExpressionError:
        raise ValueError("is no JMESPath expression: it ends too early") from None
    except exceptions.LexerError as error:
        raise ValueError(f"is no JMESPath expression: {error.message} at column {error.lexer_position + 1}") from None
    except exceptions.ParseError as error:
        kind, where = error.token_type, f"column {error.lex_position + 1}"
        if kind == "EOF":
            raise ValueError("is no JMESPath expression: it ends too early") from None
        hint = "; a number is written in backquotes, as in `10`" if kind == "NUMBER" else ""
        raise ValueError(f"is no JMESPath expression: unexpected {str(error.token_value)!r} at {where}{hint}") from None
    except exceptions.JMESPathError as error:
        raise ValueError(f"is no JMESPath expression: {error}") from None


def _check_call(name: str, arguments: Sequence[Node]) -> None:
    """Refuse what the library finds only when the function is called."""
    table = _Functions.FUNCTION_TABLE
    if name not in table:
        nearest = get_close_matches(name, table, n=1)
        raise ValueError(f"calls {name}(), which is no function of JMESPath{_meant(nearest)}")
    signature = table[name]["signature"]
    is_variadic = bool(signature) and signature[-1].get("variadic", False)
    if len(arguments) < len(signature) or (len(arguments) > len(signature) and not is_variadic):
        least = "at least " if is_variadic else ""
        raise ValueError(f"calls {name}() with {len(arguments)} argument(s); it takes {least}{len(signature)}")
    if name == "matches":
        pattern = arguments[1].get("value")
        if arguments[1]["type"] != "literal" or not isinstance(pattern, str):
            raise ValueError("calls matches() with a pattern that is not written out; write matches(key, 'a.*')")
        try:
            re.compile(pattern)
        except re.error as error:
            raise ValueError(f"calls matches() with {pattern!r}, which is no regular expression: {error}") from None


def _unknown_field(name: str) -> str:
    nearest = get_close_matches(name, FIELDS, n=1)
    return (
        f"reads {name!r}, which is no field of a record{_meant(nearest)}; there are {', '.join(FIELDS)}. Fields of the "
        f"value are written value.{name}, and a text is in single quotes"
    )


def _meant(nearest: Sequence[str]) -> str:
    return f" (did you mean {nearest[0]}?)" if nearest else ""


def _reason(error: Exception) -> str:
    """Return why a record has no result. The library's own texts quote the record."""
    if isinstance(error, exceptions.JMESPathTypeError):
        wanted = " or ".join(error.expected_types)
        return f"{error.function_name}() takes {wanted}, and was given {error.actual_type}"
    if isinstance(error, RecursionError):
        return "the expression is nested too deeply for this record"
    return f"the expression fails with {type(error).__name__}: values of these types do not go together"


def _entries(batch: Batch, name: str) -> Sequence[Any]:
    """Return keys or values as JSON has them."""
    column = batch.column(name)
    if name not in batch.decoded:
        return [None if entry is None else json_default(entry) for entry in column]
    return _as_json(column) if batch.avro_records.get(name) else column


def _as_json(column: Sequence[Any]) -> list[Any]:
    entries: list[Any] = []
    errors: dict[int, TransientError | PoisonError] = {}
    for index, entry in enumerate(column):
        try:
            entries.append(orjson.loads(orjson.dumps(entry, json_default, orjson.OPT_UTC_Z)))
        except TypeError as error:
            errors[index] = PoisonError(f"a decoded value has no form in JSON: {error}")
    if errors:
        raise RecordErrors(errors)
    return entries


def _headers(batch: Batch, name: str) -> list[dict[str, Any]]:
    """Return the last header of each name, as Kafka's `lastHeader` does."""
    return [
        {header: None if content is None else json_default(content) for header, content in headers}
        for headers in batch.column(name)
    ]


def _timestamps(batch: Batch, name: str) -> list[str | None]:
    return [
        None if time is None else time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
        for time in batch.column(name)
    ]


_COLUMNS: Mapping[str, Callable[[Batch, str], Sequence[Any]]] = {
    "key": _entries,
    "value": _entries,
    "headers": _headers,
    "timestamp": _timestamps,
}
