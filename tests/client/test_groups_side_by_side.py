"""What both kinds of group read of what was made while nobody of the group was there (internals: groups#side-by-side)."""

from collections.abc import Callable

import pytest

import msgtx

Unique = Callable[[str], str]
SECONDS = 10.0


class Group:
    """A group that begins at `latest`, and has a member in `read` only."""

    def __init__(self, client: msgtx.Client, kind: str, name: str) -> None:
        self.client, self.kind, self.name = client, kind, name

    def read(self, *topics: str, sends: Callable[[], object]) -> list[bytes | None]:
        """Join for these topics, then send, and return what comes; then leave."""
        made = (
            self.client.share_consumer(*topics, group=self.name)
            if self.kind == "share"
            else self.client.consumer(*topics, group=self.name, auto_offset_reset="latest", enable_auto_commit=False)
        )
        with made as member:
            found = [record.value for record in member.poll(0.2)]
            sends()
            while b"last" not in found:
                found += [record.value for record in member.poll(SECONDS)]
            member.commit()
        return found[:-1]


@pytest.fixture(params=["consumer", "share"])
def group(request: pytest.FixtureRequest, client: msgtx.Client, unique: Unique) -> Group:
    return Group(client, request.param, unique("group"))


def test_a_topic_that_is_added_to_a_subscription_begins_by_its_setting(
    group: Group, client: msgtx.Client, unique: Unique
) -> None:
    """With `latest` at the join: what was sent to it while all members were away is not read, by either kind."""
    old, new = unique("old"), unique("new")
    client.topics.create(old)
    with client.producer() as producer:

        def send(topic: str, *values: bytes) -> None:
            for value in values:
                producer.send(topic, value).result(SECONDS)

        assert group.read(old, sends=lambda: send(old, b"1", b"last")) == [b"1"]
        client.topics.create(new)
        send(new, b"before")
        send(old, b"2")
        found = group.read(old, new, sends=lambda: send(new, b"after", b"last"))
    assert sorted(value or b"" for value in found) == [b"2", b"after"]


@pytest.mark.parametrize("made", ["a partition", "the topic again"])
def test_what_is_made_while_all_members_are_away_is_a_share_groups_from_its_beginning(
    group: Group, client: msgtx.Client, unique: Unique, made: str
) -> None:
    """It has begun with the name. A consumer group has its members' `auto_offset_reset`, as in Kafka."""
    topic = unique("topic")
    client.topics.create(topic)

    def send(partition: int, *values: bytes) -> None:
        with client.producer() as producer:
            for value in values:
                producer.send(topic, value, partition=partition).result(SECONDS)

    assert group.read(topic, sends=lambda: send(0, b"1", b"last")) == [b"1"]
    if made == "a partition":
        client.topics.alter(topic, partitions=2)
    else:
        client.topics.delete(topic)
        client.topics.create(topic, partitions=2)
    send(1, b"before")
    found = group.read(topic, sends=lambda: send(1, b"after", b"last"))
    assert found == ([b"before", b"after"] if group.kind == "share" else [b"after"])
