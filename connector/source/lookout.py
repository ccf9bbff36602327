"""What the consumer thread looks at between polls: skipped offsets, lanes that wait, topics made again, lag.

Belongs to the consumer thread. Everything here is bounded, and is tried again at the next look when it fails.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import orjson
from confluent_kafka import KafkaException, TopicPartition

from connector.api.types import Offset
from connector.lane.lane import Chunk
from connector.source.assignment import Wait
from connector.source.client_errors import fatal_error
from connector.source.client_statistics import ClientStatistics
from connector.source.position import Cause
from connector.source.starts import Found, log_ends
from connector.telemetry.logs import get_logger

if TYPE_CHECKING:
    from connector.source.assignment import Assignment, Held
    from connector.source.client import KafkaClient
    from connector.source.cluster import Cluster
    from connector.source.position import TopicFacts
    from connector.source.rebalance import Rebalance
    from connector.source.starts import Starts
    from connector.telemetry.metrics import Metrics

log = get_logger(__name__)

_RETRY_SECONDS = 1.0
_READ_SECONDS = 5.0


class Lookout:
    """Looks after the lanes of an assignment."""

    def __init__(
        self, *, assignment: Assignment, rebalance: Rebalance, starts: Starts, cluster: Cluster, metrics: Metrics
    ) -> None:
        self._assignment = assignment
        self._rebalance = rebalance
        self._starts = starts
        self._cluster = cluster
        self._metrics = metrics
        self._client_statistics = ClientStatistics(metrics)

    def look_at_positions(self, client: KafkaClient) -> None:
        """Move lanes over what the client skipped: transaction markers, aborted and compacted records (KIP-98)."""
        lanes = [held for held in self._assignment if held.is_flowing]
        if not lanes:
            return
        for answer in client.position([TopicPartition(*held.key) for held in lanes]):
            held = self._assignment.get(answer.topic, answer.partition)
            if held is None or held.next_offset is None or answer.offset <= held.next_offset:
                continue
            held.is_ended = held.end is not None and answer.offset >= held.end
            held.next_offset = held.end if held.is_ended and held.end is not None else Offset(answer.offset)
            held.lane.put(Chunk([], held.next_offset, is_last=held.is_ended))
            if held.is_ended:
                client.pause([TopicPartition(*held.key)])

    def look_at_waiting(self, client: KafkaClient) -> None:
        """Read again what lanes wait for."""
        now = time.monotonic()
        due = [held for held in self._assignment if held.wait is not None and held.retry_at <= now]
        unread = {held.key: held.stored for held in due if held.wait is Wait.POSITION}
        if unread:
            self._rebalance.find_again(client, unread)
        for held in due:
            if held.wait is Wait.RANGE:
                self._leave_hole(client, held)

    def on_out_of_range(self, client: KafkaClient, topic: str, partition: int, text: str) -> None:
        """A lane's position is not in the log; the other lanes go on."""
        held = self._assignment.get(topic, partition)
        if held is None or held.wait is not None:
            return
        log.warning("position_not_found", topic=topic, partition=partition, position=held.next_offset, error=text)
        held.wait, held.retry_at = Wait.RANGE, 0.0
        self.look_at_waiting(client)

    def look_at_topics(self, client: KafkaClient) -> None:
        """Notice a topic that was deleted and made again.

        Raises:
            AuthenticationError: The right to describe a subscribed topic is missing.
            KafkaException: A read failed.
        """
        view = self._cluster.view
        if view is None:
            return
        self._metrics.missing_topics.set(len(view.missing))
        if view.denied and (failure := fatal_error("TOPIC_AUTHORIZATION_FAILED", ", ".join(view.denied))) is not None:
            raise failure
        suspects = {
            held.key[0]
            for held in self._assignment
            if held.wait is None and held.key[0] in view.topics and _differ(held, view.topics[held.key[0]].topic_id)
        }
        if not suspects:
            return
        fresh = self._cluster.facts(sorted(suspects), _READ_SECONDS)  # the view may be older than the lane
        lanes = [h for h in self._assignment if h.key[0] in fresh and _differ(h, fresh[h.key[0]].topic_id)]
        if lanes:
            for topic in sorted({held.key[0] for held in lanes}):
                log.warning("topic_recreated", topic=topic)
            starts = {h.key: self._start_anew(client, h, fresh[h.key[0]]) for h in lanes}
            self._rebalance.release(client, lanes)
            self._rebalance.replace(client, lanes, starts)

    def on_statistics(self, text: str) -> None:
        """Take the last stable offsets that the fetcher has seen, and the cluster's for lanes that are not fetched now.

        Each has the time of its measurement: stale is not zero. The rest of the statistics is for `ClientStatistics`.
        """
        statistics: dict[str, Any] = orjson.loads(text)
        self._client_statistics.show(statistics)
        topics: dict[str, Any] = statistics.get("topics", {})
        now = time.monotonic()
        self._cluster.unfetched = [held.key for held in self._assignment if not held.is_flowing]
        read = self._cluster.ends
        for held in self._assignment:
            if held.is_flowing:
                facts = topics.get(held.key[0], {}).get("partitions", {}).get(str(held.key[1]), {})
                self._measure(held, facts.get("ls_offset", -1), now)
            elif held.key in read:
                self._measure(held, *read[held.key])

    def _measure(self, held: Held, end: int, seen: float) -> None:
        lane = held.lane
        if end < 0 or (lane.end_seen is not None and seen < lane.end_seen):
            return
        lane.end_offset, lane.end_seen = Offset(end), seen

    def _leave_hole(self, client: KafkaClient, held: Held) -> None:
        """Forward, the lane goes on behind the hole. Backward, its partition needs a new lane, since the positions of a
        lane only grow (INV-4); what it took before is drained first, as the log does not have it any more.

        A position that is in the log stays: the report was of an earlier fetch, such as one at a placeholder."""
        try:
            found = self._find_beyond(client, held)
        except KafkaException as error:
            log.warning("log_ends_not_read", topic=held.key[0], partition=held.key[1], error=error.args[0].str())
            held.retry_at = time.monotonic() + _RETRY_SECONDS
            return
        if found is None:
            log.info("position_found", topic=held.key[0], partition=held.key[1], position=held.next_offset)
            held.wait = None
            self._rebalance.point(client, [held])
            return
        is_forward = held.next_offset is not None and found.start >= held.next_offset
        if is_forward and found.cause is Cause.OUT_OF_RANGE:
            self._rebalance.start(held, found.start, found.cause)
            self._rebalance.point(client, [held])
        else:
            self._rebalance.release(client, [held])
            self._rebalance.replace(client, [held], {held.key: found})

    def _find_beyond(self, client: KafkaClient, held: Held) -> Found | None:
        """Decide where a lane goes on whose position is not in the log: it may be a position of another log.

        None: it is in the log after all.
        """
        topic = held.key[0]
        fresh = self._cluster.facts([topic], _READ_SECONDS).get(topic)
        if fresh is not None and _differ(held, fresh.topic_id):
            log.warning("topic_recreated", topic=topic)
            return self._start_anew(client, held, fresh)
        low, high = log_ends(client, held.key, _READ_SECONDS)
        if held.next_offset is not None and low <= held.next_offset <= high:
            return None
        start = self._starts.resolve(client, held.key, Cause.OUT_OF_RANGE, wanted=held.next_offset)
        return Found(start, Cause.OUT_OF_RANGE, None, held.facts)

    def _start_anew(self, client: KafkaClient, held: Held, facts: TopicFacts) -> Found:
        start = self._starts.resolve(client, held.key, Cause.RECREATED, wanted=None)
        return Found(start, Cause.RECREATED, None, facts)


def _differ(held: Held, topic_id: str | None) -> bool:
    return held.facts.topic_id is not None and topic_id is not None and held.facts.topic_id != topic_id
