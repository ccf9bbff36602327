"""Errors as `application/problem+json` (RFC 9457): what is wrong, for whom reads it and for a program.

`type` is `about:blank`, so `title` is the status in words and the status tells a program what it needs; `detail` has
the value, the rule and the way out, `instance` the path that was asked for.
"""

from __future__ import annotations

from http import HTTPStatus
from typing import TYPE_CHECKING

import orjson
from starlette.responses import Response

from connector.telemetry.masking import mask

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from starlette.requests import HTTPConnection

HEADERS = {"Cache-Control": "no-store", "X-Content-Type-Options": "nosniff"}
"""Of every answer."""
FAILED = "This failed; the log has the reason."
_MOST_CHARACTERS = 2000  # of what a request brings and gets back


class RequestRefusedError(Exception):
    """A request that is answered with this status and text."""

    def __init__(self, status: int, detail: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(detail)
        self.status = status
        self.headers = headers or {}


def problem(
    request: HTTPConnection,
    status: int,
    detail: str,
    *,
    headers: Mapping[str, str] | None = None,
    members: Mapping[str, Sequence[str]] | None = None,
) -> Response:
    """Return the answer; `members` are further ones of the object."""
    document = {
        "type": "about:blank",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail[:_MOST_CHARACTERS],
        "instance": request.scope["path"][:_MOST_CHARACTERS],
        **(members or {}),
    }
    return Response(
        to_json(document),
        status_code=status,
        media_type="application/problem+json",
        headers={**HEADERS, **(headers or {})},
    )


def to_json(document: object) -> bytes:
    """Return masked JSON: an error text may hold a secret as well as a log line may."""
    return orjson.dumps(mask(document), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE)
