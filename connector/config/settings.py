"""Every setting of the engine: name, type, default, unit and meaning, in one typed and frozen model.

The field `group_id` is `CONNECTOR_GROUP_ID`. The settings of the sink and of each transform are their own models, and
client properties are `connector.source.client_config`; `load` reads them all.
"""

from __future__ import annotations

import os
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Literal, TypeAlias
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator

from connector.api.settings import Duration, Field, Secret, Settings, Size
from connector.config.address import ADMIN_ADDRESS, Address, parse_address
from connector.config.display import mask_credentials
from connector.config.environment import PREFIX
from connector.config.memory import LEAST_BYTES, default_budget_bytes
from connector.config.transform_list import TransformChoice, parse_transforms
from connector.source.client_config import DEFAULT_STRATEGY, AssignmentStrategy, ProtocolChoice, probe_client
from connector.source.position import Start, StartPolicy, parse_start
from connector.telemetry.metrics import PARTITION_LIMIT, TOPIC_LIMIT

_SERVER = re.compile(r"(\w+://)?([^\s:,/\[\]]+|\[[0-9a-fA-F:]+\])(:\d{1,5})?")
_TOPIC = re.compile(r"[a-zA-Z0-9._-]{1,249}")
_TOKEN = re.compile(r"[!-~]+")
_HOST_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]*[A-Za-z0-9])?")


def _split(value: object) -> object:
    return tuple(part.strip() for part in value.split(",") if part.strip()) if isinstance(value, str) else value


def _servers(value: object) -> object:
    servers = _split(value)
    wrong = [server for server in servers if not _SERVER.fullmatch(server)] if isinstance(servers, tuple) else []
    if wrong or servers == ():
        raise ValueError(f"has {_named(wrong)}, which is no address; write host:port, or several with commas")
    return servers


def _topics(value: object) -> object:
    topics = _split(value)
    wrong = [topic for topic in topics if not _is_topic(topic)] if isinstance(topics, tuple) else []
    if wrong or topics == ():
        raise ValueError(
            f"has {_named(wrong)}, which is neither a topic name (letters, digits, '.', '_', '-') nor a pattern that "
            "the client takes (begins with ^, an extended regular expression without look-ahead or commas)"
        )
    return topics


def _topic(value: object) -> object:
    if isinstance(value, str) and not _TOPIC.fullmatch(value):
        raise ValueError("is no topic name; use letters, digits, '.', '_' and '-', 249 at most")
    return value


def _is_topic(entry: str) -> bool:
    if not entry.startswith("^"):
        return _TOPIC.fullmatch(entry) is not None
    try:
        re.compile(entry)
    except re.error:
        return False
    # Both read it: we to tell which topics are missing, the client to subscribe. It has one syntax for both properties.
    return probe_client({"topic.blacklist": entry}).error is None


def _urls(value: object) -> object:
    urls = _split(value)
    for url in urls if isinstance(urls, tuple) else ():
        found = urlsplit(url)
        if found.scheme not in ("http", "https") or not found.hostname:
            raise ValueError("has an address that is no URL; write http://host:port or https://host:port")
        if found.username is not None:
            raise ValueError(
                "has credentials in it, which logs would show; set CONNECTOR_REGISTRY_USER and "
                "CONNECTOR_REGISTRY_PASSWORD, or CONNECTOR_REGISTRY_TOKEN"
            )
        if found.query or found.fragment:
            raise ValueError("has a query or a fragment; write only the address, and the path if there is one")
    return urls


def _transforms(value: object) -> object:
    return parse_transforms(value) if isinstance(value, str) else value


def _directory(value: object) -> object:
    if isinstance(value, str) and not Path(value).is_dir():
        raise ValueError("is no directory; correct the path, or mount it")
    return value


def _hosts(value: object) -> object:
    hosts = _split(value)
    wrong = [host for host in hosts if not _HOST_NAME.fullmatch(host)] if isinstance(hosts, tuple) else []
    if wrong:
        raise ValueError(f"has {_named(wrong)}, which is no host name; write names without ports, with commas")
    return hosts


