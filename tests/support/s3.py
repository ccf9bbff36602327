"""A store that speaks the protocol of S3, for tests: moto in a process of its own, whose answers a test may change.

Requests are real HTTP on a loopback port. What it stores lives in the memory of its process.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import boto3
import httpx
from botocore.config import Config

from tests.support.process import ServerFailedError, end_process, free_ports, start_process, tail, wait_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

_FAULTS = "/-/faults"


class S3Server:
    """The running store; `bucket` makes one in it."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.client: Any = boto3.client(
            "s3",
            endpoint_url=url,
            region_name="us-east-1",
            aws_access_key_id="tester",
            aws_secret_access_key="tester-secret",
            config=Config(s3={"addressing_style": "path"}),
        )

    def bucket(self) -> str:
        """Make a bucket with a name of its own."""
        name = f"bucket-{time.monotonic_ns()}"
        self.client.create_bucket(Bucket=name)
        return name

    def keys(self, bucket: str) -> list[str]:
        """Return the keys of what is stored, sorted."""
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=bucket)
        return sorted(each["Key"] for page in pages for each in page.get("Contents", []))

    def read(self, bucket: str, key: str) -> bytes:
        """Return what is stored under a key."""
        data: bytes = self.client.get_object(Bucket=bucket, Key=key)["Body"].read()
        return data

    def objects(self, bucket: str) -> dict[str, bytes]:
        """Return what is stored, by key."""
        return {key: self.read(bucket, key) for key in self.keys(bucket)}

    @contextlib.contextmanager
    def answering(self, status: int, code: str, *, method: str = "") -> Iterator[None]:
        """Answer every request, or those of one method, with this instead."""
        self._set({"status": status, "code": code, "method": method})
        try:
            yield
        finally:
            self._set({})

    @contextlib.contextmanager
    def hanging(self, method: str) -> Iterator[Callable[[], int]]:
        """Take no more than the first half of a body of requests of a method; yields how many hang."""
        self._set({"hang": True, "method": method})
        try:
            yield lambda: int(httpx.get(self.url + _FAULTS, timeout=10).json()["hanging"])
        finally:
            self._set({})

    @contextlib.contextmanager
    def knowing_its_users(self) -> Iterator[None]:
        """Refuse the credentials of everybody it does not know, which is everybody."""
        httpx.post(f"{self.url}/moto-api/reset-auth", content="0", timeout=10).raise_for_status()
        try:
            yield
        finally:
            httpx.post(f"{self.url}/moto-api/reset-auth", content="inf", timeout=10).raise_for_status()

    def _set(self, faults: dict[str, object]) -> None:
        httpx.post(self.url + _FAULTS, json=faults, timeout=10).raise_for_status()


@contextlib.contextmanager
def running_s3(folder: Path) -> Iterator[S3Server]:
    """Run a store for as long as the context lasts; its log is in the folder."""
    (port,), log = free_ports(1), folder / "s3.log"
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    process = start_process([sys.executable, "-m", "tests.support.s3", str(port)], log=log, environment=environment)
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        if process.poll() is not None:
            raise ServerFailedError(f"the S3 server ended: {tail(log)}")
        with contextlib.suppress(httpx.HTTPError):
            return httpx.get(url + _FAULTS, timeout=2).status_code == 200
        return False

    try:
        wait_until(answers, timeout=60, what="the S3 server answers")
        yield S3Server(url)
    finally:
        end_process(process)


class _Faulty:
    """Stands before the store, and answers in its place while it has a fault."""

    def __init__(self, application: Any) -> None:
        self._application = application
        self._faults: dict[str, Any] = {}
        self._hanging = 0
        self._released = threading.Event()

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        method, faults = environ["REQUEST_METHOD"], self._faults
        if environ["PATH_INFO"] == _FAULTS:
            return self._configure(environ, start_response)
        if faults.get("method") in ("", method) and faults.get("hang"):
            self._hanging += 1
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0) // 2)
            self._released.wait(60)
            self._hanging -= 1
        elif faults.get("method") in ("", method) and "status" in faults:
            environ["wsgi.input"].read(int(environ.get("CONTENT_LENGTH") or 0))
            body = f"<Error><Code>{faults['code']}</Code><Message>as the test wants it</Message></Error>".encode()
            start_response(f"{faults['status']} Fault", [("Content-Type", "application/xml")])
            return [body]
        answer: Iterable[bytes] = self._application(environ, start_response)
        return answer

    def _configure(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        if environ["REQUEST_METHOD"] == "POST":
            self._released.set()
            self._released = threading.Event()
            self._faults = json.loads(environ["wsgi.input"].read(int(environ["CONTENT_LENGTH"])))
        start_response("200 OK", [("Content-Type", "application/json")])
        return [json.dumps({"hanging": self._hanging}).encode()]


def _serve(port: int) -> None:
    from moto.moto_server.werkzeug_app import DomainDispatcherApplication, create_backend_app
    from werkzeug.serving import run_simple

    application = _Faulty(DomainDispatcherApplication(create_backend_app))
    run_simple("127.0.0.1", port, application, threaded=True)


if __name__ == "__main__":
    _serve(int(sys.argv[1]))
