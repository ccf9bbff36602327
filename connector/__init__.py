"""Sluiceway's plugin API. What is in `__all__` is public and stays compatible; a test pins it."""

from connector.api.batch import Batch, BatchMetadata
from connector.api.errors import (
    AuthenticationError,
    ConfigError,
    ConnectorError,
    ExitCode,
    FatalError,
    FencedError,
    InvariantError,
    PoisonError,
    RefusedError,
    TransientError,
    UnreachableError,
)
from connector.api.event import CloseReason, Event, Input, InputClosed, Stop, StopCause
from connector.api.record import Message
from connector.api.settings import Duration, Field, Secret, Settings, Size
from connector.api.sink import LaneInfo, Sink, SinkContext, StoredPosition
from connector.api.types import Epoch, LaneId, Offset, PartitionId

__version__ = "0.1.0"

__all__ = [
    "AuthenticationError",
    "Batch",
    "BatchMetadata",
    "CloseReason",
    "ConfigError",
    "ConnectorError",
    "Duration",
    "Epoch",
    "Event",
    "ExitCode",
    "FatalError",
    "FencedError",
    "Field",
    "Input",
    "InputClosed",
    "InvariantError",
    "LaneId",
    "LaneInfo",
    "Message",
    "Offset",
    "PartitionId",
    "PoisonError",
    "RefusedError",
    "Secret",
    "Settings",
    "Sink",
    "SinkContext",
    "Size",
    "Stop",
    "StopCause",
    "StoredPosition",
    "TransientError",
    "UnreachableError",
]
