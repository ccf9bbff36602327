"""The table of commit errors is complete, spelled as the client spells it, and by one documented rule elsewhere."""

from __future__ import annotations

import pytest
from confluent_kafka import KafkaError

from connector import AuthenticationError, ConfigError, ExitCode, FencedError, InvariantError
from connector.commit.outcome import RULES, Outcome, error_for, outcome_of

CODES = sorted(name for name in dir(KafkaError) if name.isupper() and isinstance(getattr(KafkaError, name), int))


def test_every_code_in_the_table_is_one_of_the_client() -> None:
    assert set(RULES) <= set(CODES)
    assert len(CODES) > 150


@pytest.mark.parametrize("name", CODES)
def test_every_code_of_the_client_is_in_the_table_or_is_tried_again(name: str) -> None:
    code = KafkaError(getattr(KafkaError, name)).name()
    assert code == name
    assert outcome_of(code) is (RULES[code].outcome if code in RULES else Outcome.RETRY)


def test_a_code_that_no_client_knows_yet_is_tried_again() -> None:
    assert outcome_of(KafkaError(9999).name()) is Outcome.RETRY
    assert error_for("ERR_9999?") is None


@pytest.mark.parametrize("code", RULES)
def test_fatal_codes_and_no_others_have_an_error_that_names_the_code(code: str) -> None:
    error = error_for(code)
    assert (error is not None) == (outcome_of(code) is Outcome.FATAL)
    if error is not None:
        assert f"({code})" in str(error)


@pytest.mark.parametrize(
    ("code", "outcome"),
    [
        ("COORDINATOR_NOT_AVAILABLE", Outcome.RETRY),
        ("NOT_COORDINATOR", Outcome.RETRY),
        ("_WAIT_COORD", Outcome.RETRY),
        ("REBALANCE_IN_PROGRESS", Outcome.RETRY),
        ("STALE_MEMBER_EPOCH", Outcome.RETRY),
        ("ILLEGAL_GENERATION", Outcome.WAIT),
        ("UNKNOWN_MEMBER_ID", Outcome.WAIT),
        ("FENCED_MEMBER_EPOCH", Outcome.WAIT),
        ("UNKNOWN_TOPIC_OR_PART", Outcome.WAIT),
    ],
)
def test_a_rebalance_or_a_moving_coordinator_never_ends_the_process(code: str, outcome: Outcome) -> None:
    assert outcome_of(code) is outcome


@pytest.mark.parametrize(
    ("code", "error", "exit_code"),
    [
        ("GROUP_AUTHORIZATION_FAILED", AuthenticationError, ExitCode.AUTHENTICATION),
        ("TOPIC_AUTHORIZATION_FAILED", AuthenticationError, ExitCode.AUTHENTICATION),
        ("FENCED_INSTANCE_ID", FencedError, ExitCode.FENCED),
        ("_FATAL", FencedError, ExitCode.FENCED),
        ("UNSUPPORTED_VERSION", ConfigError, ExitCode.CONFIGURATION),
        ("OFFSET_METADATA_TOO_LARGE", InvariantError, ExitCode.BUG),
    ],
)
def test_a_fatal_code_has_its_own_exit_code(code: str, error: type[Exception], exit_code: ExitCode) -> None:
    found = error_for(code)
    assert type(found) is error
    assert found.exit_code is exit_code
