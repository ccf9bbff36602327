"""The guide of the admin API has every request, every status that the code answers with, and the bounds in force."""

from __future__ import annotations

import re
from pathlib import Path

from starlette.routing import Route

from connector.admin import arguments, connections, server, verbs
from connector.admin.server import AdminServer
from connector.config.preflight import _SAFE_TOKEN_CHARACTERS
from connector.telemetry.metrics import Metrics
from tests.support.admin import STATUS

ROOT = Path(__file__).parents[2]
GUIDE = (ROOT / "docs/guides/admin-api.md").read_text(encoding="utf-8")


def test_every_request_is_in_a_table_and_no_other() -> None:
    app = AdminServer("127.0.0.1:0", status=lambda: STATUS, metrics=Metrics(), config_view=dict[str, str])._app
    routes = [route for route in app.routes if isinstance(route, Route)]
    served = {f"{method} {route.path}" for route in routes for method in (route.methods or ()) if method != "HEAD"}
    told = {
        request
        for line in GUIDE.splitlines()
        if line.startswith("| `")
        for request in re.findall(r"`((?:GET|POST|PUT|DELETE) [^` ]+)`", line)
    }
    assert told == served


def test_every_status_that_an_error_is_answered_with_is_in_the_table() -> None:
    texts = [path.read_text(encoding="utf-8") for path in (ROOT / "connector/admin").glob("*.py")]
    answered = {
        code
        for text in texts
        for code in re.findall(r"(?:RequestRefusedError\(|request, |^ +)(4\d\d|5\d\d)\b", text, re.M)
    }
    told = {code for row in re.findall(r"^\| (\d{3}(?:, \d{3})*) \|", GUIDE, re.M) for code in row.split(", ")}
    # Answered for others: 405 by the router, 422 and 503 for errors of the verbs.
    assert answered | {"405", "422", "503"} == told


def test_the_bounds_are_those_in_force() -> None:
    assert f"{connections._MOST_CONNECTIONS} connections" in GUIDE
    assert connections._REQUEST_SECONDS == connections._WRITE_SECONDS
    assert f"{connections._REQUEST_SECONDS:g}s for a whole request, and for taking an answer" in GUIDE
    assert f"{server._KEEP_ALIVE_SECONDS}s between two requests" in GUIDE
    assert (
        f"did not come within {arguments._BODY_SECONDS:g}s, or is larger than {arguments._MOST_BYTES >> 20} MiB"
        in GUIDE
    )
    assert f"takes longer than {verbs._SLOW_SECONDS:g}s" in GUIDE
    assert f"At least {_SAFE_TOKEN_CHARACTERS} characters" in GUIDE
