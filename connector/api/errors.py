"""Every error the connector knows, by what happens next, and the exit code of each fatal one.

The class decides: a `TransientError` is retried, a `PoisonError` goes by `CONNECTOR_ON_POISON`, a `FatalError` drains
and ends the process with its `exit_code`. The class name is the metric label. Sinks raise the first three.
"""

from __future__ import annotations

from enum import IntEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


class ExitCode(IntEnum):
    """Exit codes of `connector run`; documented and stable."""

    COMPLETED = 0  # everything taken was delivered and committed
    CONFIGURATION = 2
    AUTHENTICATION = 3
    FENCED = 4
    POISON = 5
    DEADLINE = 6  # shutdown or drain deadline passed, work left uncommitted
    SINK = 7
    UNREACHABLE = 8
    BUG = 70


class ConnectorError(Exception):
    """Base of all errors that the connector raises itself."""


class TransientError(ConnectorError):
    """May work later: destination down, timeout, lock. Retried with backoff, without a limit by default.

    Args:
        message: What does not work.
        retry_after: Seconds that the other side asks to wait; the next try is not before, unless that is more than five
            minutes away.
    """

    def __init__(self, message: str, *, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class PoisonError(ConnectorError):
    """A record that cannot be written however often it is tried: constraint violation, undecodable bytes, too large."""


class RecordErrors(ConnectorError):  # noqa: N818 - several errors
    """Some records of a batch were not written; all others are durable. A sink that knows which ones raises this.

    Not a sink that holds positions: the position that it stores with the others would pass what is not written.

    Args:
        errors: By index in the batch. Records with a `TransientError` are tried again, alone; one with a `PoisonError`
            goes by `CONNECTOR_ON_POISON`.
    """

    def __init__(self, errors: Mapping[int, TransientError | PoisonError]) -> None:
        super().__init__(f"{len(errors)} record(s) were not written, the first because: {next(iter(errors.values()))}")
        self.errors = dict(errors)


class RefusedError(ConnectorError):
    """A sink with transactional positions refused a write, because another owner has claimed the lane since."""


class FatalError(ConnectorError):
    """Ends the process: drain what can be drained, then exit with `exit_code`."""

    exit_code = ExitCode.SINK


class ConfigError(FatalError):
    """A setting that has to be changed before anything can run."""

    exit_code = ExitCode.CONFIGURATION


class AuthenticationError(FatalError):
    """The cluster, the schema registry or the destination refused the credentials, or the rights are missing."""

    exit_code = ExitCode.AUTHENTICATION


class FencedError(FatalError):
    """The Kafka client is fenced or has failed for good, and will never deliver again."""

    exit_code = ExitCode.FENCED


class PoisonFatalError(FatalError):
    """A poison record under `CONNECTOR_ON_POISON=fail`."""

    exit_code = ExitCode.POISON


class UnreachableError(FatalError):
    """No cluster within `CONNECTOR_STARTUP_TIMEOUT`."""

    exit_code = ExitCode.UNREACHABLE


class InvariantError(FatalError):
    """Our own bug: a promise of docs/invariants.md is broken. Please report it with the text of the error."""

    exit_code = ExitCode.BUG
