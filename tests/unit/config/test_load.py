"""Reading settings: all problems at once, files, precedence, suggestions, and no secret in any message."""

from __future__ import annotations

from datetime import UTC, datetime
from enum import Enum
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import field_validator

from connector import Duration, Field, Secret, Settings, Sink, Size
from connector.api.errors import ConfigError, ExitCode
from connector.config.address import Address
from connector.config.effective import effective_settings
from connector.config.later import LATER_NAMES, LATER_VALUES
from connector.config.load import Config, load, reload_plugin
from connector.config.settings import ConnectorSettings, environment_name
from connector.plugins.loader import SINK, Plugins
from connector.source.position import StartPolicy
from connector.telemetry.masking import mask

if TYPE_CHECKING:
    from pathlib import Path

    from connector.plugins.loader import Kind

REQUIRED = {
    "CONNECTOR_BOOTSTRAP_SERVERS": "one:9092,two:9093",
    "CONNECTOR_GROUP_ID": "group",
    "CONNECTOR_TOPICS": "orders,^pay.*",
}
WRONG = {
    "CONNECTOR_BOOTSTRAP_SERVERS": "one two",
    "CONNECTOR_TOPICS": "or ders",
    "CONNECTOR_GROUP_PROTOCOL": "modern",
    "CONNECTOR_ASSIGNMENT_STRATEGY": "sticky",
    "CONNECTOR_START": "yesterday",
    "CONNECTOR_START_NEW_PARTITION": "middle",
    "CONNECTOR_START_ON_EXPIRED": "5",
    "CONNECTOR_START_ON_OUT_OF_RANGE": "nearest",
    "CONNECTOR_START_ON_RECREATED": "x",
    "CONNECTOR_STOP": "never",
    "CONNECTOR_STARTUP_TIMEOUT": "0",
    "CONNECTOR_MISSING_TOPIC": "create",
    "CONNECTOR_PIPELINES": "0",
    "CONNECTOR_BATCH_ROWS": "many",
    "CONNECTOR_BATCH_BYTES": "8XB",
    "CONNECTOR_BATCH_LINGER": "5",
    "CONNECTOR_MEMORY_BUDGET": "15MiB",
    "CONNECTOR_COMMIT_INTERVAL": "-1s",
    "CONNECTOR_DRAIN_TIMEOUT": "0s",
    "CONNECTOR_SHUTDOWN_TIMEOUT": "soon",
    "CONNECTOR_KEY_FORMAT": "xml",
    "CONNECTOR_VALUE_FORMAT": "text",
    "CONNECTOR_REGISTRY_URL": "redis://host",
    "CONNECTOR_REGISTRY_SSL_CA_LOCATION": "/nowhere/ca.pem",
    "CONNECTOR_REGISTRY_SSL_CERTIFICATE_LOCATION": "/nowhere",
    "CONNECTOR_REGISTRY_SSL_KEY_LOCATION": "/",
    "CONNECTOR_REGISTRY_TIMEOUT": "0s",
    "CONNECTOR_REGISTRY_UNKNOWN_GRACE": "-1s",
    "CONNECTOR_LANE_IDLE_TIMEOUT": "0s",
    "CONNECTOR_TRANSFORMS": "filter,filter",
    "CONNECTOR_TOMBSTONES": "keep",
    "CONNECTOR_PLUGIN_DIR": "/nowhere/at/all",
    "CONNECTOR_SINK": "nowhere",
    "CONNECTOR_ON_POISON": "ignore",
    "CONNECTOR_DLQ_TOPIC": "or ders",
    "CONNECTOR_DLQ_ON_TOO_LARGE": "cut",
    "CONNECTOR_DLQ_MAX_RATIO": "2",
    "CONNECTOR_DLQ_WINDOW": "0",
    "CONNECTOR_DLQ_MAX_CONSECUTIVE": "-1",
    "CONNECTOR_RETRY_LIMIT": "-1",
    "CONNECTOR_RETRY_INITIAL": "0ms",
    "CONNECTOR_RETRY_MAX": "x",
    "CONNECTOR_ADMIN_ADDRESS": "9464",
    "CONNECTOR_ADMIN_HOSTS": "connector:9464",
    "CONNECTOR_METRICS_PARTITIONS": "-1",
    "CONNECTOR_METRICS_TOPICS": "many",
    "CONNECTOR_LOG_LEVEL": "loud",
    "CONNECTOR_LOG_FORMAT": "xml",
}


