"""`connector check` and `connector config`: what would run, found out without a connection."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING

from connector.cli.table import print_table
from connector.config.effective import effective_client, effective_settings
from connector.config.load import load
from connector.source.client_config import protocols

if TYPE_CHECKING:
    from pathlib import Path

    from connector.config.load import Config
    from connector.source.client_config import GroupProtocol

_OFF = "-"
_BROKERS = 1  # how many there are is only known when connected


def check(env_file: Path | None) -> None:
    """Print what is in effect and where it came from.

    Raises:
        ConfigError: With all problems.
    """
    config = load(os.environ, env_file)
    first, *others = protocols(config.client)
    print("Settings\n")
    print_table(
        ("name", "value", "from"), [(each.name, each.value or _OFF, each.origin) for each in effective_settings(config)]
    )
    print("\nKafka client properties\n")
    print_table(
        ("property", "value", "from"),
        [(each.name, each.value or _OFF, each.origin) for each in effective_client(config, first, _BROKERS)],
    )
    print("\nfetch.max.bytes is for a cluster of one broker: of several, each gets a part.")
    for protocol in others:
        print(f"A broker without the {first} protocol gets {protocol}, with {_differences(config, first, protocol)}.")
    for note in config.notes:
        print(f"Note: {note}")
    print("\nThe configuration is valid. Nothing was connected: neither the cluster nor the sink was asked.")


def _differences(config: Config, first: GroupProtocol, other: GroupProtocol) -> str:
    before = {each.name: each.value for each in effective_client(config, first, _BROKERS)}
    after = {each.name: each.value for each in effective_client(config, other, _BROKERS)}
    changed = [f"{name}={value}" for name, value in after.items() if before.get(name) != value]
    removed = [f"no {name}" for name in before if name not in after]
    return ", ".join(changed + removed)


def print_configuration(env_file: Path | None, *, as_json: bool) -> None:
    """Print the settings in effect for other programs; a setting that is off has an empty value.

    Raises:
        ConfigError: With all problems.
    """
    config = load(os.environ, env_file)
    settings = effective_settings(config)
    if not as_json:
        print(*(f"{each.name}={each.value}" for each in settings), sep="\n")
        return
    client = effective_client(config, protocols(config.client)[0], _BROKERS)
    print(
        json.dumps(
            {
                kind: {each.name: {"value": each.value, "from": each.origin} for each in entries}
                for kind, entries in (("settings", settings), ("client", client))
            },
            indent=2,
        )
    )
