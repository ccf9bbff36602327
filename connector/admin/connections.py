"""`BoundedConnection`: uvicorn's HTTP connection, with the bounds that it lacks; on the thread `admin`.

A probe must get through whatever else comes: a client that sends a byte a minute, does not take its answer, or opens
connections without end would otherwise hold file descriptors that the Kafka client needs too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from connector.telemetry.logs import get_logger

if TYPE_CHECKING:
    import asyncio

log = get_logger(__name__)

_MOST_CONNECTIONS = 64
_REQUEST_SECONDS = 15.0  # for a whole request, from its first byte on; from the connection on for the first
_WRITE_SECONDS = 15.0  # for what is written and not taken


class BoundedConnection(H11Protocol):
    """One connection. Idle between two requests, it is closed by uvicorn's `timeout_keep_alive`."""

    _request_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # as uvicorn has it
        """Take a connection, unless there are too many."""
        super().connection_made(transport)
        if len(self.connections) > _MOST_CONNECTIONS:
            client = self.client[0] if self.client else ""
            log.warning("admin_connection_refused", client=client, connections=_MOST_CONNECTIONS)
            transport.abort()
            return
        transport.set_write_buffer_limits(0)  # whatever is not taken pauses writing
        self._request_timer = self.loop.call_later(_REQUEST_SECONDS, self._give_up, "request")

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget it."""
        super().connection_lost(exc)
        _cancel(self._request_timer)
        _cancel(self._write_timer)

    def data_received(self, data: bytes) -> None:
        """Take what the client sends."""
        super().data_received(data)
        if self.conn.their_state not in (h11.IDLE, h11.SEND_BODY):  # the request is whole
            _cancel(self._request_timer)
            self._request_timer = None
        elif self._request_timer is None:
            self._request_timer = self.loop.call_later(_REQUEST_SECONDS, self._give_up, "request")

    def pause_writing(self) -> None:
        """The client does not take what is written."""
        super().pause_writing()
        self._write_timer = self.loop.call_later(_WRITE_SECONDS, self._give_up, "answer")

    def resume_writing(self) -> None:
        """It does again."""
        super().resume_writing()
        _cancel(self._write_timer)

    def _give_up(self, what: str) -> None:
        log.info("admin_connection_given_up", client=self.client[0] if self.client else "", slow=what)
        self.transport.abort()


def _cancel(timer: asyncio.TimerHandle | None) -> None:
    if timer is not None:
        timer.cancel()
