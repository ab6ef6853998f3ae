"""T4, interleavings of SQL mode: users' transactions that publish at their COMMIT."""

from collections.abc import Callable

import pytest

from tests.databases import Connection
from tests.store.steps import new_topic, plain, values
from tests.weave import Call, Played, Story, Weaver

pytestmark = pytest.mark.long


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

    weaver.explore(begin, at_least=24)
