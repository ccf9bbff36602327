"""Sinks are found by entry point; a broken one says the way out and breaks nothing else."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from connector.api.errors import ConfigError
from connector.sink.loader import installed, load_sink

if TYPE_CHECKING:
    from pathlib import Path

BUILT_IN = {"file", "null", "postgres", "sqlite", "stdout"}
GOOD = "from connector import Sink\nclass Good(Sink):\n    pass\n"


class Plugins:
    """Installs distributions, as a package manager would leave them, into a directory on the import path."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def install(self, distribution: str, sink: str, code: str, target: str = "Good", requires: str = "") -> None:
        module = f"{distribution.replace('-', '_')}_module"
        (self._directory / f"{module}.py").write_text(code)
        info = self._directory / f"{distribution.replace('-', '_')}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {distribution}\nVersion: 1.0\n{requires}")
        (info / "entry_points.txt").write_text(f"[connector.sinks]\n{sink} = {module}:{target}\n")


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Plugins:
    monkeypatch.syspath_prepend(str(tmp_path))
    return Plugins(tmp_path)


def refused(name: str) -> str:
    with pytest.raises(ConfigError) as error:
        load_sink(name)
    return str(error.value)


def test_every_built_in_sink_is_found_and_can_be_imported() -> None:
    found = {each.name: each for each in installed() if each.distribution == "sluiceway"}
    assert found.keys() == BUILT_IN
    assert [each.problem for each in found.values()] == [None] * len(BUILT_IN)
    for name, each in found.items():
        assert load_sink(name) is each.sink


def test_a_sink_of_another_distribution_needs_no_change_here(plugins: Plugins) -> None:
    plugins.install("acme-one", "acme", GOOD)
    assert load_sink("acme").__name__ == "Good"
    assert ("acme", "acme-one", None) in [(each.name, each.distribution, each.problem) for each in installed()]


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("import a_module_that_is_missing\n", "No module named 'a_module_that_is_missing'"),
        ("raise RuntimeError('driver too old')\n", "RuntimeError: driver too old"),
        ("Good = 7\n", "is not a subclass of connector.Sink"),
        ("class Good: pass\n", "is not a subclass of connector.Sink"),
        ("", "has no attribute 'Good'"),
    ],
)
def test_a_broken_plugin_is_told_and_breaks_no_other(plugins: Plugins, code: str, words: str) -> None:
    plugins.install(f"acme-broken{abs(hash(code))}", "broken", code)
    found = {each.name: each for each in installed()}
    assert found["broken"].sink is None
    assert words in (found["broken"].problem or "")
    assert words in refused("broken")
    assert all(found[name].problem is None for name in BUILT_IN)


def test_a_missing_driver_is_told_with_the_extra_that_brings_it(plugins: Plugins) -> None:
    plugins.install(
        "acme-driver",
        "driven",
        "import missing_driver.client\n",
        requires=(
            "Requires-Dist: pydantic\nProvides-Extra: fast\n"
            "Requires-Dist: missing-driver[binary]>=3.2; extra == 'fast'\n"
        ),
    )
    assert refused("driven").endswith("Install it: pip install 'acme-driver[fast]'")


def test_a_missing_module_that_no_extra_brings_is_named(plugins: Plugins) -> None:
    plugins.install("acme-plain", "plain", "import another_missing_module\n")
    assert refused("plain").endswith("Install another_missing_module.")


def test_an_unknown_sink_is_told_with_the_nearest_and_the_installed_ones() -> None:
    text = refused("postgress")
    assert text.startswith("CONNECTOR_SINK=postgress: no such sink is installed. Did you mean postgres?")
    assert all(name in text for name in BUILT_IN)


def test_a_name_that_two_distributions_offer_is_refused_not_guessed(plugins: Plugins) -> None:
    plugins.install("acme-left", "twice", GOOD)
    plugins.install("acme-right", "twice", GOOD)
    assert refused("twice") == (
        "CONNECTOR_SINK=twice: acme-left and acme-right both offer this sink. Uninstall one of them."
    )
