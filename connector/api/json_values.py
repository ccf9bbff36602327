"""Decoded values as JSON: what orjson does not write by itself.

Called by sinks on their threads, and for the Arrow form of a batch. Pure.
"""

from __future__ import annotations

import base64
from decimal import Decimal
from typing import Any


def json_default(value: Any) -> str | dict[str, str]:
    """Return bytes and decimals in a form that JSON has; for the `default` of `orjson.dumps`, which writes all else.

    Bytes are text if they are UTF-8, else `{"base64": …}`; a decimal is text with all its digits.

    Raises:
        TypeError: Something else.
    """
    if isinstance(value, bytes):
        try:
            return value.decode()
        except UnicodeDecodeError:
            return {"base64": base64.b64encode(value).decode()}
    if isinstance(value, Decimal):
        return str(value)
    raise TypeError(f"{type(value).__name__} has no JSON form")