class Mode(Enum):
    FAST = "fast"
    SAFE = "safe"


class EverySettings(Settings):
    path: str = Field(description="A required text.")
    password: Secret = Field(Secret(""), description="A secret.")
    ca: str = Field("", description="A text whose file form is the next setting's name.")
    ca_file: str = Field("", description="A path.")
    file: str = Field("", description="Makes CONNECTOR_SINK_FILE a setting.")
    mode: Mode = Field(Mode.SAFE, description="A choice.")
    keys: tuple[str, ...] = Field((), description="A list.")
    columns: dict[str, str] | None = Field(None, description="A mapping.")
    rows: int = Field(1, ge=1, description="A number.")
    on: bool = Field(False, description="A switch.")
    pause: Duration = Field(1.0, description="A duration.")
    limit: Size = Field(1024, le=2048, description="A size.")

    @field_validator("password")
    @classmethod
    def _strong(cls, value: Secret) -> Secret:
        if value.get_secret_value().startswith("weak"):
            raise ValueError(f"is weak: {value.get_secret_value()}")
        return value

    def problems(self, pipelines: int) -> list[str]:
        if pipelines > 1 and "{pipeline}" not in self.path:
            return [
                f"CONNECTOR_SINK_PATH={self.path} with {self.password.get_secret_value()}: put {{pipeline}} into it."
            ]
        return []


class EverySink(Sink[EverySettings]):
    """Has a setting of each kind."""


@pytest.fixture
def every_sink(monkeypatch: pytest.MonkeyPatch) -> type[Sink[Any]]:
    load_plugin = Plugins.load

    def load_every(plugins: Plugins, kind: Kind[Any], name: str) -> type[Any]:
        return EverySink if kind is SINK else load_plugin(plugins, kind, name)

    monkeypatch.setattr(Plugins, "load", load_every)
    return EverySink


def loaded(**names: str) -> Config:
    return load(REQUIRED | {f"CONNECTOR_{name}": value for name, value in names.items()})


def problems(**names: str) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        loaded(**names)
    assert refused.value.exit_code is ExitCode.CONFIGURATION
    return str(refused.value).splitlines()


def problem(**names: str) -> str:
    [only] = problems(**names)
    return only


def test_the_three_required_settings_are_enough() -> None:
    config = load(REQUIRED)
    assert config.settings.bootstrap_servers == ("one:9092", "two:9093")
    assert config.settings.topics == ("orders", "^pay.*")
    assert config.client.bootstrap_servers == "one:9092,two:9093"
    assert config.settings.sink == "stdout"
    assert set(config.origins) == set(REQUIRED)
    assert config.notes == ()


def test_nothing_set_names_every_required_setting() -> None:
    with pytest.raises(ConfigError) as refused:
        load({})
    lines = str(refused.value).splitlines()
    assert [line.split()[0] for line in lines] == list(REQUIRED)


def test_every_setting_wrong_at_once_gives_a_line_for_each_in_one_error() -> None:
    wrong = WRONG | {
        "CONNECTOR_GROUP_ID": "",
        "CONNECTOR_TOPIC": "misspelt",
        "CONNECTOR_KAFKA_ENABLE_AUTO_COMMIT": "true",
        "CONNECTOR_KAFKA_SASL_PASSWRD": "x",
        "CONNECTOR_KAFKA_SESSION_TIMEOUT_MS": "long",
        "CONNECTOR_KAFKA_LINGER_MS": "5",
        "CONNECTOR_PROCESSES": "2",
        "CONNECTOR_KAFKA_SSL_KEY_PASSWORD_FILE": "/does/not/exist",
    }
    with pytest.raises(ConfigError) as refused:
        load(REQUIRED | wrong)
    lines = str(refused.value).splitlines()
    for name in wrong:
        assert sum(line.startswith((f"{name} ", f"{name}=", f"{name}:")) for line in lines) == 1, name
    assert len(lines) == len(wrong)


def test_the_table_of_wrong_values_covers_every_setting() -> None:
    # Any text is a group, a user and a directory that is made; secrets, never shown, have tests of their own.
    others = {"CONNECTOR_GROUP_ID", "CONNECTOR_STATE_DIR", "CONNECTOR_ADMIN_TOKEN", "CONNECTOR_REGISTRY_USER"}
    others |= {f"CONNECTOR_REGISTRY_{name}" for name in ("PASSWORD", "TOKEN", "SSL_KEY_PASSWORD")}
    assert {environment_name(field) for field in ConnectorSettings.model_fields} - {*WRONG} == others


