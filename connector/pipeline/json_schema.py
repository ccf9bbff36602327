"""JSON Schema: from the text of a schema to a decoder that parses a payload and validates it.

Called by the registry's thread when a schema is new; the decoder is called on the pipelines' threads.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urljoin

import orjson
from jsonschema import Draft7Validator
from jsonschema.exceptions import best_match
from jsonschema.validators import validator_for
from jsonschema_specifications import REGISTRY
from referencing import Resource
from referencing.exceptions import Unresolvable
from referencing.jsonschema import DRAFT7

from connector.pipeline.decode import Format

if TYPE_CHECKING:
    from collections.abc import Sequence

    from connector.api.arrow_fields import AvroRecord

_SHOWN_CHARACTERS = 100


@dataclass(frozen=True, slots=True)
class JsonSchemaDecoder:
    """Decodes payloads of one schema. Any thread may call it.

    Raises:
        ValueError: From `decode`: the payload is not of this schema; the text names the field.
    """

    validator: Any  # of jsonschema, which has no types
    format: Format = Format.JSON_SCHEMA
    avro_records: tuple[AvroRecord, ...] = ()

    def decode(self, payload: bytes) -> Any:
        """Return the value: dict, list, str, number, bool or None."""
        try:
            value = orjson.loads(payload)
        except ValueError as error:
            raise ValueError(f"is not JSON: {error}") from error
        try:
            broken = best_match(self.validator.iter_errors(value))
        except Unresolvable as error:
            raise ValueError(
                f"cannot be validated: the schema refers to {error.ref}, which it does not bring"
            ) from error
        except RecursionError:
            raise ValueError("is nested too deeply") from None
        if broken is not None:
            raise ValueError(_words(broken))
        return value


def json_schema_decoder(text: str, references: Sequence[tuple[str, str]]) -> JsonSchemaDecoder:
    """Return the decoder of a schema.

    Args:
        text: The schema, as JSON. One that does not say which draft it follows is of draft 7.
        references: Name and text of the schemas that it refers to.

    Raises:
        Exception: Whatever jsonschema makes of a schema that is none.
    """
    schema = json.loads(text)
    base = schema.get("$id", "") if isinstance(schema, dict) else ""
    # Nothing else is fetched: a reference that was not registered does not resolve.
    registry = REGISTRY
    for name, referenced in references:
        resource = Resource.from_contents(json.loads(referenced), default_specification=DRAFT7)
        registry = registry.with_resources([(name, resource), (urljoin(base, name), resource)])
    validator = validator_for(schema, default=Draft7Validator)
    validator.check_schema(schema)
    return JsonSchemaDecoder(validator(schema, registry=registry))


def _words(error: Any) -> str:
    """Say which rule is broken where, by the schema's words: the record's own are not for logs."""
    if error.validator == "required":
        return f"breaks the schema at {error.json_path}: {error.message}"
    rule = str(error.validator_value)
    shown = rule if len(rule) <= _SHOWN_CHARACTERS else rule[:_SHOWN_CHARACTERS] + "…"
    return f"breaks the schema at {error.json_path}: {error.validator} {shown}"
