"""`DrainBarrier`: a revocation waits on it until everybody who holds work of the leaving lanes has put it down.

One party for each lane, which its owning pipeline counts down, and a last one for the controller. The source's thread
waits; nobody else does. The controller attaches what is safe to commit, again and again while the drain goes on, so
that at the deadline the newest durable positions are there and nothing that came later (INV-5).
"""

from __future__ import annotations

import threading
from types import MappingProxyType
from typing import TYPE_CHECKING

from connector.api.errors import InvariantError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from connector.api.types import Offset, PartitionId


class DrainBarrier:
    """A count-down latch with the positions to commit.

    Owners and the controller call `arrive`, once for each party; the controller alone calls `attach`; the source's
    thread alone calls `wait` and `settle`. Zero parties is a barrier that is already done (lost partitions).
    """

    def __init__(self, parties: int) -> None:
        # Guards what follows but for _settled; taken by owners, the controller and the source; leaf lock.
        self._changed = threading.Condition(threading.Lock())
        self._remaining = parties
        self._not_drained = 0
        self._sealed = False
        self._settled = parties == 0
        self._positions: Mapping[PartitionId, Offset] = MappingProxyType({})

    @property
    def remaining(self) -> int:
        """Parties that have not arrived."""
        return self._remaining

    @property
    def not_drained(self) -> int:
        """Parties that have arrived with work that they could not finish."""
        return self._not_drained

    @property
    def is_settled(self) -> bool:
        """Whether the source has committed, or given up, and let the rebalance go on."""
        return self._settled

    def arrive(self, parties: int = 1, *, is_drained: bool = True) -> None:
        """Count down. Not drained is a lane with work that could not be finished; nobody waits for it any longer.

        Raises:
            InvariantError: More arrivals than parties (INV-5): somebody arrived twice.
        """
        with self._changed:
            if parties > self._remaining:
                raise InvariantError(
                    f"INV-5: {parties} arrival(s) at a drain barrier that waits for {self._remaining}; an owner "
                    "arrived twice. This is a bug in Sluiceway; please report it."
                )
            self._remaining -= parties
            self._not_drained += 0 if is_drained else parties
            if self._remaining == 0:
                self._changed.notify_all()

    def attach(self, positions: Mapping[PartitionId, Offset]) -> bool:
        """Replace the positions to commit; false when the source has stopped waiting and nothing changes any more."""
        with self._changed:
            if not self._sealed:
                self._positions = MappingProxyType(dict(positions))
            return not self._sealed

    def wait(self, timeout: float) -> bool:
        """Wait up to `timeout` seconds; true when all have arrived. Afterwards the positions stand still."""
        with self._changed:
            done = self._changed.wait_for(lambda: self._remaining == 0, timeout)
            self._sealed = True
            return done

    @property
    def positions(self) -> Mapping[PartitionId, Offset]:
        """What to commit: final once `wait` has returned."""
        return self._positions

    def settle(self) -> None:
        """The source is done with this revocation: the lanes are committed as far as they go, fenced and dropped."""
        self._settled = True
