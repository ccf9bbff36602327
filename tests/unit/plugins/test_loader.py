"""Sinks and transforms are found by entry point or as files; a broken one says the way out and breaks nothing else."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

import pytest

from connector import SinkContext
from connector.api.errors import ConfigError
from connector.plugins.loader import SINK, TRANSFORM, Plugin, Plugins
from connector.testing import make_batch

if TYPE_CHECKING:
    from pathlib import Path

    from connector.plugins.loader import Kind

BUILT_IN = {"file", "http", "kafka", "null", "parquet", "postgres", "sqlite", "stdout"}
GOOD = "from connector import Sink\nclass Good(Sink):\n    pass\n"


class Installer:
    """Installs distributions, as a package manager would leave them, into a directory on the import path."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def install(
        self,
        distribution: str,
        name: str,
        code: str,
        *,
        target: str = "Good",
        requires: str = "",
        group: str = "connector.sinks",
    ) -> None:
        module = f"{distribution.replace('-', '_')}_module"
        (self._directory / f"{module}.py").write_text(code)
        info = self._directory / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n{requires}")
        (info / "entry_points.txt").write_text(f"[{group}]\n{name} = {module}:{target}\n")


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Installer:
    directory = tmp_path / "site-packages"
    directory.mkdir()
    monkeypatch.syspath_prepend(str(directory))
    return Installer(directory)


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    made = tmp_path / "plugins"
    made.mkdir()
    return made


def refused(name: str, kind: Kind[Any] = SINK, plugins: Plugins | None = None) -> str:
    with pytest.raises(ConfigError) as error:
        (plugins or Plugins()).load(kind, name)
    return str(error.value)


def listed(plugins: Plugins | None = None) -> dict[str, Plugin[Any]]:
    return {each.name: each for each in (plugins or Plugins()).installed()}


def test_every_built_in_sink_is_found_and_can_be_imported() -> None:
    found = {each.name: each for each in Plugins().installed() if each.kind is SINK and each.origin == "sluiceway"}
    assert found.keys() == BUILT_IN
    assert [each.problem for each in found.values()] == [None] * len(BUILT_IN)
    for name, each in found.items():
        assert Plugins().load(SINK, name) is each.loaded


def test_a_sink_of_another_distribution_needs_no_change_here(packages: Installer) -> None:
    packages.install("acme-one", "acme", GOOD)
    assert Plugins().load(SINK, "acme").__name__ == "Good"
    assert (listed()["acme"].origin, listed()["acme"].problem) == ("acme-one", None)


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import a_module_that_is_missing\n", "No module named 'a_module_that_is_missing'"),
        ("raise RuntimeError('driver too old')\n", "RuntimeError: driver too old"),
        ("import sys\nsys.exit(3)\n", "SystemExit: 3"),
        ("Good = 7\n", "is not a subclass of connector.Sink"),
        ("class Good: pass\n", "is not a subclass of connector.Sink"),
        ("", "has no attribute 'Good'"),
    ],
)
def test_a_broken_plugin_is_told_and_breaks_no_other(packages: Installer, code: str, words: str) -> None:
    packages.install(f"acme-broken{abs(hash(code))}", "broken", code)
    found = listed()
    assert found["broken"].loaded is None
    assert words in (found["broken"].problem or "")
    assert words in refused("broken")
    assert all(found[name].problem is None for name in BUILT_IN)


def test_a_missing_driver_is_told_with_the_extra_that_brings_it(packages: Installer) -> None:
    packages.install(
        "acme-driver",
        "driven",
        "import missing_driver.client\n",
        requires=(
            "Requires-Dist: pydantic\nProvides-Extra: fast\n"
            "Requires-Dist: missing-driver[binary]>=3.2; extra == 'fast'\n"
        ),
    )
    assert refused("driven").endswith("Install it: pip install 'acme-driver[fast]'")


def test_a_missing_module_that_no_extra_brings_is_named(packages: Installer) -> None:
    packages.install("acme-plain", "plain", "import another_missing_module\n")
    assert refused("plain").endswith("Install another_missing_module.")


def test_an_unknown_sink_is_told_with_the_nearest_and_the_installed_ones() -> None:
    text = refused("postgress")
    assert text.startswith("CONNECTOR_SINK=postgress: no such sink is installed. Did you mean postgres?")
    assert all(name in text for name in BUILT_IN)


def test_a_name_that_two_distributions_offer_is_refused_not_guessed(packages: Installer) -> None:
    packages.install("acme-left", "twice", GOOD)
    packages.install("acme-right", "twice", GOOD)
    assert refused("twice") == (
        "CONNECTOR_SINK=twice: acme-left and acme-right both offer this name. Remove one of them."
    )


# Transforms, and files.

TRANSFORM_CODE = """
from __future__ import annotations
from connector import Batch, Field, Settings, Transform
class _Base(Transform[Settings]):
    pass
class UpperSettings(Settings):
    limit: int = Field(7, description="A number.")
class Upper(Transform[UpperSettings]):
    def apply(self, batch: Batch) -> Batch:
        return batch
"""