def _readable_file(value: object) -> object:
    if isinstance(value, str) and not (Path(value).is_file() and os.access(value, os.R_OK)):
        raise ValueError("cannot be read; put the file there, or correct the path")
    return value


def _token(value: Secret) -> Secret:
    if not _TOKEN.fullmatch(value.get_secret_value()):
        raise ValueError("has characters that a header cannot carry; use ASCII letters, digits and signs, no spaces")
    return value


def _named(entries: list[str]) -> str:
    return " and ".join(repr(mask_credentials(entry)) for entry in entries) or "nothing in it"


def _start(value: object) -> object:
    return parse_start(value) if isinstance(value, str) else value


def _stop(value: object) -> object:
    if not isinstance(value, str) or value == "end":
        return value
    try:
        time = datetime.fromisoformat(value)
    except ValueError:
        raise ValueError("is neither end nor an ISO time such as 2026-01-31T00:00:00Z") from None
    return time if time.tzinfo else time.replace(tzinfo=UTC)


def _limit(value: object) -> object:
    return None if value == "none" else value


def _lower(value: object) -> object:
    return value.lower() if isinstance(value, str) else value


def _address(value: object) -> object:
    return parse_address(value) if isinstance(value, str) else value


StartSetting = Annotated[
    Start,
    BeforeValidator(_start),
    Field(json_schema_extra={"values": "`earliest`, `latest`, `error` or an ISO time"}),
]


FormatName: TypeAlias = Literal["bytes", "string", "json", "avro", "json-schema"]
ReadableFile: TypeAlias = Annotated[Path | None, BeforeValidator(_readable_file)]

_FORMATS = (
    "`bytes`: as it is; `string`: UTF-8; `json`: any JSON; `avro`, `json-schema`: begins with the id of a schema in "
    "`CONNECTOR_REGISTRY_URL`."
)


