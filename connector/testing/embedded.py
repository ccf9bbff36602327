"""A Kafka broker inside this process: the mock cluster of librdkafka, which the Kafka client's wheel carries.

It needs no server, JVM or Docker; any process on this machine can use it as bootstrap server. `connector demo` and the
tests marked `embedded` run on it. It knows `group.protocol=consumer` (KIP-848) well; it proves nothing about eager or
cooperative revocation, transactions, retention or restarts. It keeps 5 MiB or 100,000 batches of a partition and
silently trims what is older.

The mock cluster's API is public, but experimental (`rdkafka_mock.h`), and the Python client leaves it out, hence
ctypes.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Final

from confluent_kafka import cimpl

from connector.api.errors import ConfigError, FatalError

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

_PRODUCER: Final = 0  # rd_kafka_type_t; a client needs a type, although this one never sends anything
_CONF_OK: Final = 0  # rd_kafka_conf_res_t
_ALL_BROKERS: Final = -1

_POINTER = ctypes.c_void_p
_SIGNATURES: Final[dict[str, tuple[object, list[object]]]] = {
    "rd_kafka_conf_new": (_POINTER, []),
    "rd_kafka_conf_set": (
        ctypes.c_int,
        [_POINTER, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_char_p, ctypes.c_size_t],
    ),
    "rd_kafka_new": (_POINTER, [ctypes.c_int, _POINTER, ctypes.c_char_p, ctypes.c_size_t]),
    "rd_kafka_destroy": (None, [_POINTER]),
    "rd_kafka_err2str": (ctypes.c_char_p, [ctypes.c_int]),
    "rd_kafka_mock_cluster_new": (_POINTER, [_POINTER, ctypes.c_int]),
    "rd_kafka_mock_cluster_destroy": (None, [_POINTER]),
    "rd_kafka_mock_cluster_bootstraps": (ctypes.c_char_p, [_POINTER]),
    "rd_kafka_mock_topic_create": (ctypes.c_int, [_POINTER, ctypes.c_char_p, ctypes.c_int, ctypes.c_int]),
    "rd_kafka_mock_push_request_errors_array": (
        None,
        [_POINTER, ctypes.c_int16, ctypes.c_size_t, ctypes.POINTER(ctypes.c_int)],
    ),
    "rd_kafka_mock_clear_request_errors": (None, [_POINTER, ctypes.c_int16]),
    "rd_kafka_mock_broker_set_down": (ctypes.c_int, [_POINTER, ctypes.c_int32]),
    "rd_kafka_mock_broker_set_up": (ctypes.c_int, [_POINTER, ctypes.c_int32]),
    "rd_kafka_mock_group_initial_rebalance_delay_ms": (None, [_POINTER, ctypes.c_int32]),
    "rd_kafka_mock_set_group_consumer_session_timeout_ms": (None, [_POINTER, ctypes.c_int]),
    "rd_kafka_mock_set_group_consumer_heartbeat_interval_ms": (None, [_POINTER, ctypes.c_int]),
}


class EmbeddedBroker:
    """One broker on a random loopback port, alive until `close`; also a context manager.

    Create topics before anyone subscribes: a topic that a client asks for is created with 4 partitions. Every method
    but `close` may be called from any thread, and returns at once.
    """

    def __init__(self, *, session_timeout_seconds: float = 10.0, heartbeat_seconds: float = 0.2) -> None:
        """Start it; the two times are what it tells the members of KIP-848 groups.

        Raises:
            ConfigError: the client's library has no mock cluster.
        """
        self._library = _load_library()
        self._client = _new_client(self._library)
        self._cluster: int | None = self._library.rd_kafka_mock_cluster_new(self._client, 1)
        if self._cluster is None:
            self._library.rd_kafka_destroy(self._client)
            raise FatalError("the embedded broker cannot listen on 127.0.0.1; is the loopback interface up?")
        self.bootstrap_servers: str = self._library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()
        self._library.rd_kafka_mock_group_initial_rebalance_delay_ms(self._cluster, 0)
        self._library.rd_kafka_mock_set_group_consumer_session_timeout_ms(
            self._cluster, int(session_timeout_seconds * 1000)
        )
        self._library.rd_kafka_mock_set_group_consumer_heartbeat_interval_ms(
            self._cluster, int(heartbeat_seconds * 1000)
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def create_topic(self, name: str, partitions: int) -> None:
        """Create a topic.

        Raises:
            FatalError: it exists already, or the name or number is refused.
        """
        self._check(self._library.rd_kafka_mock_topic_create(self._open(), name.encode(), partitions, 1), name)

    def push_errors(self, api_key: int, *codes: int) -> None:
        """Answer the next requests of this Kafka API key with these error codes, one request each (0: no error).

        `KafkaError._TRANSPORT` cuts the connection instead of answering.
        """
        array = (ctypes.c_int * len(codes))(*codes)
        self._library.rd_kafka_mock_push_request_errors_array(self._open(), api_key, len(codes), array)

    def clear_errors(self, api_key: int) -> None:
        """Forget the errors of this Kafka API key that have not been used up."""
        self._library.rd_kafka_mock_clear_request_errors(self._open(), api_key)

    def go_down(self) -> None:
        """Cut every connection and refuse new ones; data and groups are kept."""
        self._check(self._library.rd_kafka_mock_broker_set_down(self._open(), _ALL_BROKERS), "go down")

    def come_up(self) -> None:
        """Accept connections again."""
        self._check(self._library.rd_kafka_mock_broker_set_up(self._open(), _ALL_BROKERS), "come up")

    def close(self) -> None:
        """Stop the broker and forget its data. May be called again."""
        if self._cluster is not None:
            self._library.rd_kafka_mock_cluster_destroy(self._cluster)
            self._library.rd_kafka_destroy(self._client)
            self._cluster = None

    def _open(self) -> int:
        if self._cluster is None:
            raise FatalError("the embedded broker is closed")
        return self._cluster

    def _check(self, code: int, what: str) -> None:
        if code:
            raise FatalError(f"embedded broker: {what}: {self._library.rd_kafka_err2str(code).decode()}")


def _load_library() -> ctypes.CDLL:
    # A symbol is looked up in the extension module and then in what it is linked with, so this finds the very library
    # that the client uses, wherever it lies.
    library = ctypes.CDLL(cimpl.__file__)
    try:
        for name, (result, arguments) in _SIGNATURES.items():
            function = getattr(library, name)
            function.restype = result
            function.argtypes = arguments
    except AttributeError as error:
        raise ConfigError(
            f"the embedded broker needs librdkafka with its mock cluster, as in the wheels of confluent-kafka 2.16; "
            f"{cimpl.__file__} does not lead to it ({error}). Install confluent-kafka from its wheel, or use a real "
            f"Kafka."
        ) from error
    return library


def _new_client(library: ctypes.CDLL) -> int:
    message = ctypes.create_string_buffer(512)
    conf = library.rd_kafka_conf_new()
    # The client has no broker of its own and the mock cluster's log is of no use to a user: only emergencies.
    if library.rd_kafka_conf_set(conf, b"log_level", b"0", message, len(message)) != _CONF_OK:
        raise FatalError(f"embedded broker: {message.value.decode()}")
    client: int | None = library.rd_kafka_new(_PRODUCER, conf, message, len(message))
    if client is None:
        raise FatalError(f"the embedded broker cannot start: {message.value.decode()}")
    return client
