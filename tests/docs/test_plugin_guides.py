"""The code in the guides is what a plugin author copies: it runs as a file of the plugin directory."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Message

from connector import Batch, BatchMetadata, Epoch, LaneId, Offset, RecordErrors, SinkContext
from connector.plugins.loader import SINK, TRANSFORM, Plugins
from connector.runtime.params import Params
from connector.testing import Record, make_batch
from transforms.expression import Expression, is_true
from transforms.mask import parse_path

if TYPE_CHECKING:
    from connector.plugins.loader import Kind

GUIDES = Path(__file__).parents[2] / "docs" / "guides"


def load_example(guide: str, kind: Kind[Any], directory: Path) -> type[Any]:
    text = (GUIDES / guide).read_text(encoding="utf-8")
    found = re.search(r"```python\n(.*?)```", text, re.DOTALL)
    assert found is not None
    (directory / "example.py").write_text(found[1])
    return Plugins(directory).load(kind, "example")


def batch_of(*values: Any) -> Batch:
    messages = [Message(topic="t", partition=0, offset=n, value=b"x") for n in range(len(values))]
    metadata = BatchMetadata(LaneId(1), Epoch(1), 0, "t", 0, Offset(0), Offset(len(values)))
    return Batch(metadata, messages, decoded={"value": list(values)})


def test_the_transform_of_the_guide_masks_and_names_what_it_cannot(tmp_path: Path) -> None:
    example = load_example("write-a-transform.md", TRANSFORM, tmp_path)
    transform = example(example.settings_type(fields=("iban",)), SinkContext("g"))
    assert transform.apply(batch_of({"iban": "DE1", "n": 1}, None, {})).column("value") == [
        {"iban": "***", "n": 1},
        None,
        {},
    ]
    with pytest.raises(RecordErrors) as refused:
        transform.apply(batch_of({}, "text"))
    assert list(refused.value.errors) == [1]


def test_the_function_of_the_guide_runs_as_a_file_of_the_directory(tmp_path: Path) -> None:
    blocks = re.findall(r"```python\n(.*?)```", (GUIDES / "write-a-transform.md").read_text("utf-8"), re.DOTALL)
    (tmp_path / "my_rules.py").write_text(blocks[1])
    keep = Plugins(tmp_path).load_transform("my_rules:keep")
    transform = keep(keep.settings_type(), SinkContext("g"))
    transform.open()
    assert transform.apply(batch_of({"a": 1}, {"test": True})).column("value") == [{"a": 1, "read_from": "t/0"}]


def test_the_sink_of_the_guide_takes_parameters_and_falls_back_to_defaults(tmp_path: Path) -> None:
    example = load_example("runtime-parameters.md", SINK, tmp_path)
    sink = example(example.settings_type(), SinkContext("g"))
    params = Params(example.params_type, None)
    sink.open()
    sink.on_event(params.set("pause", "500ms"))
    assert sink._tuning.pause == 0.5
    sink.on_event(params.delete("pause"))
    assert sink._tuning.pause == 0


def test_each_expression_of_the_guide_is_true_for_the_record_that_it_shows() -> None:
    text = (GUIDES / "transforms.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```json\n(.*?)```", text, re.DOTALL)
    record = json.loads(block)
    headers = [(name, content.encode()) for name, content in record["headers"].items()]
    batch = make_batch(Record(b"", record["key"].encode(), headers), decoded={"value": [record["value"]]})
    (seen,) = Expression("@").search(batch)
    assert seen.keys() == record.keys()
    (lines,) = re.findall(r"```jmespath\n(.*?)\n```", text, re.DOTALL)
    for line in lines.splitlines():
        expression, _, _ = line.partition("   ")
        assert is_true(Expression(expression).search(batch)[0]), expression


def test_each_path_of_the_guide_is_one() -> None:
    text = (GUIDES / "transforms.md").read_text(encoding="utf-8")
    table = text.partition("| path | hides |")[2].partition("\n\n")[0]
    paths = [path for row in re.findall(r"^\| (`.*?`) \|", table, re.MULTILINE) for path in re.findall(r"`(.+?)`", row)]
    assert len(paths) >= 9
    for path in paths:
        parse_path(path)