def test_a_transform_is_no_sink_and_a_sink_no_transform(packages: Installer) -> None:
    packages.install("acme-upper", "upper", TRANSFORM_CODE, target="Upper", group="connector.transforms")
    packages.install("acme-wrong", "wrong", GOOD, group="connector.transforms")
    assert Plugins().load(TRANSFORM, "upper").settings_type.__name__ == "UpperSettings"
    assert "no such sink" in refused("upper")
    assert "is not a subclass of connector.Transform" in refused("wrong", TRANSFORM)


def test_a_file_is_a_plugin_by_its_own_name_and_tells_its_kind(directory: Path) -> None:
    (directory / "my-upper.py").write_text(TRANSFORM_CODE)
    (directory / "acme.py").write_text(GOOD)
    (directory / "_shared.py").write_text("raise RuntimeError('left alone')\n")
    plugins = Plugins(directory)
    upper = plugins.load(TRANSFORM, "my-upper")
    assert upper.settings_type.model_validate({}).limit == 7  # type: ignore[attr-defined]  # of UpperSettings
    assert plugins.load(SINK, "acme").__name__ == "Good"
    assert "no such sink is installed" in refused("my-upper", SINK, plugins)
    found = listed(plugins)
    assert (found["my-upper"].kind, found["my-upper"].origin) == (TRANSFORM, str(directory / "my-upper.py"))
    assert "_shared" not in found


@pytest.mark.parametrize(
    ("name", "code", "words"),
    [
        ("broken", "import a_module_that_is_missing\n", "No module named 'a_module_that_is_missing'"),
        ("broken", "class Good(\n", "SyntaxError"),
        ("broken", "raise SystemExit(1)\n", "SystemExit: 1"),
        ("broken", "x = 1\n", "this one has none"),
        ("broken", GOOD + "class Other(Good):\n    pass\n", "this one has Good and Other"),
        ("Broken.v2", GOOD, "Rename it"),
    ],
)
def test_a_broken_file_is_told_with_its_reason_and_breaks_no_other(
    directory: Path, name: str, code: str, words: str
) -> None:
    (directory / f"{name}.py").write_text(code)
    (directory / "fine.py").write_text(GOOD)
    plugins = Plugins(directory)
    found = listed(plugins)
    assert (found[name].kind, found[name].loaded) == (None, None)
    assert words in (found[name].problem or "")
    assert words in refused(name, SINK, plugins)
    assert all(found[each].problem is None for each in (*BUILT_IN, "fine"))


def test_a_file_with_the_name_of_an_installed_plugin_is_refused_not_preferred(directory: Path) -> None:
    (directory / "null.py").write_text(GOOD)
    plugins = Plugins(directory)
    assert refused("null", SINK, plugins) == (
        f"CONNECTOR_SINK=null: {directory / 'null.py'} and sluiceway both offer this name. Remove one of them."
    )
    (directory / "null.py").write_text(TRANSFORM_CODE)  # another kind: no clash
    assert plugins.load(SINK, "null").__name__ == "NullSink"


# Functions.

KEEP = """
SIGN = "{sign}"
def keep(record):
    \"\"\"Keep what is signed.\"\"\"
    return helper(record["value"], SIGN)
def helper(value, sign):
    return sign.encode() in value
def _hidden(record):
    return True
"""


def offsets(transform: type[Any], *values: bytes) -> list[int]:
    made = transform(transform.settings_type(), SinkContext("group"))
    made.open()
    return list(made.apply(make_batch(*values)).column("offset"))


def refused_function(name: str, plugins: Plugins) -> str:
    with pytest.raises(ConfigError) as error:
        plugins.load_transform(name)
    return str(error.value)


def test_a_function_is_found_in_the_directory_or_on_the_import_path(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "path").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / "path"))
    (tmp_path / "path" / "rules_on_the_path.py").write_text(KEEP.format(sign="p"))
    (directory / "my-rules.py").write_text(KEEP.format(sign="d"))
    plugins = Plugins(directory)
    assert offsets(plugins.load_transform("rules_on_the_path:keep"), b"d", b"p") == [1]
    assert offsets(plugins.load_transform("my-rules:keep"), b"d", b"p") == [0]
    (directory / "rules_on_the_path.py").write_text(KEEP.format(sign="d"))
    assert offsets(plugins.load_transform("rules_on_the_path:keep"), b"d", b"p") == [0], "the directory comes first"


def test_functions_of_a_file_are_listed_each_and_named_to_who_asks_for_the_file(directory: Path) -> None:
    (directory / "rules.py").write_text(KEEP.format(sign="d"))
    plugins = Plugins(directory)
    found = {name: plugin for name, plugin in listed(plugins).items() if name.startswith("rules")}
    assert list(found) == ["rules:keep"], "a helper takes no record"
    assert (found["rules:keep"].kind, found["rules:keep"].origin) == (TRANSFORM, str(directory / "rules.py"))
    assert (found["rules:keep"].loaded.__doc__ or "") == "Keep what is signed."
    assert refused("rules", TRANSFORM, plugins) == (
        f"CONNECTOR_TRANSFORMS=rules: {directory / 'rules.py'} has functions. Name one of them: rules:keep."
    )


