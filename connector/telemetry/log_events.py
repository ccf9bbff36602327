"""Every log event that the connector writes, declared once: what it means, what it says, what to do.

`docs/reference/events.md` comes from here, and a test holds the log calls in the code to it. A name says what has
happened, in the past; the same thing has the same field in every event. Plugins and libraries log what they like.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

Level: TypeAlias = Literal["debug", "info", "warning", "error"]

NOTHING = "Nothing."


@dataclass(frozen=True, slots=True)
class LogField:
    """One field, in whatever event. If it identifies, events that differ in it are no repeats of each other."""

    meaning: str
    identifies: bool = False


@dataclass(frozen=True, slots=True)
class LogEvent:
    """One event. `levels` are those it may have, the usual one first; `action` is what the operator does."""

    name: str
    area: str
    levels: tuple[Level, ...]
    meaning: str
    action: str
    fields: tuple[str, ...] = field(default=())


# Fields of every line, which no event lists.
COMMON_FIELDS: Mapping[str, str] = MappingProxyType(
    {
        "timestamp": "when, in UTC, RFC 3339",
        "level": "`debug`, `info`, `warning` or `error`; of libraries also `critical`",
        "logger": "the module that tells it; `librdkafka` is the Kafka client",
        "event": "the name of the event; of plugins and libraries their text",
        "repeated": "how many more of the same there were since the last one that was written; absent: none",
        "exception": "the trace, in events of a bug or a crash",
    }
)

FIELDS: Mapping[str, LogField] = MappingProxyType(
    {
        # Which one.
        "topic": LogField("topic", identifies=True),
        "partition": LogField("number of the partition", identifies=True),
        "pipeline": LogField("number of the pipeline, from 0", identifies=True),
        "code": LogField("Kafka's name of the error", identifies=True),
        "error_class": LogField("class of the error", identifies=True),
        "stage": LogField("where a record died: `decode`, the name of a transform, or `write`", identifies=True),
        "plugin": LogField("class of the sink or transform", identifies=True),
        "schema": LogField("number or GUID of a schema", identifies=True),
        "operator": LogField("`sink`, or the name of a transform", identifies=True),
        "node": LogField("`pipeline-N`, or the name of a transform", identifies=True),
        "number": LogField("of the rebalance, from 1, in this process", identifies=True),
        "parameter": LogField("name of the runtime parameter", identifies=True),
        "request": LogField("method and path", identifies=True),
        "line": LogField("the event of the line that could not be made", identifies=True),
        # Texts.
        "error": LogField("text of the error"),
        "reason": LogField("why, in words"),
        "meaning": LogField("what follows from it, in words"),
        "note": LogField("what is worth knowing about the settings, in words"),
        "step": LogField("what is tried, in words"),
        # Positions and partitions.
        "offset": LogField("of the record"),
        "position": LogField("next offset to read"),
        "lane": LogField("number of the lane, new for each assignment"),
        "lanes": LogField("how many lanes"),
        "partitions": LogField("list such as `orders[0-3,7]`; long ones are cut, with a count"),
        "uncommitted_partitions": LogField("how many partitions have work that is not committed"),
        "positions": LogField("how many positions"),
        "skipped_offsets": LogField("how many offsets are passed over unread"),
        "repeated_offsets": LogField("how many offsets are read again"),
        "cause": LogField("why a lane starts where it starts, as `connector_starts_total` has it"),
        "policy": LogField("`earliest`, `latest`, or a time"),
        "is_full_set": LogField("whether these are all the lanes, or more of them"),
        # Rebalances.
        "group_protocol": LogField("`classic` or `consumer`"),
        "generation": LogField("of the group, or the member's epoch (KIP-848), as the client knows it"),
        "gained": LogField("partitions that came, listed"),
        "gained_lanes": LogField("how many"),
        "revoked": LogField("partitions that were given up in order, listed"),
        "revoked_lanes": LogField("how many"),
        "lost": LogField("partitions that were somebody else's already, listed"),
        "lost_lanes": LogField("how many"),
        "kept": LogField("partitions that stayed, listed; an eager group takes all and brings them anew"),
        "kept_lanes": LogField("how many"),
        "drained": LogField("lanes whose work was done before they left"),
        "not_drained": LogField("lanes that left with work that their sink could not take"),
        "timed_out": LogField("lanes that were still at work at the end of `CONNECTOR_DRAIN_TIMEOUT`"),
        "committed_positions": LogField("how many positions were committed when lanes were given up"),
        "commit_result": LogField("`ok`; `none`: there was nothing to commit; or Kafka's names of the errors"),
        # Times.
        "drain_seconds": LogField("until the lanes were drained, or the time was over"),
        "callback_seconds": LogField("how long it held the consumer thread, drain and commit included"),
        "total_seconds": LogField("from its first step to its last, as this member sees it"),
        "delay_seconds": LogField("until the next try"),
        "open_seconds": LogField("until the next try"),
        "idle_seconds": LogField("without a record"),
        "timeout_seconds": LogField("the time there was"),
        "attempts": LogField("failures in a row so far"),
        # Schemas.
        "schema_type": LogField("the registry's word: `AVRO` or `JSON`"),
        "references": LogField("how many other schemas it refers to, directly or not"),
        # The process.
        "version": LogField("of Sluiceway"),
        "group": LogField("consumer group"),
        "sink": LogField("name of the sink"),
        "address": LogField("where the admin server listens"),
        "client": LogField("address that a request came from", identifies=True),
        "connections": LogField("how many connections may be open at a time"),
        "subject": LogField("what a change is about: a key, a plugin, `orders[3]`; empty: the whole process"),
        "changed": LogField("false: it was so already"),
        "slow": LogField("what did not come in time"),
        "port": LogField("port that it listens on"),
        "state": LogField("`completed`, `stopped`, `incomplete` or `failed`"),
        "exit_code": LogField("exit code of the process"),
        "shutdown_stage": LogField("`draining`, `committing` or `leaving`"),
        "before": LogField("what it was"),
        "after": LogField("what it is now"),
        "path": LogField("of the file, or of the request"),
        "outcome": LogField("what follows: `retry`, `wait` for the next assignment, `fatal`"),
        "notice": LogField("the event of the event stream"),
        "value_bytes": LogField("size of the record's value"),
        "cut_bytes": LogField("how much was cut off"),
        "kept_bytes": LogField("how much stays"),
        "lines": LogField("how many lines"),
        "records": LogField("how many records"),
        "files": LogField("how many files"),
        "file_bytes": LogField("size of the file"),
        "write_seconds": LogField("how long it took to make and store it"),
    }
)

IDENTIFYING = tuple(name for name, each in FIELDS.items() if each.identifies)

RUN = "The run"
GROUP = "The group and its rebalances"
POSITIONS = "Where lanes start"
COMMITS = "Commits"
SINKS = "Schemas, sinks, transforms and their pipelines"
RECORDS = "Records that are not written"
KAFKA = "The Kafka client and the cluster"
ADMIN = "The admin server"
LOGS = "The log itself"

EVENTS: tuple[LogEvent, ...] = (
    # The run.
    LogEvent("run_started", RUN, ("info",), "The process begins.", NOTHING, ("version", "group", "sink")),
    LogEvent("settings_noted", RUN, ("info",), "A setting has a consequence.", "Read it once.", ("note",)),
    LogEvent("stop_requested", RUN, ("info",), "A signal or `POST /stop` asks for the end.", NOTHING),
    LogEvent(
        "run_completed",
        RUN,
        ("info",),
        "A bounded run is over: the group has committed every end.",
        NOTHING,
    ),
    LogEvent(
        "run_failed",
        RUN,
        ("error",),
        "Something has failed for good. What can be drained and committed is, then the process ends.",
        "Read the error; see the exit code in `run_ended`.",
        ("error_class", "error"),
    ),
    LogEvent(
        "shutdown_timed_out",
        RUN,
        ("error",),
        "`CONNECTOR_SHUTDOWN_TIMEOUT` was not enough. What is not committed is read again after the next start.",
        "See whether the sink hangs; raise the timeout, and the grace period of whatever stops the process.",
        ("shutdown_stage", "timeout_seconds"),
    ),
    LogEvent(
        "run_ended",
        RUN,
        ("info", "error"),
        "The last line. An error if anything was left undone.",
        "Act by the exit code: [operate](../guides/operate.md#after-an-exit).",
        ("state", "exit_code", "uncommitted_partitions", "reason"),
    ),
    # The group and its rebalances.
    LogEvent(
        "rebalanced",
        GROUP,
        ("info", "warning"),
        "One rebalance, told when it is over: a revocation together with the assignment that answers it. A warning if"
        " records may be repeated: lanes were lost, not drained or not committed. A revocation that nothing answers"
        " within 30 s (consumer protocol: 5 s) is told alone.",
        "Seldom anything. Many in a row: members come and go, see why. After a warning see whether the sink is slow"
        " or down.",
        (
            "number",
            "group_protocol",
            "generation",
            "lanes",
            "gained",
            "gained_lanes",
            "revoked",
            "revoked_lanes",
            "lost",
            "lost_lanes",
            "kept",
            "kept_lanes",
            "drained",
            "not_drained",
            "timed_out",
            "drain_seconds",
            "committed_positions",
            "commit_result",
            "callback_seconds",
            "total_seconds",
        ),
    ),
    LogEvent(
        "drain_timed_out",
        GROUP,
        ("warning",),
        "A sink did not finish within `CONNECTOR_DRAIN_TIMEOUT`. What it had is not committed and is read again by"
        " the next owner.",
        "See why the sink is slow; smaller batches or a longer timeout help.",
        ("partitions", "lanes", "timed_out", "timeout_seconds", "meaning"),
    ),
    LogEvent(
        "lane_not_drained",
        GROUP,
        ("warning",),
        "A lane left with work that its sink could not take. It is read again by the next owner.",
        "Mend the sink.",
        ("topic", "partition"),
    ),
    LogEvent(
        "assignment_overlapped",
        GROUP,
        ("warning",),
        "A full set of lanes came while lanes were held that nobody had revoked. They are drained and committed first.",
        "Please report it.",
        ("lanes",),
    ),
    LogEvent(
        "joined_without_partitions",
        GROUP,
        ("info",),
        "The member is in the group, which has no partition for it. It stands by.",
        "Nothing; more members than partitions are idle.",
        ("group_protocol",),
    ),
    LogEvent(
        "group_protocol_fell_back",
        GROUP,
        ("info",),
        "The broker does not know the consumer protocol, so `CONNECTOR_GROUP_PROTOCOL=auto` takes the classic one.",
        NOTHING,
        ("meaning",),
    ),
    LogEvent(
        "lanes_assigned",
        GROUP,
        ("debug",),
        "Lanes came, by one callback of the client.",
        NOTHING,
        ("partitions", "lanes", "is_full_set"),
    ),
    LogEvent(
        "lanes_revoked",
        GROUP,
        ("debug",),
        "Lanes were given up, by one callback of the client.",
        NOTHING,
        ("partitions", "lanes", "drain_seconds"),
    ),
    LogEvent(
        "lanes_lost",
        GROUP,
        ("debug",),
        "Lanes were somebody else's already, by one callback of the client.",
        NOTHING,
        ("partitions", "lanes"),
    ),
    LogEvent(
        "lane_stalled",
        GROUP,
        ("warning",),
        "A lane gets no records although there are some, for `CONNECTOR_LANE_IDLE_TIMEOUT`.",
        "Look at the partition's leader and at the lines of `librdkafka`.",
        ("topic", "partition", "idle_seconds"),
    ),
    LogEvent(
        "lanes_ended",
        GROUP,
        ("debug",),
        "In a bounded run: lanes hold everything up to their end, which has to be written and committed.",
        NOTHING,
        ("partitions", "lanes"),
    ),
    LogEvent(
        "lanes_retired",
        GROUP,
        ("info",),
        "In a bounded run: lanes have come to their end, and it is committed.",
        NOTHING,
        ("partitions", "lanes"),
    ),
    # Where lanes start.
    LogEvent(
        "lane_started",
        POSITIONS,
        ("debug",),
        "A lane begins to flow.",
        NOTHING,
        ("lane", "topic", "partition", "position", "cause"),
    ),
    LogEvent(
        "start_policy_applied",
        POSITIONS,
        ("info",),
        "There was no position to go on from, or none that is in the log: a `CONNECTOR_START` setting decided.",
        "If `skipped_offsets` is not 0, see whether that was meant.",
        ("topic", "partition", "cause", "policy", "position", "skipped_offsets", "repeated_offsets"),
    ),
    LogEvent(
        "positions_not_read",
        POSITIONS,
        ("warning",),
        "The group's positions could not be read. The lanes wait, and it is tried again each second.",
        "Nothing, if it does not go on; else look at the group's coordinator.",
        ("error", "partitions", "lanes", "meaning"),
    ),
    LogEvent(
        "position_not_found",
        POSITIONS,
        ("warning",),
        "A position is not in the log, as retention has removed it. `CONNECTOR_START_ON_OUT_OF_RANGE` decides.",
        "See `start_policy_applied`; raise the topic's retention if the connector is behind.",
        ("topic", "partition", "position", "error"),
    ),
    LogEvent(
        "position_found",
        POSITIONS,
        ("info",),
        "The position is in the log after all: the report was of an earlier fetch.",
        NOTHING,
        ("topic", "partition", "position"),
    ),
    LogEvent(
        "log_ends_not_read",
        POSITIONS,
        ("warning",),
        "The ends of a log could not be read. The lane waits, and it is tried again each second.",
        "Nothing, if it does not go on; else look at the partition's leader.",
        ("topic", "partition", "error"),
    ),
    LogEvent(
        "topic_recreated",
        POSITIONS,
        ("warning",),
        "A topic was deleted and made again. `CONNECTOR_START_ON_RECREATED` decides.",
        "See whether that was meant.",
        ("topic",),
    ),
    # Commits.
    LogEvent(
        "commit_failed",
        COMMITS,
        ("warning",),
        "Positions were not committed.",
        "With `retry` or `wait` nothing, if it does not go on; with `fatal` see `run_failed`.",
        ("code", "outcome", "positions"),
    ),
    # Schemas.
    LogEvent(
        "decode_retry_scheduled",
        SINKS,
        ("warning",),
        "The schema registry does not give a schema that a lane needs. It is asked again; lanes that need no new schema"
        " go on.",
        "Mend what the error names; then it goes on by itself.",
        ("pipeline", "step", "attempts", "error_class", "error", "delay_seconds"),
    ),
    LogEvent(
        "schema_found",
        SINKS,
        ("info",),
        "A schema was fetched from the registry, and is kept.",
        NOTHING,
        ("schema", "schema_type", "references"),
    ),
    # Sinks.
    LogEvent("sink_opened", SINKS, ("info",), "The sink of a pipeline is open.", NOTHING, ("pipeline",)),
    LogEvent(
        "sink_retry_scheduled",
        SINKS,
        ("warning",),
        "The sink has failed with an error that may pass. It is tried again; other lanes go on.",
        "Mend what the error names; then it goes on by itself.",
        ("pipeline", "step", "attempts", "error_class", "error", "delay_seconds"),
    ),
    LogEvent(
        "breaker_opened",
        SINKS,
        ("warning",),
        "The sink has failed again and again, or its destination asks for time; it is left alone for so long.",
        "Mend what the error names; then it goes on by itself.",
        ("pipeline", "error", "open_seconds"),
    ),
    LogEvent("breaker_closed", SINKS, ("info",), "The sink works again.", NOTHING, ("pipeline",)),
    LogEvent(
        "write_refused",
        SINKS,
        ("warning",),
        "Somebody else has the partition in a sink that holds positions. The lane claims it again, and goes on from"
        " what the sink says.",
        "Nothing, if it was a rebalance; else see whether two groups write into one table.",
        ("topic", "partition", "error"),
    ),
    LogEvent(
        "plugin_crashed",
        SINKS,
        ("error",),
        "A sink or transform has raised what no plugin should: a bug in it.",
        "Report it to its makers, with the trace.",
        ("plugin", "error_class"),
    ),
    LogEvent(
        "pipeline_failed",
        SINKS,
        ("error",),
        "A pipeline has ended, by a crash or for good.",
        "See the error; after a crash it is started anew.",
        ("pipeline", "node", "error"),
    ),
    LogEvent(
        "pipeline_restart_scheduled",
        SINKS,
        ("warning",),
        "A pipeline that has crashed is started anew, from what is durable.",
        "More than 5 in 10 minutes end the process with 7: report the bug to the plugin's makers.",
        ("pipeline", "delay_seconds"),
    ),
    LogEvent(
        "pipeline_crashed",
        SINKS,
        ("error",),
        "A bug in Sluiceway, on the thread of a pipeline.",
        "Please report it, with the trace.",
        ("pipeline",),
    ),
    LogEvent(
        "plugin_reloaded",
        SINKS,
        ("info",),
        "A pipeline works with the new version of a plugin.",
        NOTHING,
        ("operator", "pipeline"),
    ),
    LogEvent(
        "plugin_reload_failed",
        SINKS,
        ("error",),
        "A new version of a plugin cannot be made or opened. The old one goes on.",
        "Correct the plugin and reload it again.",
        ("operator", "pipeline", "error"),
    ),
    LogEvent(
        "batch_settled_twice",
        SINKS,
        ("warning",),
        "An asynchronous sink has said of one batch twice what became of it. The first word counts.",
        "Report it to the plugin's makers.",
        ("plugin", "error"),
    ),
    LogEvent(
        "sink_notice_failed",
        SINKS,
        ("warning",),
        "A sink has failed at an event that carries no records. Nothing depends on it.",
        "Report it to the plugin's makers.",
        ("plugin", "notice", "error"),
    ),
    LogEvent(
        "sink_close_failed",
        SINKS,
        ("warning",),
        "A sink could not be closed. Its data is durable.",
        NOTHING,
        ("plugin", "error"),
    ),
    LogEvent(
        "transform_close_failed",
        SINKS,
        ("warning",),
        "A transform could not be closed.",
        NOTHING,
        ("operator", "error"),
    ),
    LogEvent(
        "stored_parameter_left_out",
        SINKS,
        ("warning",),
        "The sink does not take a runtime parameter that was set before. Its default is in force.",
        "Set it anew, or delete it.",
        ("parameter", "reason"),
    ),
    LogEvent(
        "stored_parameters_put_aside",
        SINKS,
        ("error",),
        "The file of the runtime parameters cannot be read. The defaults are in force.",
        "Mend the file at `path` and put it back, or set the parameters anew.",
        ("path", "reason"),
    ),
    LogEvent(
        "file_tail_cut",
        SINKS,
        ("warning",),
        "The sink `file` found half a line at the end of a file, as after a kill, and has cut it off. Its record was"
        " not acknowledged and comes again.",
        NOTHING,
        ("path", "cut_bytes", "kept_bytes"),
    ),
    LogEvent(
        "parquet_file_finished",
        SINKS,
        ("info",),
        "The sink `parquet` has written a file, and its batches are done. `reason` is what ended it: `rows`, `bytes`,"
        " `age`, `schema` (the types of the next batch do not go into it), or `asked`: a drain, the end of a bounded"
        " run, a reload, the memory budget, a try after an outage.",
        NOTHING,
        ("path", "records", "file_bytes", "reason", "write_seconds"),
    ),
    LogEvent(
        "parquet_leftovers_removed",
        SINKS,
        ("warning",),
        "The sink `parquet` has removed files that a process was writing when it was killed. No reader has seen them,"
        " and their records come again.",
        NOTHING,
        ("path", "files"),
    ),
    # Records.
    LogEvent(
        "record_skipped",
        RECORDS,
        ("warning",),
        "A poison record was left out, as `CONNECTOR_ON_POISON=skip` says.",
        "Count them in `connector_skipped_records_total`; take `dlq` to keep them.",
        ("topic", "partition", "offset", "stage", "error_class", "error"),
    ),
    LogEvent(
        "record_dead_lettered",
        RECORDS,
        ("warning",),
        "A poison record is in the dead letter topic.",
        "`connector dlq show` has all of them: [dead letters](../guides/dead-letters.md).",
        ("topic", "partition", "offset", "stage", "error_class", "error"),
    ),
    LogEvent(
        "dead_letter_truncated",
        RECORDS,
        ("warning",),
        "A record was too large for the dead letter topic, and its value was cut.",
        "Raise `max.message.bytes` of the dead letter topic.",
        ("topic", "partition", "offset", "value_bytes", "error"),
    ),
    LogEvent(
        "dead_letter_skipped",
        RECORDS,
        ("warning",),
        "A record was too large for the dead letter topic, and is not kept.",
        "Raise `max.message.bytes` of the dead letter topic.",
        ("topic", "partition", "offset", "value_bytes", "error"),
    ),
    # Kafka.
    LogEvent(
        "client_error_received",
        KAFKA,
        ("warning",),
        "The Kafka client reports an error. It goes on by itself, or `run_failed` follows.",
        "Nothing, if it does not go on; else look at the brokers and the network.",
        ("code", "error"),
    ),
    LogEvent(
        "client_close_failed",
        KAFKA,
        ("warning",),
        "The Kafka client could not be closed. The group notices by itself that the member is gone.",
        NOTHING,
        ("error",),
    ),
    LogEvent(
        "cluster_read_failed",
        KAFKA,
        ("warning",),
        "A read of positions or topics has failed. It is tried again each second.",
        "Nothing, if it does not go on; else look at the brokers.",
        ("code", "error"),
    ),
    LogEvent(
        "cluster_not_reached",
        KAFKA,
        ("debug",),
        "The thread that watches the cluster got no answer. It tries again.",
        NOTHING,
        ("error",),
    ),
    LogEvent(
        "topic_ids_not_read",
        KAFKA,
        ("warning",),
        "The brokers give no topic ids, as before version 2.8. A topic that is made again is not noticed.",
        "Upgrade the brokers, or do not make topics again under an old name.",
        ("error", "meaning"),
    ),
    LogEvent(
        "source_crashed",
        KAFKA,
        ("error",),
        "A bug in Sluiceway, on the consumer thread.",
        "Please report it, with the trace.",
    ),
    # Admin.
    LogEvent("admin_started", ADMIN, ("info",), "The admin server listens.", NOTHING, ("address", "port")),
    LogEvent(
        "admin_failed",
        ADMIN,
        ("error",),
        "The admin server has ended. Records still flow.",
        "Please report it, with the trace; start again to have it back.",
        ("meaning",),
    ),
    LogEvent(
        "admin_request_failed",
        ADMIN,
        ("error",),
        "A bug in Sluiceway: a request could not be answered.",
        "Please report it, with the trace.",
        ("path",),
    ),
    LogEvent(
        "admin_request_refused",
        ADMIN,
        ("warning", "info"),
        "A request was refused; `info`: whoever asked has gone before the answer.",
        "See who asks, by which name and with which token.",
        ("request", "client", "reason"),
    ),
    LogEvent(
        "admin_verb_done",
        ADMIN,
        ("info",),
        "An operator has asked for a change; `changed` says whether it was one.",
        NOTHING,
        ("request", "client", "subject", "changed", "before", "after"),
    ),
    LogEvent(
        "admin_connection_refused",
        ADMIN,
        ("warning",),
        "So many connections are open already that this one was closed at once.",
        "See who keeps connections open.",
        ("client", "connections"),
    ),
    LogEvent(
        "admin_connection_given_up",
        ADMIN,
        ("info",),
        "A client was too slow in sending a request or in taking the answer, and its connection was closed.",
        NOTHING,
        ("client", "slow"),
    ),
    LogEvent(
        "admin_verb_failed",
        ADMIN,
        ("error",),
        "A bug in Sluiceway: a change could not be made.",
        "Please report it, with the trace.",
        ("request", "client", "error"),
    ),
    # Logs.
    LogEvent(
        "log_level_changed",
        LOGS,
        ("info",),
        "From now on lines of another level are written. Told whatever the levels are.",
        NOTHING,
        ("before", "after"),
    ),
    LogEvent(
        "log_lines_dropped",
        LOGS,
        ("warning",),
        "Whatever reads standard error is too slow: so many lines are gone. The connector does not wait for it.",
        "See what reads the log.",
        ("lines",),
    ),
    LogEvent(
        "log_line_failed",
        LOGS,
        ("error",),
        "A line has a field that cannot be shown, and is not written.",
        "Report it to the makers of whatever logs it.",
        ("line", "error"),
    ),
)
