"""Runtime parameters: checked, stored, then told; what is stored survives a restart, and no broken file stops one."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import model_validator

from connector import ConfigError, Duration, Field, ParamDeleted, ParamUpdate, Secret, Settings, TransientError
from connector.runtime.params import Params
from connector.telemetry.masking import mask

if TYPE_CHECKING:
    from pathlib import Path


class Tuning(Settings):
    rate: int = Field(10, ge=1, description="A number.")
    pause: Duration = Field(1.0, description="A duration.")
    label: str | None = Field(None, description="A text.")
    password: Secret | None = Field(None, description="A secret.")
    least: int = Field(0, description="At most the rate.")

    @model_validator(mode="after")
    def _together(self) -> Tuning:
        if self.least > self.rate:
            raise ValueError(f"least={self.least} is more than rate={self.rate}")
        return self


@pytest.fixture
def store(tmp_path: Path) -> Path:
    return tmp_path / "state" / "params.json"


def refused(params: Params, key: str, value: Any) -> str:
    before = (params.all(), params.shown())
    with pytest.raises(ConfigError) as error:
        params.set(key, value)
    assert (params.all(), params.shown()) == before
    return str(error.value)


def events_in_log(caplog: pytest.LogCaptureFixture) -> list[dict[str, Any]]:
    return [record.msg for record in caplog.records if isinstance(record.msg, dict)]


def test_what_is_set_is_told_as_the_model_makes_it_and_replayed_until_it_is_deleted(store: Path) -> None:
    params = Params(Tuning, store.parent)
    assert params.all() == ()
    assert params.set("rate", 25) == ParamUpdate("rate", 25)
    assert params.set("pause", "5m") == ParamUpdate("pause", 300.0)
    assert params.set("label", None) == ParamUpdate("label", None)
    assert params.set("rate", 30) == ParamUpdate("rate", 30)
    assert params.all() == (ParamUpdate("rate", 30), ParamUpdate("pause", 300.0), ParamUpdate("label", None))
    assert params.shown() == {"rate": 30, "pause": "5m", "label": None}
    assert params.delete("rate") == ParamDeleted("rate")
    assert [event.key for event in params.all()] == ["pause", "label"]


def test_what_is_so_already_is_neither_stored_nor_told_again(store: Path) -> None:
    params = Params(Tuning, store.parent)
    params.set("rate", 10)
    params.set("pause", 1)
    stored = store.stat()
    assert params.set("rate", 10) is None
    assert params.delete("label") is None
    assert store.stat().st_mtime_ns == stored.st_mtime_ns
    assert store.stat().st_ino == stored.st_ino
    assert params.set("pause", 1.0) == ParamUpdate("pause", 1.0), "other JSON is told, whatever the model makes of it"
    with pytest.raises(ConfigError, match="has no parameter"):
        params.delete("rat")


def test_what_is_set_survives_a_restart_and_what_is_deleted_does_not_come_back(store: Path) -> None:
    params = Params(Tuning, store.parent)
    params.set("rate", 25)
    params.set("pause", "5m")
    params.delete("rate")
    assert Params(Tuning, store.parent).all() == params.all() == (ParamUpdate("pause", 300.0),)
    assert [file.name for file in store.parent.iterdir()] == [store.name]
    assert store.stat().st_mode & 0o077 == 0


def test_without_a_store_nothing_is_kept() -> None:
    params = Params(Tuning, None)
    params.set("rate", 25)
    assert params.all() == (ParamUpdate("rate", 25),)
    assert Params(Tuning, None).all() == ()


def test_an_unknown_key_or_a_wrong_value_is_refused_and_changes_nothing(store: Path) -> None:
    params = Params(Tuning, store.parent)
    params.set("rate", 5)
    stored = store.read_bytes()
    assert refused(params, "rat", 1).startswith(
        "The sink has no parameter 'rat'. Did you mean rate? It has label, least"
    )
    assert refused(params, "rate", "fast").startswith(
        "The parameter rate is not valid: Input should be a valid integer"
    )
    assert "greater than or equal to 1" in refused(params, "rate", 0)
    assert "is not a duration" in refused(params, "pause", "5 parsecs")
    assert refused(params, "least", 6) == "The parameter least is not valid: Value error, least=6 is more than rate=5."
    with pytest.raises(ConfigError, match="no parameter 'x'"):
        params.delete("x")
    assert store.read_bytes() == stored


def test_a_delete_that_leaves_what_does_not_go_together_is_refused(store: Path) -> None:
    params = Params(Tuning, store.parent)
    params.set("rate", 50)
    params.set("least", 40)
    with pytest.raises(ConfigError, match="least=40 is more than rate=10"):
        params.delete("rate")
    assert Params(Tuning, store.parent).all() == params.all() == (ParamUpdate("rate", 50), ParamUpdate("least", 40))


def test_a_sink_without_parameters_refuses_all() -> None:
    assert refused(Params(None, None), "rate", 1) == "The sink has no parameter 'rate'. It has none."


def test_a_parameter_without_a_default_is_a_bug_of_the_sink() -> None:
    class Wrong(Settings):
        rate: int = Field(description="No default.")

    with pytest.raises(ConfigError, match="The parameter rate of the sink has no default"):
        Params(Wrong, None)


def test_stored_values_that_the_sink_does_not_take_are_told_and_left_out(
    store: Path, caplog: pytest.LogCaptureFixture
) -> None:
    store.parent.mkdir()
    store.write_text(json.dumps({"rate": "fast", "gone": 1, "pause": "2s", "least": 99}))
    assert Params(Tuning, store.parent).all() == (ParamUpdate("pause", 2.0),)
    told = [event["parameter"] for event in events_in_log(caplog) if event["event"] == "stored_parameter_left_out"]
    assert told == ["rate", "gone", "least"]


@pytest.mark.parametrize("content", ["{half", "[1]", ""])
def test_a_file_that_cannot_be_understood_is_told_put_aside_and_stops_nothing(
    store: Path, caplog: pytest.LogCaptureFixture, content: str
) -> None:
    store.parent.mkdir()
    store.write_text(content)
    params = Params(Tuning, store.parent)
    params.set("rate", 3)
    assert [event["event"] for event in events_in_log(caplog)] == ["stored_parameters_put_aside"]
    assert (store.parent / "params.json.unreadable").read_text() == content
    assert Params(Tuning, store.parent).all() == (ParamUpdate("rate", 3),)


def test_what_cannot_be_stored_is_not_in_force(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    params = Params(Tuning, store.parent)
    params.set("rate", 5)

    def full(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as disk:
        disk.setattr("os.fsync", full)
        with pytest.raises(TransientError, match="No space left on device"):
            params.set("rate", 6)
    assert params.all() == Params(Tuning, store.parent).all() == (ParamUpdate("rate", 5),)
    assert [file.name for file in store.parent.iterdir()] == [store.name]


def test_a_directory_that_cannot_be_made_is_refused_at_start(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match=r"CONNECTOR_STATE_DIR=.*file/state cannot be written to"):
        Params(Tuning, tmp_path / "file" / "state")


def test_a_secret_is_told_to_the_sink_and_shown_to_nobody(store: Path) -> None:
    params = Params(Tuning, store.parent)
    assert params.set("password", "param-pass-71") == ParamUpdate("password", "param-pass-71")
    assert params.shown() == {"password": "***"}
    assert mask("param-pass-71") == "***"
    assert Params(Tuning, store.parent).all() == (ParamUpdate("password", "param-pass-71"),)
    assert "8080" not in refused(params, "password", 80808080)


def test_a_reloaded_sink_keeps_the_parameters_that_it_takes(caplog: pytest.LogCaptureFixture) -> None:
    class Newer(Settings):
        rate: float = Field(1.0, le=20, description="Smaller.")
        label: str = Field("", description="A text.")

    params = Params(Tuning, None)
    params.set("rate", 25)
    params.set("label", "x")
    params.change_model(Newer)
    assert params.all() == (ParamUpdate("label", "x"),)
    assert [event["parameter"] for event in events_in_log(caplog)] == ["rate"]
    assert params.set("rate", 2) == ParamUpdate("rate", 2.0)