@pytest.mark.parametrize("name", WRONG)
def test_a_wrong_value_is_the_only_problem_that_is_told(name: str) -> None:
    with pytest.raises(ConfigError) as refused:
        load(REQUIRED | {name: WRONG[name]})
    [line] = str(refused.value).splitlines()
    assert line.startswith(f"{name}={WRONG[name]}")
    assert line.endswith((".", "?"))


def test_values_are_read_in_their_units() -> None:
    settings = loaded(
        BATCH_BYTES="4MiB",
        BATCH_LINGER="0",
        DRAIN_TIMEOUT="1m",
        RETRY_LIMIT="none",
        START="2026-01-31T12:00:00",
        START_ON_EXPIRED="latest",
        STOP="2026-03-01T00:00:00+02:00",
        ADMIN_ADDRESS="[::1]:0",
        ADMIN_HOSTS="connector, Admin.Example.com",
        LOG_LEVEL="DEBUG",
        TOMBSTONES="write",
    ).settings
    assert settings.batch_bytes == 4 * 2**20
    assert settings.batch_linger == 0
    assert settings.drain_timeout == 60
    assert settings.retry_limit is None
    assert settings.start == datetime(2026, 1, 31, 12, tzinfo=UTC)
    assert settings.start_on_expired is StartPolicy.LATEST
    assert settings.stop == datetime(2026, 2, 28, 22, tzinfo=UTC)
    assert settings.admin_address == Address("::1", 0)
    assert str(settings.admin_address) == "[::1]:0"
    assert settings.admin_hosts == ("connector", "Admin.Example.com")
    assert settings.log_level == "debug"


def test_client_properties_are_named_with_dots() -> None:
    config = loaded(KAFKA_SASL_MECHANISM="PLAIN", KAFKA_SASL_USERNAME="me", KAFKA_SASL_PASSWORD="prop-pass-1")
    assert config.client.properties == {
        "sasl.mechanism": "PLAIN",
        "sasl.username": "me",
        "sasl.password": "prop-pass-1",
    }


def test_an_empty_value_counts_as_unset() -> None:
    config = loaded(STOP="", PIPELINES="", KAFKA_DEBUG="", SINK_FORMAT="", UNKNOWN="", SINK="", GROUP_ID_FILE="")
    assert config.settings == load(REQUIRED).settings
    assert set(config.origins) == set(REQUIRED)


# Files.


def test_a_file_gives_the_value_of_any_kind_of_setting_less_one_line_break(
    tmp_path: Path, every_sink: type[Sink[Any]]
) -> None:
    (tmp_path / "group").write_text("from file\n\n")
    (tmp_path / "password").write_text("file-pass-2\r\n")
    (tmp_path / "path").write_text("/data")
    environ = {name: value for name, value in REQUIRED.items() if name != "CONNECTOR_GROUP_ID"} | {
        "CONNECTOR_GROUP_ID_FILE": str(tmp_path / "group"),
        "CONNECTOR_KAFKA_SASL_PASSWORD_FILE": str(tmp_path / "password"),
        "CONNECTOR_SINK_PATH_FILE": str(tmp_path / "path"),
    }
    config = load(environ)
    assert config.sink is every_sink
    assert config.settings.group_id == "from file\n"
    assert config.client.properties == {"sasl.password": "file-pass-2"}
    assert config.sink_settings.path == "/data"  # type: ignore[attr-defined]  # of EverySettings
    assert config.origins["CONNECTOR_GROUP_ID"] == str(tmp_path / "group")


def test_the_sink_itself_can_be_named_by_a_file(tmp_path: Path) -> None:
    (tmp_path / "sink").write_text("null\n")
    assert loaded(SINK_FILE=str(tmp_path / "sink")).settings.sink == "null"


@pytest.mark.usefixtures("every_sink")
def test_a_setting_whose_own_name_ends_in_file_is_read_as_itself() -> None:
    config = loaded(SINK="every", SINK_PATH="p", SINK_CA="text", SINK_CA_FILE="/ca.pem", SINK_FILE="/f")
    settings = config.sink_settings
    assert isinstance(settings, EverySettings)
    assert (settings.ca, settings.ca_file, settings.file) == ("text", "/ca.pem", "/f")
    assert config.settings.sink == "every"


