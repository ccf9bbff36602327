"""The hand-written pages match the code: names, files, links, exit codes, invariants, and the example of the guide."""

from __future__ import annotations

import ast
import json
import re
import tempfile
import threading
import tomllib
from collections import defaultdict
from functools import cache
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pytest
import typer

import connector
import connector.testing
from connector import ConfigError, ExitCode, PoisonError, Secret, SinkContext, TransientError
from connector.cli import app
from connector.config.display import describe_default
from connector.config.environment import PREFIX
from connector.config.later import LATER_NAMES
from connector.config.load import SINK_PREFIX, TRANSFORM_PREFIX, transform_prefix
from connector.config.preflight import KAFKA_PREFIX, property_name
from connector.config.settings import ConnectorSettings, environment_name
from connector.config.transform_list import parse_transforms
from connector.plugins.loader import SINK, TRANSFORM, Plugins
from connector.source.client_config import probe_client, refusal
from connector.telemetry.metrics import Metrics
from connector.testing import make_batch

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from connector import Settings, Sink

ROOT = Path(__file__).parents[2]
PACKAGES = ("connector", "sinks", "transforms")
PAGES = sorted(
    path
    for pattern in (
        "*.md",
        "changelog.d/*.md",
        "docs/**/*.md",
        "tests/**/*.md",
        "deploy/Dockerfile",
        "docker-compose.yml",
    )
    for path in ROOT.glob(pattern)
    if path != ROOT / "docs/reference/settings.md"  # generated, and held by a test of its own
)
GUIDE = ROOT / "docs/guides/write-a-sink.md"
every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))


def read(path: str) -> str:
    return (ROOT / path).read_text(encoding="utf-8")


def rows(text: str) -> list[list[str]]:
    """Return the cells of every table row, without the marks of code."""
    return [
        [cell.strip().strip("`") for cell in line.strip().strip("|").split("|")]
        for line in text.splitlines()
        if line.startswith("| ")
    ]


def code_blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)


def source_texts() -> Iterator[tuple[Path, str]]:
    for package in PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            yield path, path.read_text(encoding="utf-8")


# Invariants.


@cache
def marked_tests() -> Mapping[int, frozenset[str]]:
    """Return the tests that carry each number, as `tests/file.py::name`."""
    found: dict[int, set[str]] = defaultdict(set)
    for path in sorted((ROOT / "tests").rglob("test_*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.ClassDef):
                for number in map(_invariant, node.decorator_list):
                    if number is not None:
                        found[number].add(f"{path.relative_to(ROOT)}::{node.name}")
    return {number: frozenset(names) for number, names in found.items()}


def _invariant(decorator: ast.expr) -> int | None:
    match decorator:
        case ast.Call(func=ast.Attribute(attr="invariant"), args=[ast.Constant(value=int(number))]):
            return number
        case _:
            return None


def invariants() -> dict[int, str]:
    """Return the text of each invariant on the page."""
    parts = re.split(r"^## INV-(\d+):", read("docs/invariants.md"), flags=re.MULTILINE)[1:]
    return {int(number): text for number, text in zip(parts[::2], parts[1::2], strict=True)}


def test_the_page_numbers_the_invariants_without_gaps() -> None:
    assert list(invariants()) == list(range(1, len(invariants()) + 1))


@pytest.mark.parametrize("number", invariants())
def test_every_invariant_has_exceptions_a_mechanism_and_a_proof_that_exists(number: int) -> None:
    text = invariants()[number]
    assert all(f"- *{part}.*" in text for part in ("Exceptions", "Mechanism", "Proof"))
    proofs = re.findall(r"`(tests/[\w/]+\.py::\w+)`", text)
    assert proofs, f"INV-{number} names no test"
    assert set(proofs) <= marked_tests().get(number, frozenset())


def test_every_number_of_a_test_or_in_the_code_is_on_the_page() -> None:
    cited = {int(number) for _, text in source_texts() for number in re.findall(r"INV-(\d+)", text)}
    assert cited | set(marked_tests()) <= set(invariants())


def test_every_kip_that_the_code_cites_is_on_the_page() -> None:
    cited = {number for _, text in source_texts() for number in re.findall(r"KIP-\d+", text)}
    assert cited <= set(re.findall(r"^\| (KIP-\d+) \|", read("docs/kips.md"), re.MULTILINE))


def test_every_decision_is_listed_and_every_one_that_is_cited_exists() -> None:
    records = {path.name for path in (ROOT / "docs/adr").glob("[0-9]*.md")}
    assert set(re.findall(r"\]\((\d{4}-[\w-]+\.md)\)", read("docs/adr/README.md"))) == records
    texts = [text for _, text in source_texts()] + [page.read_text(encoding="utf-8") for page in PAGES]
    cited = {number for text in texts for number in re.findall(r"ADR-(\d{4})", text)}
    assert cited <= {name[:4] for name in records}


# Files and links.


def test_the_file_map_has_every_module_and_no_other() -> None:
    mapped = {row[0] for row in rows(read("docs/architecture.md")) if row[0].endswith(".py") and "/" in row[0]}
    modules = {str(path.relative_to(ROOT)) for path, text in source_texts() if not _is_docstring_alone(text)}
    assert mapped == modules


def _is_docstring_alone(text: str) -> bool:
    return all(isinstance(node, ast.Expr) for node in ast.parse(text).body)


@every_page
def test_every_file_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(r"`((?:connector|sinks|transforms|tests|docs)/[\w./-]*\.\w+)", page.read_text(encoding="utf-8"))
    missing = [name for name in named if not (ROOT / name).exists()]
    assert not missing


@cache
def members() -> Mapping[str, frozenset[str]]:
    """Return the methods and attributes of each class, by its name."""
    found: dict[str, set[str]] = defaultdict(set)
    for _, text in source_texts():
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.ClassDef):
                for part in ast.walk(node):
                    match part:
                        case ast.FunctionDef(name=name) | ast.AnnAssign(target=ast.Name(id=name)):
                            found[node.name].add(name)
                        case ast.Attribute(value=ast.Name(id="self"), attr=name, ctx=ast.Store()):
                            found[node.name].add(name)
    return {name: frozenset(names) for name, names in found.items()}


@every_page
def test_every_method_that_a_page_names_exists(page: Path) -> None:
    named = re.findall(r"`(_?[A-Z][a-z]\w+)\.(_?[a-z]\w+)`", page.read_text(encoding="utf-8"))
    assert not [f"{owner}.{name}" for owner, name in named if name not in members().get(owner, ())]


@every_page
def test_every_link_within_the_project_leads_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path) if path else page
        assert linked.exists(), f"{target} of {page.relative_to(ROOT)}"
        if anchor:
            assert anchor in _anchors(linked), f"{target} of {page.relative_to(ROOT)}"


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


