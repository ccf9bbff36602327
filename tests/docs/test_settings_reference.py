from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from connector.config.reference import settings_page
from connector.config.settings import ConnectorSettings, environment_name
from connector.plugins.loader import Plugins
from connector.source.client_config import FORCED, REFUSED, TUNED

if TYPE_CHECKING:
    from connector.api.settings import Settings

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "settings.md"


def test_the_page_of_settings_is_what_the_code_says() -> None:
    assert PAGE.read_text(encoding="utf-8") == settings_page(), (
        "docs/reference/settings.md is old; write it anew: python -m connector.config.reference docs/reference"
    )


@pytest.mark.parametrize("name", ConnectorSettings.model_fields)
def test_every_setting_has_its_row(name: str) -> None:
    assert f"| `{environment_name(name)}` |" in settings_page()


def test_every_setting_says_what_it_means() -> None:
    plugins = [each.loaded for each in Plugins().installed() if each.loaded is not None]
    models: list[type[Settings]] = [ConnectorSettings, *(each.settings_type for each in plugins)]
    for model in models:
        for name, field in model.model_fields.items():
            assert field.description, f"{model.__name__}.{name}"


@pytest.mark.parametrize("name", sorted({*FORCED, *REFUSED, *TUNED}))
def test_every_property_with_a_rule_has_its_row(name: str) -> None:
    assert f"| `{name}` |" in settings_page()
