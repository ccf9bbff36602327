"""What tests of the connector and of plugins use; docs/guides/testing.md shows how.

`SinkContract` checks a sink, `make_batch` makes what it writes, `FaultSwitch` makes it fail midway. `EmbeddedBroker` is
a Kafka inside the process. `MemorySource`, `FakeClient` and `VirtualClock` stand for the source, the Kafka client and
the time, and do what a test's script says.
"""

from connector.testing.batches import Record, make_batch
from connector.testing.client import FakeClient
from connector.testing.clock import VirtualClock
from connector.testing.contract import SinkContract
from connector.testing.embedded import EmbeddedBroker
from connector.testing.faults import FaultSwitch
from connector.testing.memory_source import MemorySource

__all__ = [
    "EmbeddedBroker",
    "FakeClient",
    "FaultSwitch",
    "MemorySource",
    "Record",
    "SinkContract",
    "VirtualClock",
    "make_batch",
]
