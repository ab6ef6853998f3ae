"""T4, interleavings of SQL mode: users' transactions that publish at their COMMIT."""

from collections.abc import Callable, Iterator
from typing import Final

import pytest

from tests.databases import Connection, connect
from tests.store.steps import new_topic, plain, values
from tests.system.test_interleavings import no_deadlock
from tests.weave import Call, Played, Story, Weaver, weaving

pytestmark = pytest.mark.long

ORDERS: Final = 24  # that were found when the test was written; fewer are not accepted


@pytest.fixture(scope="module")
def weaver(database_url: str) -> Iterator[Weaver]:
    with weaving(database_url) as made:
        yield made


@pytest.fixture(scope="module")
def eye(database_url: str) -> Iterator[Connection]:
    """A connection that prepares stories and reads their results."""
    with connect(database_url) as made:
        yield made


def test_transactions_that_publish_crosswise_both_commit(weaver: Weaver, eye: Connection) -> None:
    """And a log reader and `committed_records_now` see both records of a transaction or none (I6)."""

    def begin() -> Story:
        partitions = new_topic(eye, 2)
        name = eye.execute(
            "select t.name from msgtx.topic t join msgtx.partition p using (topic_id) where partition_id = %s",
            partitions[:1],
        ).fetchone()
        assert name is not None

        def publish(value: str, *places: int) -> Callable[[Connection], None]:
            def run(connection: Connection) -> None:
                for place in places:
                    connection.execute("select msgtx.publish(%s, %s, partition => %s::int)", [*name, value, place])
                connection.execute("set constraints all immediate")  # what COMMIT begins with; the weaver ends it

            return run

        def look(played: Played) -> None:
            rows = eye.execute("select value from msgtx.committed_records_now where topic = %s", name).fetchall()
            seen = [value for (value,) in rows]
            assert all(seen.count(value) == 2 for value in seen), seen
            for partition in partitions:
                assert len(values(eye, partition)) == len(seen) / 2

        def judge(played: Played) -> None:
            no_deadlock(played)
            first, second = (values(eye, partition) for partition in partitions)
            assert first == second
            assert sorted(first, key=str) == [b"down", b"up"]
            assert plain(eye, partitions[0], b"next") == 2

        return Story(
            {
                "up": [Call("publish", publish("up", 0, 1), gate=1)],
                "down": [Call("publish", publish("down", 1, 0), gate=1)],
            },
            judge,
            look,
        )

    count = weaver.explore(begin)
    print(f"publish: {count} orders")  # noqa: T201 - the number is part of the report
    assert count >= ORDERS