def test_a_client_property_whose_own_name_ends_in_file_is_read_as_itself(tmp_path: Path) -> None:
    key = tmp_path / "key.pem"
    key.write_text("no key")
    config = loaded(KAFKA_SASL_OAUTHBEARER_ASSERTION_PRIVATE_KEY_FILE=str(key))
    assert config.client.properties == {"sasl.oauthbearer.assertion.private.key.file": str(key)}


@pytest.mark.parametrize(
    ("name", "value"),
    [("GROUP_ID", "g"), ("KAFKA_SASL_PASSWORD", "both-pass-3"), ("SINK_FORMAT", "value"), ("SINK", "stdout")],
)
def test_a_value_and_a_file_for_one_setting_contradict_each_other(tmp_path: Path, name: str, value: str) -> None:
    (tmp_path / "value").write_text(value)
    line = problem(**{name: value, f"{name}_FILE": str(tmp_path / "value")})
    assert line.startswith(f"CONNECTOR_{name} and CONNECTOR_{name}_FILE are both set")


@pytest.mark.parametrize("name", ["GROUP_ID", "SINK"])
def test_a_file_that_is_missing_empty_or_no_text_is_told(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").write_text("\n")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    environ = {key: value for key, value in REQUIRED.items() if key != f"CONNECTOR_{name}"}
    for file, words in (
        ("missing", "cannot be read: No such file or directory."),
        ("empty", "is empty. Write the value into the file."),
        ("binary", "cannot be read: it is no UTF-8 text."),
    ):
        with pytest.raises(ConfigError) as refused:
            load(environ | {f"CONNECTOR_{name}_FILE": str(tmp_path / file)})
        assert f"CONNECTOR_{name}_FILE={tmp_path / file} {words}" in str(refused.value).splitlines()


# The file of variables.


def test_the_environment_wins_over_the_file_of_variables(tmp_path: Path) -> None:
    file = tmp_path / "prod.env"
    file.write_text(
        "# comment\n\nCONNECTOR_GROUP_ID=from file\nexport CONNECTOR_BATCH_ROWS='7'\n"
        'CONNECTOR_PIPELINES="2"\nCONNECTOR_KAFKA_CLIENT_ID=a=b # c\nPATH=/not/ours\nPATH=/not/ours/either\n'
    )
    config = load(REQUIRED | {"CONNECTOR_PIPELINES": "3"}, file)
    assert config.settings.group_id == "group"
    assert config.settings.batch_rows == 7
    assert config.settings.pipelines == 3
    assert config.client.properties == {"client.id": "a=b # c"}
    assert config.origins["CONNECTOR_BATCH_ROWS"] == f"{file}:4"
    assert config.origins["CONNECTOR_PIPELINES"] == "environment"


def test_a_value_in_the_environment_replaces_a_file_named_in_the_file_of_variables(tmp_path: Path) -> None:
    (tmp_path / "group").write_text("mounted")
    (tmp_path / "prod.env").write_text(f"CONNECTOR_GROUP_ID_FILE={tmp_path / 'group'}\n")
    assert load(REQUIRED, tmp_path / "prod.env").settings.group_id == "group"


def test_lines_that_cannot_be_meant_are_told_with_their_number(tmp_path: Path) -> None:
    file = tmp_path / "prod.env"
    file.write_text("CONNECTOR_PIPELINES 2\nCONNECTOR_BATCH_ROWS=1\nCONNECTOR_BATCH_ROWS=2\n")
    with pytest.raises(ConfigError) as refused:
        load(REQUIRED, file)
    assert str(refused.value).splitlines() == [
        f"{file}:1 is not NAME=value. Correct it, or begin the line with #.",
        f"{file}:3 sets CONNECTOR_BATCH_ROWS again, after {file}:2. Remove one of them.",
    ]


def test_a_file_of_variables_that_cannot_be_read_is_a_problem(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"--env-file .*missing cannot be read: No such file or directory\."):
        load(REQUIRED, tmp_path / "missing")


# Names.


@pytest.mark.parametrize(
    ("name", "meant"),
    [
        ("TOPIC", "CONNECTOR_TOPICS"),
        ("BATCH_SIZE", None),
        ("COMMIT_INTERVALL", "CONNECTOR_COMMIT_INTERVAL"),
        ("GROUPID", "CONNECTOR_GROUP_ID"),
        ("SINK_FROMAT", "CONNECTOR_SINK_FORMAT"),
        ("KAFKA_SASL_PASSWRD", "CONNECTOR_KAFKA_SASL_PASSWORD"),
        ("GROUP_ID_FIEL", "CONNECTOR_GROUP_ID_FILE"),
    ],
)
def test_an_unknown_name_is_an_error_that_suggests_the_nearest(name: str, meant: str | None) -> None:
    line = problem(**{name: "value-of-a-typo"})
    assert line.startswith(f"CONNECTOR_{name}: ")
    assert ("Did you mean" in line) is (meant is not None)
    assert meant is None or f"Did you mean {meant}?" in line
    assert "value-of-a-typo" not in line


def test_a_setting_of_another_sink_is_told_with_what_this_one_has() -> None:
    assert problem(SINK_DSN="x") == (
        "CONNECTOR_SINK_DSN: the sink has no such setting. It has CONNECTOR_SINK_FORMAT. Correct or remove it."
    )
    assert "It has none." in problem(SINK="null", SINK_DSN="x")


def test_an_unknown_sink_is_the_only_problem_whatever_settings_it_has() -> None:
    assert problem(SINK="stdot", SINK_DSN="x", SINK_CA_FILE="/nowhere").startswith(
        "CONNECTOR_SINK=stdot: no such sink is installed. Did you mean stdout?"
    )


@pytest.mark.parametrize("name", ["PORT", "PORT_9464_TCP_ADDR", "SERVICE_HOST", "SERVICE_PORT_HTTP", "TEST_BROKER"])
def test_names_that_kubernetes_and_tests_make_are_left_alone(name: str) -> None:
    assert f"CONNECTOR_{name}" not in loaded(**{name: "tcp://10.0.0.1:80"}).origins


@pytest.mark.parametrize("name", LATER_NAMES)
def test_names_of_a_later_version_are_refused_with_what_serves_instead(name: str) -> None:
    assert problem(**{name.removeprefix("CONNECTOR_"): "1"}) == f"{name} is not in this version. {LATER_NAMES[name]}"


@pytest.mark.parametrize(("name", "value"), LATER_VALUES)
def test_values_of_a_later_version_are_refused_with_what_serves_instead(name: str, value: str) -> None:
    line = problem(**{name.removeprefix("CONNECTOR_"): value})
    assert line == f"{name}={value} is not in this version. {LATER_VALUES[name, value]}"


# Sinks.


@pytest.mark.usefixtures("every_sink")
def test_settings_of_a_sink_of_every_type_are_read_from_text() -> None:
    settings = loaded(
        SINK_PATH="p",
        SINK_MODE="fast",
        SINK_KEYS="a, b,",
        SINK_COLUMNS="id=a.b, at=@timestamp",
        SINK_ROWS="7",
        SINK_ON="true",
        SINK_PAUSE="250ms",
        SINK_LIMIT="2KiB",
    ).sink_settings
    assert isinstance(settings, EverySettings)
    assert settings.mode is Mode.FAST
    assert settings.keys == ("a", "b")
    assert settings.columns == {"id": "a.b", "at": "@timestamp"}
    assert (settings.rows, settings.on, settings.pause, settings.limit) == (7, True, 0.25, 2048)


@pytest.mark.usefixtures("every_sink")
def test_problems_of_a_sinks_settings_are_told_with_the_rest() -> None:
    assert problems(
        PIPELINES="x", SINK_MODE="fats", SINK_COLUMNS="id", SINK_ROWS="0", SINK_ON="perhaps", SINK_LIMIT="3KiB"
    ) == [
        "CONNECTOR_PIPELINES=x is no whole number. Write digits only.",
        "CONNECTOR_SINK_PATH is required. Set it.",
        "CONNECTOR_SINK_MODE=fats must be fast or safe. Did you mean fast?",
        "CONNECTOR_SINK_COLUMNS=id is no mapping. Write name=value pairs with commas between them.",
        "CONNECTOR_SINK_ROWS=0 must be at least 1.",
        "CONNECTOR_SINK_ON=perhaps is neither true nor false.",
        "CONNECTOR_SINK_LIMIT=3KiB must be at most 2KiB.",
    ]


@pytest.mark.usefixtures("every_sink")
def test_a_sink_is_asked_what_is_wrong_with_its_settings_together() -> None:
    assert problem(PIPELINES="2", SINK_PATH="/one").startswith("CONNECTOR_SINK_PATH=/one")
    assert loaded(PIPELINES="2", SINK_PATH="/{pipeline}")


def test_tombstones_delete_only_where_the_sink_can() -> None:
    assert problem(SINK="null", TOMBSTONES="delete") == (
        "CONNECTOR_TOMBSTONES=delete: the sink null cannot delete. Set it to write, ignore or fail."
    )
    for policy in ("write", "ignore", "fail"):
        assert loaded(SINK="null", TOMBSTONES=policy).settings.tombstones == policy


@pytest.mark.parametrize(
    "sink", [{"SINK": "sqlite", "SINK_PATH": "/f.db"}, {"SINK": "postgres", "SINK_DSN": "host=nowhere"}], ids=str
)
def test_tombstones_delete_only_where_the_sinks_settings_tell_the_row(sink: dict[str, str]) -> None:
    delete = {**sink, "TOMBSTONES": "delete", "SINK_MODE": "upsert"}
    assert problem(**delete) == (
        "CONNECTOR_TOMBSTONES=delete: CONNECTOR_SINK_KEY_COLUMNS=topic,partition,offset has partition, offset, and "
        "only its key tells which row a tombstone deletes. Name columns that CONNECTOR_SINK_COLUMNS takes from the "
        "key, as in id:@key or id:@key.id, or set CONNECTOR_TOMBSTONES to write, ignore or fail."
    )
    by_key = {"SINK_COLUMNS": "id:@key,v:@value", "SINK_KEY_COLUMNS": "id"}
    assert loaded(**delete, **by_key).settings.tombstones == "delete"
    assert problem(**{**delete, **by_key, "SINK_MODE": "ignore"}) == (
        "CONNECTOR_TOMBSTONES=delete needs rows that follow the last record of their key, which those of "
        "CONNECTOR_SINK_MODE=ignore do not. Set CONNECTOR_SINK_MODE=upsert, or set CONNECTOR_TOMBSTONES to write, "
        "ignore or fail."
    )
    assert loaded(**{**delete, "TOMBSTONES": "write"})


@pytest.mark.usefixtures("every_sink")
def test_a_sink_that_deletes_whatever_its_settings_is_taken_for_tombstones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loaded(SINK_PATH="/one").sink, "deletes", True, raising=True)
    assert loaded(SINK_PATH="/one", TOMBSTONES="delete").settings.tombstones == "delete"


