"""What plugins import stays: adding a name is a decision, taking one away breaks somebody."""

from __future__ import annotations

import connector
from connector import ConnectorError, ExitCode, FatalError
from connector.api import errors

PUBLIC = {
    "AuthenticationError", "Batch", "BatchMetadata", "CloseReason", "ConfigError", "ConnectorError", "Duration",
    "Epoch", "Error", "Event", "ExitCode", "FatalError", "FencedError", "Field", "GroupCommit", "Input", "InputClosed",
    "InputRecovered", "InvariantError", "JsonValue", "LaneId", "LaneInfo", "Message", "NodeFailed",
    "NodeRestarted", "Offset", "ParamDeleted", "ParamUpdate", "PartitionId", "PoisonError", "RecordErrors",
    "RefusedError", "Reload", "Secret", "Settings", "Sink", "SinkContext", "Size", "Stop", "StopCause",
    "StoredPosition", "Transform", "TransientError", "UnreachableError", "json_default",
}  # fmt: skip


def test_the_public_names_are_exactly_these() -> None:
    assert set(connector.__all__) == PUBLIC
    assert connector.__all__ == sorted(connector.__all__)
    assert all(hasattr(connector, name) for name in PUBLIC)


def test_exit_codes_are_stable() -> None:
    assert {code.name: code.value for code in ExitCode} == {
        "COMPLETED": 0,
        "CONFIGURATION": 2,
        "AUTHENTICATION": 3,
        "FENCED": 4,
        "POISON": 5,
        "DEADLINE": 6,
        "SINK": 7,
        "UNREACHABLE": 8,
        "BUG": 70,
    }


def test_every_error_is_a_connector_error_and_every_fatal_one_ends_with_a_failure() -> None:
    found = [error for error in vars(errors).values() if isinstance(error, type) and issubclass(error, Exception)]
    assert all(issubclass(error, ConnectorError) for error in found)
    assert all(error.exit_code != ExitCode.COMPLETED for error in found if issubclass(error, FatalError))