@pytest.mark.parametrize(
    ("code", "name", "words"),
    [
        ("def keep(record): return True", "rules:kept", "rules.py has no kept. Did you mean keep?"),
        ("def keep(): return True", "rules:keep", "cannot be called with one argument; it takes the record."),
        ("keep = 5", "rules:keep", "CONNECTOR_TRANSFORMS=rules:keep is a int, not a function."),
        ("import a_module_that_is_missing", "rules:keep", "Install what is missing, or correct the file."),
        ("def keep(record: ", "rules:keep", "cannot be imported: SyntaxError"),
        ("raise SystemExit(2)", "rules:keep", "cannot be imported: SystemExit: 2. Correct /"),
        (
            "",
            "no_such_rules:keep",
            "No module named 'no_such_rules'. Put its file into CONNECTOR_PLUGIN_DIR, or its dir",
        ),
    ],
)
def test_a_function_that_cannot_be_had_is_told_with_the_way_out(
    directory: Path, code: str, name: str, words: str
) -> None:
    (directory / "rules.py").write_text(code)
    text = refused_function(name, Plugins(directory))
    assert text.startswith(f"CONNECTOR_TRANSFORMS={name}")
    assert words in text


def test_a_reload_takes_the_newest_function_of_a_file_and_of_a_module_and_the_old_ones_go_on(
    directory: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "path").mkdir()
    monkeypatch.syspath_prepend(str(tmp_path / "path"))
    for name, file in (
        ("rules:keep", directory / "rules.py"),
        ("rules_to_reload:keep", tmp_path / "path" / "rules_to_reload.py"),
    ):
        file.write_text(KEEP.format(sign="d"))
        plugins = Plugins(directory)
        old = plugins.load_transform(name)
        file.write_text(KEEP.format(sign="pp"))
        new = plugins.reload_transform(name)
        assert (offsets(old, b"d", b"pp"), offsets(new, b"d", b"pp")) == ([0], [1])
        file.write_text("raise RuntimeError('half written')")
        with pytest.raises(ConfigError, match="half written"):
            plugins.reload_transform(name)
        assert offsets(new, b"d", b"pp") == [1]


# Reloading.


def versioned(number: int) -> str:
    return f"from connector import Sink\nNUMBER = {number}\nclass Good(Sink):\n    def number(self): return NUMBER\n"


def number_of(sink: type[Any]) -> int:
    made = sink(sink.settings_type(), SinkContext("group"))
    return int(made.number())


def test_a_reload_takes_the_newest_file_and_the_old_class_goes_on_as_it_was(directory: Path) -> None:
    plugins, file = Plugins(directory), directory / "acme.py"
    file.write_text(versioned(1))
    classes = [plugins.load(SINK, "acme")]
    for number in (2, 3):  # of one size and within a second, which compiled code could not tell apart
        file.write_text(versioned(number))
        classes.append(plugins.reload(SINK, "acme"))
    assert [number_of(each) for each in classes] == [1, 2, 3]


def test_a_reload_takes_the_newest_package_and_the_old_class_goes_on_as_it_was(
    tmp_path: Path, packages: Installer
) -> None:
    packages.install("acme-reload", "acme", versioned(1))
    old = Plugins().load(SINK, "acme")
    (tmp_path / "site-packages" / "acme_reload_module.py").write_text(versioned(22))
    new = Plugins().reload(SINK, "acme")
    assert (number_of(old), number_of(new)) == (1, 22)
    assert Plugins().load(SINK, "acme") is new


def test_a_new_version_that_cannot_be_imported_is_told_and_leaves_the_old_one_in_place(
    tmp_path: Path, packages: Installer, directory: Path
) -> None:
    packages.install("acme-stay", "acme", versioned(1))
    old = Plugins().load(SINK, "acme")
    module = sys.modules["acme_stay_module"]
    (tmp_path / "site-packages" / "acme_stay_module.py").write_text("NUMBER = 9\nraise RuntimeError('half written')\n")
    with pytest.raises(ConfigError, match="RuntimeError: half written"):
        Plugins().reload(SINK, "acme")
    assert sys.modules["acme_stay_module"] is module
    assert (number_of(old), Plugins().load(SINK, "acme")) == (1, old)
    (directory / "own.py").write_text(versioned(1))
    plugins = Plugins(directory)
    own = plugins.load(SINK, "own")
    (directory / "own.py").write_text("class Good(\n")
    with pytest.raises(ConfigError, match=r"CONNECTOR_SINK=own: cannot be imported: SyntaxError.*Correct the file\."):
        plugins.reload(SINK, "own")
    assert number_of(own) == 1