class ConnectorSettings(Settings):
    """The engine's settings. Durations are seconds, sizes bytes, instants aware UTC or as written."""

    bootstrap_servers: Annotated[tuple[str, ...], BeforeValidator(_servers)] = Field(
        description="Brokers to ask first, as host:port, with commas between them.",
        json_schema_extra={"values": "list"},
    )
    group_id: str = Field(min_length=1, description="Consumer group. Copies with the same one divide the partitions.")
    topics: Annotated[tuple[str, ...], BeforeValidator(_topics)] = Field(
        description="Topics, with commas between them. An entry that begins with `^` is a pattern.",
        json_schema_extra={"values": "list"},
    )
    group_protocol: ProtocolChoice = Field(
        "auto",
        description="How the group divides partitions. `consumer` is KIP-848; `auto` takes it where the broker has it, "
        "else `classic`.",
    )
    assignment_strategy: AssignmentStrategy = Field(
        DEFAULT_STRATEGY,
        description="Under `classic`. `range` and `roundrobin` stop all partitions at every rebalance. Setting it "
        "makes `auto` choose `classic`.",
    )
    start: StartSetting = Field(
        StartPolicy.EARLIEST, description="Where a group without any position starts. An ISO time without zone is UTC."
    )
    start_new_partition: StartSetting = Field(
        StartPolicy.EARLIEST, description="Where a partition starts that was added while the group had positions."
    )
    start_on_expired: StartSetting = Field(
        StartPolicy.EARLIEST, description="Where a partition starts whose position the cluster has forgotten."
    )
    start_on_out_of_range: StartSetting = Field(
        StartPolicy.EARLIEST, description="Where a partition starts whose position is not in the log any more."
    )
    start_on_recreated: StartSetting = Field(
        StartPolicy.EARLIEST, description="Where the partitions of a topic start that was deleted and made again."
    )
    stop: Annotated[Literal["end"] | datetime | None, BeforeValidator(_stop)] = Field(
        None,
        description="Makes a bounded run: up to the ends seen at start, or up to a time. Unset: runs until stopped.",
        json_schema_extra={"values": "`end` or an ISO time"},
    )
    startup_timeout: Duration = Field(
        60.0, gt=0, description="Exit 8 when no cluster was reached by then. Never after the first assignment."
    )
    missing_topic: Literal["wait", "fail"] = Field(
        "wait", description="A named topic that does not exist: wait for it, shown in a metric, or exit 2."
    )
    pipelines: int = Field(
        1, ge=1, le=256, description="Pipeline threads in this process, each with its own sink instance."
    )
    batch_rows: int = Field(5000, ge=1, le=10_000_000, description="Most records in a batch.")
    batch_bytes: Size = Field(8 * 2**20, ge=1, description="Most bytes in a batch.")
    batch_linger: Duration = Field(
        0.2,
        description="How long the first record of a batch waits for more. `0`: not at all.",
    )
    memory_budget: Size = Field(
        default_factory=default_budget_bytes,
        ge=LEAST_BYTES,
        description="What records may occupy in memory: the client's prefetch, lane buffers and batches.",
        json_schema_extra={"unit": "size", "default": "256MiB, or 40 % of the container's memory if that is less"},
    )
    lane_idle_timeout: Duration = Field(
        300.0,
        gt=0,
        description="A lane that gets no records for so long although there are some has stalled; the sink is told.",
    )
    commit_interval: Duration = Field(5.0, gt=0, description="Time between periodic commits.")
    drain_timeout: Duration = Field(
        20.0,
        gt=0,
        description="How long a rebalance waits for records under way. With 60s for the commit it must fit into "
        "`max.poll.interval.ms`.",
    )
    shutdown_timeout: Duration = Field(
        25.0, gt=0, description="Time for everything at the end: drain, last commit, leaving the group. Then exit 6."
    )
    key_format: FormatName = Field("bytes", description=f"What a key is. {_FORMATS}")
    value_format: FormatName = Field("bytes", description="What a value is, likewise.")
    registry_url: Annotated[tuple[str, ...], BeforeValidator(_urls)] = Field(
        (),
        description="Schema registry, `http://` or `https://`; of several, with commas between them, the first that "
        "answers.",
        json_schema_extra={"values": "list"},
    )
    registry_user: str | None = Field(None, min_length=1, description="User for the registry.")
    registry_password: Secret | None = Field(None, description="The user's password.")
    registry_token: Annotated[Secret, AfterValidator(_token)] | None = Field(
        None, description="What the registry gets as `Authorization: Bearer <token>`, instead of a user."
    )
    registry_ssl_ca_location: ReadableFile = Field(
        None,
        description="Certificates of the authorities that the registry's certificate is checked against, PEM. Unset: "
        "the usual ones.",
        json_schema_extra={"values": "path"},
    )
    registry_ssl_certificate_location: ReadableFile = Field(
        None, description="Certificate to show to the registry, PEM.", json_schema_extra={"values": "path"}
    )
    registry_ssl_key_location: ReadableFile = Field(
        None,
        description="Key of that certificate, PEM. Unset: it is in the same file.",
        json_schema_extra={"values": "path"},
    )
    registry_ssl_key_password: Secret | None = Field(None, description="Password of that key.")
    registry_timeout: Duration = Field(
        5.0, gt=0, description="How long the registry may take for a schema; then it is asked again."
    )
    registry_unknown_grace: Duration = Field(
        30.0,
        description="How long the registry may not know a schema, since it is new; after that the record is poison.",
    )
    transforms: Annotated[tuple[TransformChoice, ...], BeforeValidator(_transforms)] = Field(
        (),
        description="Transforms between decoder and sink, in this order, with commas between them; `connector sinks` "
        "lists them. Each is the name of a transform, `module:function`, or either under a name of its own: "
        "`name=transform`.",
        json_schema_extra={"values": "list"},
    )
    tombstones: Literal["write", "delete", "ignore", "fail"] = Field(
        "write",
        description="Records whose value is null: go to the sink as they are, delete there what their key names (sinks "
        "that can), are counted and left out, or are poison.",
    )
    sink: str = Field("stdout", min_length=1, description="Name of the sink; `connector sinks` lists them.")
    plugin_dir: Annotated[Path | None, BeforeValidator(_directory)] = Field(
        None,
        description="Directory with plugins: each `NAME.py` defines one sink, one transform, or functions of a record.",
        json_schema_extra={"values": "path"},
    )
    state_dir: Path | None = Field(
        None,
        description="Directory in which runtime parameters survive a restart, one for each copy; made when missing. "
        "Unset: they are forgotten.",
        json_schema_extra={"values": "path"},
    )
    on_poison: Literal["fail", "skip", "dlq"] = Field(
        "fail",
        description="A record that can never be written: exit 5 before its position is committed; log, count and "
        "pass over it; or keep it in `CONNECTOR_DLQ_TOPIC`.",
    )
    dlq_topic: Annotated[str | None, BeforeValidator(_topic)] = Field(
        None,
        description="Dead letter topic under `CONNECTOR_ON_POISON=dlq`; it has to exist. It is kept out of the "
        "patterns in `CONNECTOR_TOPICS`.",
    )
    dlq_on_too_large: Literal["fail", "truncate", "skip"] = Field(
        "fail",
        description="A record that the dead letter topic does not take for its size: exit 5; keep only the beginning "
        "of its value; or log, count and pass over it.",
    )
    dlq_max_ratio: float = Field(
        0.5,
        gt=0,
        le=1,
        description="Exit 5 when more than this part of the last `CONNECTOR_DLQ_WINDOW` records of a pipeline died. "
        "`1`: no limit.",
    )
    dlq_window: int = Field(1000, ge=1, le=10_000_000, description="How many records that ratio is of.")
    dlq_max_consecutive: int = Field(
        200, ge=0, description="Exit 5 when more than so many records of a pipeline died in a row. `0`: no limit."
    )
    retry_limit: Annotated[int | None, BeforeValidator(_limit)] = Field(
        None,
        ge=0,
        description="Retries of one batch after transient errors, then exit 7. `none`: for ever.",
        json_schema_extra={"values": "whole number or `none`"},
    )
    retry_initial: Duration = Field(0.1, gt=0, description="First wait before a retry; it doubles, with jitter.")
    retry_max: Duration = Field(30.0, gt=0, description="Longest wait before a retry; the other side may ask for more.")
    admin_address: Annotated[Address, BeforeValidator(_address)] = Field(
        ADMIN_ADDRESS,
        description="Where `/metrics`, `/livez`, `/readyz` and `/status` are served. Port 0 takes a free one.",
        json_schema_extra={"values": "host:port"},
    )
    admin_token: Annotated[Secret, AfterValidator(_token)] | None = Field(
        None,
        description="What a request that changes something has to bring, as `Authorization: Bearer <token>`; 16 "
        "characters or more. Unset: such requests are refused.",
    )
    admin_hosts: Annotated[tuple[str, ...], BeforeValidator(_hosts)] = Field(
        (),
        description="Names by which the admin address is reached, with commas between them, besides IP addresses, "
        "`localhost` and the machine's own name. A request that changes something, or comes to a loopback address, is "
        "refused under any other name.",
        json_schema_extra={"values": "list"},
    )
    metrics_partitions: int = Field(
        PARTITION_LIMIT,
        ge=0,
        description="How many partitions have series of their own in `/metrics`; sums over topics stay complete.",
    )
    metrics_topics: int = Field(
        TOPIC_LIMIT,
        ge=0,
        description="How many topics have series of their own in `/metrics`; all others are the topic `_other`.",
    )
    log_level: Annotated[Literal["debug", "info", "warning", "error"], BeforeValidator(_lower)] = Field(
        "info", description="Least level that is logged."
    )
    log_format: Literal["auto", "console", "json"] = Field(
        "auto", description="`auto` is `console` on a terminal, else `json`. Logs go to standard error."
    )


def environment_name(field: str, prefix: str = PREFIX) -> str:
    """Return the environment variable of a field."""
    return prefix + field.upper()
