"""Ids and numbers of the control plane. All are ours, none is Kafka's partition number."""

from __future__ import annotations

from typing import NewType

LaneId = NewType("LaneId", int)  # one assigned partition for one assignment; minted by the source, never used again
PartitionId = NewType("PartitionId", int)  # key of a lane's checkpoint; minted with the lane
Epoch = NewType("Epoch", int)  # + 1 at every LanesAssigned
Offset = NewType("Offset", int)  # of a record, or, named `position`, of the next record to read
