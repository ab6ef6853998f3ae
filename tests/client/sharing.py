"""A share group as its users see it: its members, its topic, and what is left to do."""

import contextlib
from collections.abc import Iterable
from typing import Any

import msgtx


def fill(client: msgtx.Client, topic: str, count: int, start: int = 0) -> None:
    """Send so many records to partition 0, in one row of the log; their values are numbers from `start` on."""
    with client.producer() as producer:
        producer.send_batch(topic, [b"%d" % number for number in range(start, start + count)], partition=0).result(30)


def seen(records: list[msgtx.ShareRecord]) -> list[tuple[bytes | None, int]]:
    """Return the value and the delivery count of each record."""
    return [(record.value, record.delivery_count) for record in records]


def accept(member: msgtx.ShareConsumer, records: Iterable[msgtx.ShareRecord]) -> None:
    """Accept records, where that is said one by one."""
    for record in records if member.config.acknowledgement_mode == "explicit" else ():
        member.acknowledge(record)


def copy(
    member: msgtx.ShareConsumer, producer: msgtx.Producer, output: str, most: int | None = None, *, seconds: float = 5
) -> list[msgtx.ShareRecord]:
    """Poll, send the values to another topic, and accept the records."""
    records = member.poll(seconds, most)
    for record in records:
        producer.send(output, record.value, partition=0)
    accept(member, records)
    return records


class Shares:
    """A share group that reads a topic from its start, with locks of half a second. A call makes a member."""

    def __init__(self, client: msgtx.Client, topic: str, name: str) -> None:
        self.client = client
        self.topic = topic
        self.name = name
        self.open = contextlib.ExitStack()
        self.configure(auto_offset_reset="earliest", record_lock_duration_ms=500)
        with self() as first:  # so that calls with a short time find a connection, with its statements prepared
            first.poll(0)

    def __call__(self, mode: str = "explicit", **settings: Any) -> msgtx.ShareConsumer:
        """Return a member, which is closed behind the test."""
        made = self.client.share_consumer(self.topic, group=self.name, acknowledgement_mode=mode, **settings)
        return self.open.enter_context(made)

    def configure(self, **settings: object) -> None:
        """Change settings of the group."""
        self.client.admin.shares.configure(self.name, settings)

    def fill(self, count: int, start: int = 0) -> None:
        """Send records to the topic; see `fill`."""
        fill(self.client, self.topic, count, start)

    @property
    def described(self) -> msgtx.ShareGroupDescription:
        """The group now."""
        return self.client.admin.shares.describe(self.name)

    @property
    def lag(self) -> int:
        """How many records are not done."""
        return self.described.lag