# Transforms, and plugins in a directory.

TAG = """
from connector import Field, Secret, Settings, Transform
class TagSettings(Settings):
    text: str = Field(description="A text.")
    key: Secret = Field(Secret(""), description="A secret.")
class Tag(Transform[TagSettings]):
    def apply(self, batch):
        return batch
"""
MORE = """
from connector import Field, Settings, Transform
class MoreSettings(Settings):
    text: str = Field("", description="A text.")
    a_text: str = Field("", description="A text.")
class More(Transform[MoreSettings]):
    pass
"""


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    (tmp_path / "tag.py").write_text(TAG)
    (tmp_path / "more-tags.py").write_text(MORE)
    (tmp_path / "more.py").write_text(MORE.replace("a_text", "tags_text"))
    (tmp_path / "own.py").write_text("from connector import Sink\nclass Own(Sink):\n    pass\n")
    return tmp_path


def test_transforms_run_in_the_order_named_each_with_its_own_settings(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "key").write_text("file-key-51\n")
    config = loaded(
        PLUGIN_DIR=str(directory),
        SINK="own",
        TRANSFORMS="more-tags, filter,tag",
        TRANSFORM_TAG_TEXT="t",
        TRANSFORM_TAG_KEY_FILE=str(tmp_path / "key"),
        TRANSFORM_MORE_TAGS_TEXT="m",
        TRANSFORM_FILTER_EXPRESSION="key",
    )
    assert config.sink.__name__ == "Own"
    assert [each.name for each in config.transforms] == ["more-tags", "filter", "tag"]
    more, filtered, tag = (each.settings.model_dump() for each in config.transforms)
    assert (more["text"], filtered["expression"], tag["text"]) == ("m", "key", "t")
    assert tag["key"].get_secret_value() == "file-key-51"
    assert mask("the key is file-key-51") == "the key is ***"
    assert "file-key-51" not in repr(config)


