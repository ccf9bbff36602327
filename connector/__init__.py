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
    RecordErrors,
    RefusedError,
    TransientError,
    UnreachableError,
)
from connector.api.event import (
    CloseReason,
    Error,
    Event,
    Input,
    InputClosed,
    InputRecovered,
    JsonValue,
    NodeFailed,
    NodeRestarted,
    ParamDeleted,
    ParamUpdate,
    Reload,
    Stop,
    StopCause,
)
from connector.api.json_values import json_default
from connector.api.record import Message
from connector.api.settings import Duration, Field, Secret, Settings, Size
from connector.api.sink import GroupCommit, LaneInfo, Sink, SinkContext, StoredPosition
from connector.api.transform import Transform
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
    "Error",
    "Event",
    "ExitCode",
    "FatalError",
    "FencedError",
    "Field",
    "GroupCommit",
    "Input",
    "InputClosed",
    "InputRecovered",
    "InvariantError",
    "JsonValue",
    "LaneId",
    "LaneInfo",
    "Message",
    "NodeFailed",
    "NodeRestarted",
    "Offset",
    "ParamDeleted",
    "ParamUpdate",
    "PartitionId",
    "PoisonError",
    "RecordErrors",
    "RefusedError",
    "Reload",
    "Secret",
    "Settings",
    "Sink",
    "SinkContext",
    "Size",
    "Stop",
    "StopCause",
    "StoredPosition",
    "Transform",
    "TransientError",
    "UnreachableError",
    "json_default",
]
