"""What a verb is asked with: its query and its body, bounded in size and time, on the thread `admin`.

What cannot be meant is refused: 400 for a request that cannot be read, 422 for one that says too little or too much.
"""

from __future__ import annotations

import asyncio
import re
from typing import TYPE_CHECKING

import orjson

from connector.admin.problem import RequestRefusedError
from connector.api.intents import Scope

if TYPE_CHECKING:
    from starlette.requests import Request

    from connector.api.event import JsonValue

_MOST_BYTES = 2**20
_BODY_SECONDS = 10.0
_MOST_PARTITION = 2**31 - 1
_NUMBER = re.compile(r"[0-9]{1,10}")
_SCOPE = ("topic", "partition")


def query(request: Request, *known: str) -> dict[str, str]:
    """Return the query.

    Raises:
        RequestRefusedError: It has a parameter that is not known, or one twice.
    """
    found: dict[str, str] = {}
    for name, value in request.query_params.multi_items():
        if name not in known:
            takes = f"It takes {' and '.join(known)}." if known else "It takes none."
            raise RequestRefusedError(400, f"{request.scope['path']} has no query parameter {name!r}. {takes}")
        if name in found:
            raise RequestRefusedError(400, f"The query parameter {name} comes twice. Send a request for each.")
        found[name] = value
    return found


async def json_body(request: Request) -> JsonValue:
    """Return the body.

    Raises:
        RequestRefusedError: It is too large, does not come in time, or is not JSON.
    """
    return _parsed(await _body(request))


async def field(request: Request, name: str, meaning: str) -> str:
    """Return the one field of a JSON object, a text. Null, which would mean everything, is refused with a warning."""
    value = await json_body(request)
    if isinstance(value, dict) and value.keys() == {name} and isinstance(value[name], str):
        return str(value[name])
    if isinstance(value, dict) and name in value and value[name] is None:
        raise RequestRefusedError(422, f"{name} is null, which would mean everything. Name one: {meaning}.")
    raise RequestRefusedError(422, f'The body must be {{"{name}": "…"}}: {meaning}.')


async def scope(request: Request) -> Scope:
    """Return what to pause or resume: by the query, or by the same as a JSON object in the body; without, everything.

    Raises:
        RequestRefusedError: It is neither, or both, or cannot be meant. An empty or null topic is refused: it may be a
            script's unset variable, and would mean everything.
    """
    asked: dict[str, JsonValue] = {**query(request, *_SCOPE)}
    if _NUMBER.fullmatch(str(asked.get("partition"))):
        asked["partition"] = int(str(asked["partition"]))
    if body := await _body(request):
        if asked:
            raise RequestRefusedError(422, "Topic and partition come by the query or in the body, not by both.")
        said = _parsed(body)
        if not isinstance(said, dict) or not said.keys() <= set(_SCOPE):
            raise RequestRefusedError(
                422, 'The body must be {"topic": "…", "partition": 0}, without partition for a topic, or be left out.'
            )
        asked = said
    if not asked:
        return Scope()
    topic, partition = asked.get("topic"), asked.get("partition")
    if not isinstance(topic, str) or not topic:
        raise RequestRefusedError(422, "A topic has to be named. Without topic and partition, everything is meant.")
    if "partition" not in asked:
        return Scope(topic)
    # Of the types of JSON, true is an int to Python too.
    if not isinstance(partition, int) or isinstance(partition, bool) or not 0 <= partition <= _MOST_PARTITION:
        raise RequestRefusedError(422, f"partition={partition} is no partition. Send a whole number from 0 on.")
    return Scope(topic, partition)


def _parsed(body: bytes) -> JsonValue:
    try:
        value: JsonValue = orjson.loads(body)
    except ValueError as error:
        raise RequestRefusedError(400, f"The body is not JSON: {error}.") from error
    return value


async def _body(request: Request) -> bytes:
    """Read the body, whether or not its length is told before."""
    body = bytearray()
    try:
        async with asyncio.timeout(_BODY_SECONDS):
            async for chunk in request.stream():
                body += chunk
                if len(body) > _MOST_BYTES:
                    raise RequestRefusedError(413, f"The body is larger than {_MOST_BYTES} bytes.")
    except TimeoutError:
        raise RequestRefusedError(
            408, f"The body did not come within {_BODY_SECONDS:g}s.", {"Connection": "close"}
        ) from None
    return bytes(body)