def test_a_transform_may_run_twice_under_names_of_its_own_and_a_function_among_them(directory: Path) -> None:
    (directory / "rules.py").write_text("def keep(record):\n    return True\n")
    text = "tests=filter, small = filter,rules:keep,other=rules:keep,filter"
    config = loaded(
        PLUGIN_DIR=str(directory),
        TRANSFORMS=text,
        TRANSFORM_TESTS_EXPRESSION="value.test",
        TRANSFORM_SMALL_EXPRESSION="value.small",
        TRANSFORM_FILTER_EXPRESSION="key",
    )
    assert [each.name for each in config.transforms] == ["tests", "small", "keep", "other", "filter"]
    assert [each.settings.model_dump().get("expression") for each in config.transforms] == [
        "value.test",
        "value.small",
        None,
        None,
        "key",
    ]
    shown = {each.name: each.value for each in effective_settings(config)}
    assert shown["CONNECTOR_TRANSFORMS"] == "tests=filter,small=filter,rules:keep,other=rules:keep,filter"
    assert loaded(**{**texts_of(config), "TRANSFORMS": shown["CONNECTOR_TRANSFORMS"]}).transforms[0].name == "tests"
    new = reload_plugin(config, "other")
    changed = [old.name for old, each in zip(config.transforms, new.transforms, strict=True) if old is not each]
    assert changed == ["other"]


