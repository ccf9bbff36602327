"""The virtual clock passes no time by itself and never goes back."""

from __future__ import annotations

import pytest

from connector.testing import VirtualClock


def test_time_passes_only_when_it_is_told_to() -> None:
    clock = VirtualClock(10.0)
    assert clock() == clock() == 10.0
    clock.advance(2.5)
    assert clock() == 12.5


def test_time_never_goes_back() -> None:
    with pytest.raises(ValueError, match="cannot be advanced by -1 s"):
        VirtualClock().advance(-1)
