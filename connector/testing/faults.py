"""`FaultSwitch`: a fault in the middle of a batch, whatever sink reads it, that a test switches off."""

from __future__ import annotations

import os
import signal
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NoReturn

from connector.api.errors import TransientError

if TYPE_CHECKING:
    from collections.abc import Callable

    from connector.api.batch import Batch
    from connector.api.record import Message


def fail_transiently() -> NoReturn:
    """Raise what a destination that is down raises."""
    raise TransientError("a fault that the test has switched on")


def kill_this_process() -> None:
    """Die at once, as from a crash or a kill: nothing is flushed, closed or rolled back by this process."""
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(slots=True)
class FaultSwitch:
    """While `is_on`, reading the value of one record does `action`, from whatever thread reads it."""

    action: Callable[[], None] = fail_transiently
    is_on: bool = True

    def put_into(self, batch: Batch, index: int) -> Batch:
        """Return the batch with the fault at record `index`: those before it can be read."""
        messages = list(batch.messages)
        messages[index] = _FaultyMessage(messages[index], self)
        return replace(batch, messages=messages)


class _FaultyMessage:
    """A message that the switch may fail. All but `value` is the real one's."""

    def __init__(self, message: Message, switch: FaultSwitch) -> None:
        self._message = message
        self._switch = switch

    def value(self) -> bytes | None:
        if self._switch.is_on:
            self._switch.action()
        return self._message.value()

    def __len__(self) -> int:
        return len(self._message)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._message, name)
