"""Runtime parameters of the sink: checked by its model, stored, then told to its instances.

`set` and `delete` belong to the thread that runs the admin's verbs: they write a file. What they return is handed to
the controller by its queue, and goes from there to each pipeline as an event. `all` may be called on any thread: a
pipeline replays it to a new instance before the first `Input`. A value is in `all` before its event is sent, so a new
instance misses nothing; it may see the newest value twice.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import TYPE_CHECKING

import orjson
from pydantic import SecretStr, ValidationError
from pydantic_core import to_jsonable_python

from connector.api.errors import ConfigError, TransientError
from connector.api.event import ParamDeleted, ParamUpdate
from connector.telemetry.logs import get_logger
from connector.telemetry.masking import register_secret

if TYPE_CHECKING:
    from collections.abc import Mapping

    from connector.api.event import JsonValue
    from connector.api.settings import Settings

log = get_logger(__name__)

_FILE = "params.json"


@dataclass(frozen=True, slots=True)
class _Set:
    """The parameters that are set, as they were set, and what the model makes of them (None: no model yet)."""

    values: Mapping[str, JsonValue]
    made: Settings | None

    def event(self, key: str) -> ParamUpdate:
        """Return what the sink is told of a parameter."""
        value = getattr(self.made, key)
        return ParamUpdate(key, to_jsonable_python(value.get_secret_value() if isinstance(value, SecretStr) else value))


class Params:
    """The parameters that are set.

    Args:
        model: `params_type` of the sink: a field for each parameter, each with a default. None: the sink takes none.
        directory: `CONNECTOR_STATE_DIR`, made when missing; None: they are gone when the process ends.

    Raises:
        ConfigError: A parameter has no default, or the directory cannot be used.
    """

    def __init__(self, model: type[Settings] | None, directory: Path | None) -> None:
        self._model = _checked(model)
        self._store = directory / _FILE if directory is not None else None
        self._set = _Set({}, None)  # replaced as a whole
        if self._store is not None:
            _prepare(self._store.parent)
            self._take(_read(self._store))

    def set(self, key: str, value: JsonValue) -> ParamUpdate | None:
        """Check and store a parameter; returns the event to deliver, None if it was set so. Blocks for the disk.

        The event has the value as the model makes it, in JSON's terms: `5m` of a duration is 300.0.

        Raises:
            ConfigError: The sink has no such parameter, or does not take this value.
            TransientError: It cannot be stored; nothing has changed.
        """
        before = self._set.values
        new = self._check({**before, key: value}, key)
        if key in before and _is_same(before[key], value):
            return None
        self._replace(new)
        return self._set.event(key)

    def delete(self, key: str) -> ParamDeleted | None:
        """Take a parameter back; returns the event to deliver, None if it was not set. Blocks for the disk.

        Raises:
            ConfigError: The sink has no such parameter, or those that are left do not go together.
            TransientError: It cannot be stored; nothing has changed.
        """
        before = self._set.values
        new = self._check({name: value for name, value in before.items() if name != key}, key)
        if key not in before:
            return None
        self._replace(new)
        return ParamDeleted(key)

    def all(self) -> tuple[ParamUpdate, ...]:
        """Return an event for each parameter that is set, for a new instance. Any thread."""
        now = self._set
        return tuple(map(now.event, now.values))

    def shown(self) -> dict[str, JsonValue]:
        """Return the parameters as they were set, secrets as stars. Any thread."""
        now = self._set
        return {
            name: "***" if isinstance(getattr(now.made, name), SecretStr) else value
            for name, value in now.values.items()
        }

    def change_model(self, model: type[Settings] | None) -> None:
        """Go on with the parameters of a reloaded sink; what it does not take is told and left out.

        Called on the thread of `set`, before instances of the new version ask for `all`.

        Raises:
            ConfigError: A parameter has no default; nothing has changed.
        """
        self._model = _checked(model)
        self._take(self._set.values)

    def _take(self, values: Mapping[str, JsonValue]) -> None:
        """Take values that may be of another version of the sink, one after the other."""
        taken = _Set({}, None)
        for key, value in values.items():
            try:
                taken = self._check({**taken.values, key: value}, key)
            except ConfigError as error:
                log.warning("stored_parameter_left_out", parameter=key, reason=str(error))
        self._set = taken

    def _check(self, values: Mapping[str, JsonValue], key: str) -> _Set:
        """Check all values together, since a model may relate them; `key` is the one that has changed."""
        known = sorted(self._model.model_fields) if self._model is not None else []
        if self._model is None or key not in known:
            nearest = get_close_matches(key, known, n=1)
            meant = f" Did you mean {nearest[0]}?" if nearest else ""
            has = f"It has {', '.join(known)}." if known else "It has none."
            raise ConfigError(f"The sink has no parameter {key!r}.{meant} {has}")
        try:
            made = self._model.model_validate(values)
        except ValidationError as error:
            # Without the value, which may be a secret.
            found = error.errors(include_url=False, include_input=False)[0]
            where = str(found["loc"][0]) if found["loc"] else key
            raise ConfigError(f"The parameter {where} is not valid: {found['msg']}.") from None
        value = getattr(made, key)
        if isinstance(value, SecretStr):
            register_secret(value.get_secret_value())
        return _Set(values, made)

    def _replace(self, new: _Set) -> None:
        if self._store is not None:
            _write(self._store, new.values)
        self._set = new


def _is_same(one: JsonValue, other: JsonValue) -> bool:
    """Whether they are the same JSON: to Python, 1, 1.0 and true are equal."""
    option = orjson.OPT_SORT_KEYS
    return orjson.dumps(one, option=option) == orjson.dumps(other, option=option)


def _checked(model: type[Settings] | None) -> type[Settings] | None:
    """Refuse a model with a parameter that would not have a value before it is set, and after it is deleted."""
    for name, field in model.model_fields.items() if model is not None else ():
        if field.is_required():
            raise ConfigError(
                f"The parameter {name} of the sink has no default, so that nothing would be in force before it is set. "
                "This is a bug in the sink; report it to its makers."
            )
    return model


def _prepare(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            pass
    except OSError as error:
        raise ConfigError(
            f"CONNECTOR_STATE_DIR={directory} cannot be written to: {error.strerror or error}. Correct the path or the "
            "rights, or leave it unset to forget runtime parameters at the end."
        ) from error


def _read(store: Path) -> dict[str, JsonValue]:
    """Return what is stored; a file that cannot be understood is told, and put aside for whoever wants to mend it."""
    try:
        found = orjson.loads(store.read_bytes())
        if isinstance(found, dict):
            return found
        reason = "it holds no JSON object"
    except FileNotFoundError:
        return {}
    except (OSError, ValueError) as error:
        reason = str(error)
    aside = store.with_name(store.name + ".unreadable")
    with suppress(OSError):
        store.replace(aside)
    log.error("stored_parameters_put_aside", path=str(aside), reason=reason)
    return {}


def _write(store: Path, values: Mapping[str, JsonValue]) -> None:
    """Replace the file as a whole, so that a crash leaves the old or the new one."""
    try:
        descriptor, name = tempfile.mkstemp(prefix=store.name, dir=store.parent)
        try:
            with os.fdopen(descriptor, "wb") as file:
                file.write(orjson.dumps(dict(values), option=orjson.OPT_INDENT_2 | orjson.OPT_APPEND_NEWLINE))
                file.flush()
                os.fsync(descriptor)
            Path(name).replace(store)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise
        directory = os.open(store.parent, os.O_RDONLY)
        try:
            os.fsync(directory)  # the new name, too, must survive a power cut
        finally:
            os.close(directory)
    except OSError as error:
        raise TransientError(f"The parameter cannot be stored in {store}: {error.strerror or error}.") from error