# Names.


@cache
def settings() -> frozenset[str]:
    models: list[tuple[str, type[Settings]]] = [(PREFIX, ConnectorSettings), (SINK_PREFIX, guide_sink().settings_type)]
    models.append((transform_prefix("stars"), guide_transform_settings()))
    for each in Plugins().installed():
        if each.loaded is not None:
            prefix = SINK_PREFIX if each.kind is SINK else transform_prefix(each.name)
            models.append((prefix, each.loaded.settings_type))
    models += guide_transforms()
    names = {environment_name(name, prefix) for prefix, model in models for name in model.model_fields}
    return frozenset(names | LATER_NAMES.keys())


def guide_transforms() -> list[tuple[str, type[Settings]]]:
    """Return the transforms that run under names of their own on the page of the built-in ones."""
    text = (ROOT / "docs/guides/transforms.md").read_text(encoding="utf-8")
    choices = [
        choice for line in re.findall("^CONNECTOR_TRANSFORMS=(.*)$", text, re.M) for choice in parse_transforms(line)
    ]
    return [(transform_prefix(each.name), Plugins().load(TRANSFORM, each.plugin).settings_type) for each in choices]


def guide_transform_settings() -> type[Settings]:
    text = code_blocks(ROOT / "docs/guides/write-a-transform.md", "python")[0]
    with tempfile.TemporaryDirectory() as directory:
        Path(directory, "stars.py").write_text(text, encoding="utf-8")
        return Plugins(Path(directory)).load(TRANSFORM, "stars").settings_type


def is_setting(name: str) -> bool:
    if name.startswith("CONNECTOR_TEST_"):
        return name.removesuffix("_") == "CONNECTOR_TEST" or any(
            name in path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("*.py")
        )
    known = settings()
    if name.endswith("_"):  # as in CONNECTOR_SINK_* and CONNECTOR_KAFKA_<PROPERTY>
        return name.startswith((KAFKA_PREFIX, TRANSFORM_PREFIX)) or any(each.startswith(name) for each in known)
    for each in (name, name.removesuffix("_FILE")):
        if each in known:
            return True
        if each.startswith(KAFKA_PREFIX):
            dotted = property_name(each)
            if refusal(dotted) or not probe_client({dotted: ""}).is_unknown:
                return True
    return False


@every_page
def test_every_setting_that_a_page_names_exists(page: Path) -> None:
    named = set(re.findall(r"CONNECTOR_[A-Z0-9_]+", page.read_text(encoding="utf-8")))
    assert not [name for name in sorted(named) if not is_setting(name)]


@every_page
def test_every_metric_that_a_page_names_exists(page: Path) -> None:
    named = set(re.findall(r"`(connector_[a-z_]+)`", page.read_text(encoding="utf-8")))
    served = {family.name for family in Metrics().registry.collect()} | {"connector_info"}
    assert {name.removesuffix("_total") for name in named} - {"connector_positions"} <= served