def texts_of(config: Config) -> dict[str, str]:
    return {name.removeprefix("CONNECTOR_"): text for name, text in config.texts.items() if name not in REQUIRED}


def test_a_plugin_directory_and_transforms_may_be_named_by_files(directory: Path, tmp_path: Path) -> None:
    (tmp_path / "names").write_text("more\n")
    (tmp_path / "dir").write_text(f"{directory}\n")
    config = loaded(PLUGIN_DIR_FILE=str(tmp_path / "dir"), TRANSFORMS_FILE=str(tmp_path / "names"))
    assert [each.name for each in config.transforms] == ["more"]
    (tmp_path / "dir").unlink()
    lines = problems(PLUGIN_DIR_FILE=str(tmp_path / "dir"), TRANSFORMS_FILE=str(tmp_path / "missing"))
    assert [line.split("=")[0] for line in lines] == ["CONNECTOR_PLUGIN_DIR_FILE", "CONNECTOR_TRANSFORMS_FILE"]


def test_an_unknown_transform_is_the_only_problem_whatever_settings_it_has() -> None:
    assert problem(TRANSFORMS="filtr", TRANSFORM_FILTR_EXPRESSION="key").startswith(
        "CONNECTOR_TRANSFORMS=filtr: no such transform is installed. Did you mean filter?"
    )


@pytest.mark.parametrize(
    ("names", "words"),
    [
        ("filter,filter", "has 'filter' more than once"),
        ("a=filter,filter,filter=more", "has 'filter' more than once; give each a name of its own, as in one=filter"),
        ("sink", "has 'sink', which means the sink in POST /reload"),
        ("write=filter", "has 'write', which means the sink in dead letters; give the transform another name"),
        ("Filter", "has 'Filter', which is no transform; write its name"),
        ("a=b=filter", "has 'a=b=filter', whose name is none"),
        ("=filter", "has '=filter', whose name is none (a-z, 0-9, '_', '-'); write name=filter"),
        ("my:Keep", "has 'my:Keep', whose name is none (a-z, 0-9, '_', '-'); write name=my:Keep"),
        ("my:keep()", "has 'my:keep()', which is no transform"),
    ],
)
def test_a_list_of_transforms_that_cannot_be_meant_is_refused(names: str, words: str) -> None:
    assert problem(TRANSFORMS=names, TRANSFORM_FILTER_EXPRESSION="key").startswith(
        f"CONNECTOR_TRANSFORMS={names} {words}"
    )


def test_a_setting_that_no_transform_has_is_told_with_what_there_is() -> None:
    assert problem(TRANSFORM_FILTER_EXPRESSION="key") == (
        "CONNECTOR_TRANSFORM_FILTER_EXPRESSION: no transform in CONNECTOR_TRANSFORMS has such a setting. "
        "Correct or remove it."
    )
    assert "Did you mean CONNECTOR_TRANSFORM_FILTER_EXPRESSION?" in problem(
        TRANSFORMS="filter", TRANSFORM_FILTER_EXPRESSION="key", TRANSFORM_FILTER_EXPRESION="key"
    )
    assert problem(TRANSFORMS="filter", TRANSFORM_FILTER_EXPRESSION="value.amount > 10") == (
        "CONNECTOR_TRANSFORM_FILTER_EXPRESSION=value.amount > 10 is no JMESPath expression: unexpected '10' at column "
        "16; a number is written in backquotes, as in `10`."
    )


