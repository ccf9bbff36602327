"""Secrets never show: what was registered, and what looks secret by its name, is `***` in every log line and page."""

from __future__ import annotations

import contextlib
import json
import math
import re
import threading
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from enum import Enum
from urllib.parse import quote, urlsplit

_MASK = "***"
_SECRET_KEY = re.compile(
    r"passw(or)?d|passphrase|secret|token|credential|api[_.-]?key|private[_.-]?key|key[_.-]pem|jaas|user[_.-]info",
    re.IGNORECASE,
)
_CONNINFO_PASSWORD = re.compile(r"\bpassword\s*=\s*('(?:[^'\\]|\\.)*'|[^\s&]+)", re.IGNORECASE)
_LONG_LINE = 16  # characters; a shorter line of a secret with several says too little to be masked alone


class _Secrets:
    """Every registered secret, in each form in which it may be written, as one pattern."""

    def __init__(self) -> None:
        self._lock = threading.Lock()  # Guards _forms; taken by whoever registers; leaf lock.
        self._forms: set[str] = set()
        self._pattern: re.Pattern[str] | None = None  # replaced as a whole, read without the lock

    def add(self, value: str) -> None:
        forms = {
            form
            for part in _parts(value)
            for form in (part, repr(part)[1:-1], json.dumps(part)[1:-1], quote(part, safe=""))
            if form.strip()
        }
        with self._lock:
            self._forms |= forms
            if self._forms:
                longest_first = sorted(self._forms, key=len, reverse=True)
                self._pattern = re.compile("|".join(map(re.escape, longest_first)))

    def mask(self, text: str) -> str:
        return self._pattern.sub(_MASK, text) if self._pattern else text


def _parts(value: str) -> set[str]:
    """Return a secret and what is secret in it: the password of a URL or connection string, lines of a key file."""
    parts = {value, value.strip()}
    parts.update(
        line.strip() for line in value.splitlines() if len(line.strip()) >= _LONG_LINE and not line.startswith("-----")
    )
    parts.update(found.strip("'") for found in _CONNINFO_PASSWORD.findall(value))
    with contextlib.suppress(ValueError):  # not a URL
        parts.add(urlsplit(value).password or "")
    return parts


_secrets = _Secrets()


def register_secret(value: str) -> None:
    """Never show this value again, in any field, exception text or page; the empty string is ignored. Any thread."""
    _secrets.add(value)


def mask(value: object, key: str = "") -> object:
    """Return plain data (dict, list, str, numbers, None; valid UTF-8) with every registered secret as `***`.

    A value whose key looks secret is masked whole, unless the key names a file.
    """
    if isinstance(value, Enum):
        value = value.value
    if value is None or isinstance(value, bool):
        return value
    if _SECRET_KEY.search(key) and not key.lower().endswith("_file"):
        return _MASK
    if isinstance(value, Mapping):
        return {_secrets.mask(str(name)): mask(item, str(name)) for name, item in value.items()}
    if isinstance(value, (list, tuple, AbstractSet)):
        return [mask(item) for item in value]
    if isinstance(value, bytes):
        text = value.decode("utf-8", "backslashreplace")
    else:
        text = f"{type(value).__name__}: {value}" if isinstance(value, BaseException) else str(value)
    masked = _secrets.mask(text).encode("utf-8", "backslashreplace").decode()
    is_number = isinstance(value, int) or (isinstance(value, float) and math.isfinite(value))
    return value if is_number and masked == text else masked
