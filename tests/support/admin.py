"""For tests of the admin endpoint: verbs that only note what was asked, and what an answer and the log have to be."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from connector.admin.verbs import Change
from connector.telemetry.status import RunState, Status

if TYPE_CHECKING:
    from collections.abc import Mapping

    import httpx
    import pytest

    from connector.api.intents import Scope

TOKEN = "verb-token-81-of-the-tests"
STATUS = Status(RunState.RUNNING, is_ready=True, reason="", group_id="g", group_protocol="consumer", epoch=1)


@dataclass
class FakeVerbs:
    """Notes what was called, on which thread; raises `failure`, waits for `gate`."""

    calls: list[tuple[Any, ...]] = field(default_factory=list)
    threads: dict[str, str] = field(default_factory=dict)
    failure: Exception | None = None
    gate: threading.Event | None = None
    is_change: bool = True

    def reset(self) -> None:
        """Be as new, for the next test."""
        self.calls.clear()
        self.threads.clear()
        self.failure, self.gate, self.is_change = None, None, True

    def _note(self, *call: Any) -> Change:
        self.calls.append(call)
        self.threads[call[0]] = threading.current_thread().name
        if self.gate is not None:
            assert self.gate.wait(10)
        if self.failure is not None:
            raise self.failure
        return Change("subject", {"rate": 5}, {"rate": 6}, is_change=self.is_change)

    def params(self) -> Mapping[str, Any]:
        self._note("params")
        return {"rate": 5, "api_key": "***"}

    def set_param(self, key: str, value: Any) -> Change:
        return self._note("set_param", key, value)

    def delete_param(self, key: str) -> Change:
        return self._note("delete_param", key)

    def reload(self, operator_id: str) -> Change:
        return self._note("reload", operator_id)

    def pause(self, scope: Scope) -> Change:
        return self._note("pause", scope)

    def resume(self, scope: Scope) -> Change:
        return self._note("resume", scope)

    def stop(self) -> Change:
        return self._note("stop")

    def set_log_level(self, level: str) -> Change:
        return self._note("set_log_level", level)


def is_problem(answer: httpx.Response, status: int, title: str, detail: str, path: str) -> None:
    """Check that it is an error as RFC 9457 has it."""
    assert (answer.status_code, answer.headers["content-type"]) == (status, "application/problem+json")
    document = answer.json()
    assert list(document) == ["type", "title", "status", "detail", "instance"]
    assert (document["type"], document["status"], document["instance"]) == ("about:blank", status, path)
    assert title in document["title"]
    assert detail in document["detail"]


def verb_lines(caplog: pytest.LogCaptureFixture, event: str = "admin_verb_done") -> list[dict[str, Any]]:
    """Return the fields of each such line."""
    found = [record.msg for record in caplog.records if isinstance(record.msg, dict)]
    return [{key: value for key, value in msg.items() if key != "timestamp"} for msg in found if msg["event"] == event]