def test_a_setting_that_two_transforms_would_share_is_refused(directory: Path) -> None:
    (directory / "more-tags.py").write_text(MORE)
    assert problem(PLUGIN_DIR=str(directory), TRANSFORMS="more,more-tags") == (
        "CONNECTOR_TRANSFORM_MORE_TAGS_TEXT is a setting of two transforms in CONNECTOR_TRANSFORMS. "
        "Give one of them another name."
    )


def test_a_reload_checks_the_settings_again_and_changes_that_plugin_only(directory: Path) -> None:
    config = loaded(PLUGIN_DIR=str(directory), SINK="own", TRANSFORMS="more,tag", TRANSFORM_TAG_TEXT="t")
    (directory / "tag.py").write_text(
        TAG.replace("text: str", 'more: int = Field(5, description="New.")\n    text: str')
    )
    new = reload_plugin(config, "tag")
    assert new.transforms[0] is config.transforms[0]
    assert new.transforms[1].settings.model_dump() == {"more": 5, "text": "t", "key": Secret("")}
    assert new.transforms[1].transform is not config.transforms[1].transform
    own = reload_plugin(new, "sink")
    assert own.sink is not config.sink
    assert own.transforms == new.transforms


def test_a_new_version_that_does_not_take_the_settings_is_refused(directory: Path) -> None:
    config = loaded(PLUGIN_DIR=str(directory), TRANSFORMS="tag", TRANSFORM_TAG_TEXT="t")
    for new, told in (
        (TAG.replace("text: str", "words: str"), "CONNECTOR_TRANSFORM_TAG_TEXT: the new version has no such setting."),
        (TAG.replace("text: str", "words: str"), "CONNECTOR_TRANSFORM_TAG_WORDS is required."),
        (TAG + "(", "CONNECTOR_TRANSFORMS=tag: cannot be imported: SyntaxError"),
    ):
        (directory / "tag.py").write_text(new)
        with pytest.raises(ConfigError) as refused:
            reload_plugin(config, "tag")
        assert told in str(refused.value)
    with pytest.raises(ConfigError, match=r"There is no 'tags' to reload\. There are: sink, tag\."):
        reload_plugin(config, "tags")


# Secrets.


@pytest.mark.parametrize("host", ["connector:9464", "http://connector", "a b", "*.example.com", "-a"])
def test_a_name_of_the_admin_address_with_a_port_or_anything_else_is_refused(host: str) -> None:
    assert f"has {host!r}, which is no host name; write names without ports" in problem(ADMIN_HOSTS=f"ok,{host}")


def test_a_token_that_no_header_can_carry_is_refused_and_none_is_shown() -> None:
    assert problem(ADMIN_TOKEN="tökén 61").startswith("CONNECTOR_ADMIN_TOKEN=*** has characters that a header")
    config = loaded(ADMIN_TOKEN="admin-token-62")
    assert "admin-token-62" not in repr(config)
    assert mask("Bearer admin-token-62") == "Bearer ***"


@pytest.mark.usefixtures("every_sink")
def test_no_secret_is_in_any_error(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("weak-secret-31\n")
    lines = "\n".join(
        [
            *problems(KAFKA_SASL_PASSWORD="secret-32", KAFKA_DEBUG="x", SINK_PATH="p"),
            *problems(KAFKA_SSL_KEY_PASSWORD="secret-33", KAFKA_SASL_JAAS_CONFIG="secret-33", SINK_PATH="p"),
            *problems(SINK_PASSWORD="weak-secret-34", SINK_PATH="p"),
            *problems(SINK_PASSWORD_FILE=str(tmp_path / "secret"), SINK_PATH="p"),
            *problems(SINK_PASSWORD="secret-35", SINK_PATH="p", PIPELINES="2"),
            *problems(SINK_PASWORD="secret-36", SINK_PATH="p"),
            *problems(BOOTSTRAP_SERVERS="http://me:secret-37@host/path", SINK_PATH="p"),
            *problems(KAFKA_SSL_KEY_PEM="secret-38", KAFKA_SECURITY_PROTOCOL="ssl", SINK_PATH="p"),
        ]
    )
    assert "***" in lines
    assert "secret-3" not in lines
