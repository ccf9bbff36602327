"""What the transforms cost, without Kafka: batches of 1 KiB JSON, one thread. `python -m bench.transforms`."""

from __future__ import annotations

import os
import platform
import re
import sys
import time
from statistics import median
from typing import TYPE_CHECKING, Any

import orjson

from connector import SinkContext
from connector.plugins.function import make_transform
from connector.testing import make_batch
from transforms.filter import FilterSettings, FilterTransform
from transforms.mask import MaskSettings, MaskTransform
from transforms.select import SelectSettings, SelectTransform

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from connector import Batch

ROWS = 5000
ROUNDS = 7
BYTES = 1024


def main() -> int:
    """Print a table for docs/benchmarks.md."""
    print(f"{os.cpu_count()} cores, Python {platform.python_version()}, {ROWS} records of {BYTES} B a batch\n")
    raw = [_value(number) for number in range(ROWS)]
    batch = make_batch(*raw, decoded={"value": [orjson.loads(each) for each in raw]})
    print("| what | k records/s |\n|---|---|")
    for name, call in _calls(raw, batch):
        times = []
        for _ in range(ROUNDS):
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
        print(f"| {name} | {ROWS / median(times) / 1000:.0f} |", flush=True)
    return 0


def _value(number: int) -> bytes:
    value: dict[str, Any] = {
        "id": number,
        "status": "paid" if number % 2 else "open",
        "user": {"name": "Ada", "email": f"{number}@example.org", "address": {"city": "Berlin", "zip": "10115"}},
        "lines": [{"sku": f"s-{line}", "price": line * 1.5, "quantity": line} for line in range(8)],
        "note": "",
    }
    value["note"] = "x" * (BYTES - len(orjson.dumps(value)))
    return orjson.dumps(value)


def _calls(raw: list[bytes], batch: Batch) -> Iterator[tuple[str, Callable[[], object]]]:
    yield "decode `json`", lambda: [orjson.loads(each) for each in raw]
    pattern = re.compile("paid|sent").fullmatch
    values = batch.column("value")
    yield "a regular expression alone", lambda: [n for n, value in enumerate(values) if pattern(value["status"])]
    for expression in (
        "value.status == 'paid'",
        "matches(value.status, 'paid|sent')",
        "value.status == 'paid' && value.user.address.city != 'Bonn'",
        "value.lines[?price > `10`]",
    ):
        yield f"filter `{expression}`", _applied(FilterTransform, FilterSettings(expression=expression), batch)
    for expression in ("value.user", "{id: value.id, name: value.user.name, total: sum(value.lines[].price)}"):
        made = SelectSettings.model_validate({"expression": expression})
        yield f"select `{expression}`", _applied(SelectTransform, made, batch)
    for fields in (("value.user.email",), ("value.user.email", "value.lines.sku", "key")):
        for key in (None, "0123456789abcdef"):
            mask = MaskSettings.model_validate({"fields": fields, "hash_key": key})
            name = f"mask `{','.join(fields)}`{', hashed' if key else ''}"
            yield name, _applied(MaskTransform, mask, batch)
    function = make_transform("keep", lambda record: record["value"]["status"] == "paid")
    yield "a function that compares a field", _applied(function, function.settings_type(), batch)


def _applied(transform: Callable[..., Any], settings: object, batch: Batch) -> Callable[[], object]:
    made = transform(settings, SinkContext("bench"))
    made.open()
    return lambda: made.apply(batch)


if __name__ == "__main__":
    sys.exit(main())