def test_the_settings_of_the_readme_have_the_defaults_of_the_code() -> None:
    fields = {environment_name(name): field for name, field in ConnectorSettings.model_fields.items()}
    shown = {row[0]: row[1] for row in rows(read("README.md")) if row[0].startswith("CONNECTOR_")}
    assert len(shown) >= 15
    assert shown == {name: describe_default(fields[name]) for name in shown}


def test_the_exit_codes_of_the_readme_are_those_of_the_code() -> None:
    shown = [int(row[0]) for row in rows(read("README.md")) if row[0].isdecimal()]
    assert shown == sorted(ExitCode)


def test_the_sinks_of_the_readme_are_the_built_in_ones() -> None:
    built_in = {each.name for each in Plugins().installed() if each.kind is SINK and each.origin == "sluiceway"}
    text = read("README.md").partition("| sink | writes |")[2].partition("\n\n")[0]
    assert {row[0] for row in rows(text) if row[0].isalnum()} == built_in


def test_the_commands_of_the_readme_are_those_of_the_program() -> None:
    shown = {row[0] for row in rows(read("README.md")) if row[0].startswith("connector ")}
    assert {re.sub(r" [A-Z]+$", "", command) for command in shown} == set(commands("connector", app))


def commands(prefix: str, of: typer.Typer) -> Iterator[str]:
    """Yield every command, those of groups too, as it is typed."""
    for name, command in typer.main.get_command(of).commands.items():  # type: ignore[attr-defined]  # a group has them
        for each in getattr(command, "commands", [None]):
            yield f"{prefix} {name} {each}" if each else f"{prefix} {name}"


# The guide's sink.


@cache
def guide_module() -> ModuleType:
    text = code_blocks(GUIDE, "python")[0]
    module = ModuleType("webhook_sink")
    # Not with the future import of this file, which the reader's module does not have.
    exec(compile(text, str(GUIDE), "exec", dont_inherit=True), module.__dict__)
    return module


def guide_sink() -> type[Sink[Any]]:
    sink: type[Sink[Any]] = guide_module().WebhookSink
    return sink


class Receiver(BaseHTTPRequestHandler):
    """Answers with the next status of `answers` and keeps what was posted."""

    answers: list[int]
    posted: list[tuple[str | None, bytes]]

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.posted.append((self.headers["Authorization"], body))
        self.send_response(self.answers.pop(0))
        self.end_headers()

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, type[Receiver]]]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    handler = type("OneReceiver", (Receiver,), {"answers": [], "posted": []})
    with HTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}/", handler
        server.shutdown()
        thread.join()


def make_guide_sink(**fields: Any) -> Sink[Any]:
    sink = guide_sink()
    return sink(sink.settings_type.model_validate(fields), SinkContext(group_id="group"))


def test_the_sink_of_the_guide_posts_what_it_is_given(receiver: tuple[str, type[Receiver]]) -> None:
    url, handler = receiver
    handler.answers = [204]
    make_guide_sink(url=url, token=Secret("opensesame")).write(make_batch(b"a", b"", None))
    ((authorization, body),) = handler.posted
    assert authorization == "Bearer opensesame"
    assert json.loads(body) == [
        {"topic": "orders", "partition": 0, "offset": offset, "value": value}
        for offset, value in enumerate(("a", "", None))
    ]


@pytest.mark.parametrize(
    ("answer", "error"), [(503, TransientError), (429, TransientError), (413, PoisonError), (401, ConfigError)]
)
def test_the_sink_of_the_guide_gives_answers_the_class_that_it_says(
    receiver: tuple[str, type[Receiver]], answer: int, error: type[Exception]
) -> None:
    url, handler = receiver
    handler.answers = [answer]
    with pytest.raises(error, match=str(answer)):
        make_guide_sink(url=url).write(make_batch(b"a"))


def test_the_entry_point_of_the_guide_is_of_the_group_that_is_searched() -> None:
    (text,) = code_blocks(GUIDE, "toml")
    (entry,) = tomllib.loads(text)["project"]["entry-points"][SINK.group].values()
    module, _, name = entry.partition(":")
    assert (module, name) == (guide_module().__name__, guide_sink().__name__)


@pytest.mark.parametrize("guide", ["write-a-sink", "write-a-transform", "runtime-parameters"])
def test_the_guides_to_plugins_import_public_names_only(guide: str) -> None:
    public = {"connector": connector.__all__, "connector.testing": connector.testing.__all__}
    for block in code_blocks(ROOT / f"docs/guides/{guide}.md", "python"):
        for node in ast.walk(ast.parse(block)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] == "connector":
                assert {name.name for name in node.names} <= set(public.get(node.module or "", ()))
