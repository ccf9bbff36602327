"""Dockerfile, compose file and the guide to deploy keep what they promise without an engine to try them on."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from connector.config.settings import ConnectorSettings

ROOT = Path(__file__).parents[2]
DOCKERFILE = (ROOT / "deploy/Dockerfile").read_text(encoding="utf-8")
COMPOSE = (ROOT / "docker-compose.yml").read_text(encoding="utf-8")
GUIDE = (ROOT / "docs/guides/deploy.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("extension", ["# syntax=", "--mount", "--chmod", "--link", "<<", "BUILDKIT_"])
def test_the_dockerfile_needs_no_extension_of_a_builder(extension: str) -> None:
    assert extension not in DOCKERFILE


@pytest.mark.parametrize("instruction", ["ENTRYPOINT", "CMD"])
def test_the_connector_is_the_first_process_so_that_it_gets_the_signals(instruction: str) -> None:
    (found,) = re.findall(rf"^{instruction} (.*)$", DOCKERFILE, re.MULTILINE)
    assert found.startswith('["')


def test_nothing_of_the_machine_that_builds_stands_in_the_dockerfile() -> None:
    assert not re.findall(r"https?:|index-url|proxy|trusted-host", DOCKERFILE)


def test_every_image_has_a_version() -> None:
    images = re.findall(r"^\s+image: (\S+)$", COMPOSE, re.MULTILINE)
    assert len(images) >= 5
    assert all(re.search(r":v?\d", image) or image == "sluiceway:latest" for image in images)


def test_every_port_is_published_to_this_machine_only() -> None:
    published = re.findall(r'^\s+ports: \["(.*)"\]', COMPOSE, re.MULTILINE)
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


@pytest.mark.parametrize(
    ("text", "pattern"),
    [
        (COMPOSE, r"stop_grace_period: (\d+)s # longer than CONNECTOR_SHUTDOWN_TIMEOUT"),
        (GUIDE, r"terminationGracePeriodSeconds: (\d+)"),
        (GUIDE, r"--stop-timeout (\d+)"),
    ],
)
def test_a_copy_has_more_time_to_end_than_it_takes(text: str, pattern: str) -> None:
    found = re.search(pattern, text)
    assert found is not None
    assert float(found[1]) > float(ConnectorSettings.model_fields["shutdown_timeout"].default)


def test_copies_are_counted_not_named_so_that_they_can_be_scaled() -> None:
    assert "container_name" not in COMPOSE
