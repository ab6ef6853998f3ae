"""T4, interleavings of keys of deduplication: two calls whose keys and partitions cross, and the sweep, in every order.

As in `test_interleavings`: each call is one SQL transaction, paused before each lock of a partition, after taking all its
keys, and before COMMIT.
"""

from collections.abc import Callable, Sequence

import pytest

from msgtx.store.append.append_once import KeyedRecord, Placed, append_once
from msgtx.store.sweeps import sweeps
from tests.databases import Connection
from tests.store.steps import new_topic, values
from tests.weave import Call, Played, Story, Weaver

pytestmark = pytest.mark.slow


def keyed(places: Sequence[tuple[int, str]], value: bytes) -> Callable[[Connection], list[Placed]]:
    """Append a record of this value with each key to its partition."""
    return lambda connection: append_once(connection, [KeyedRecord(*place, value, None, 1) for place in places])


def aged(eye: Connection, partition: int, keys: Sequence[str]) -> None:
    """These keys were used two hours ago."""
    append_once(eye, [KeyedRecord(partition, key, b"old", None, 1) for key in keys])
    eye.execute("update msgtx.dedup_key set appended_at = appended_at - interval '2 hours'")


def test_of_two_calls_whose_keys_cross_one_stores_each(weaver: Weaver, eye: Connection) -> None:
    """I1: a key that is new, and one that is past its window; the calls name them in opposite orders."""

    def begin() -> Story:
        low, high = new_topic(eye, 2)
        aged(eye, low, ["b"])

        def judge(played: Played) -> None:
            one, other = played.answers["one.send"], played.answers["other.send"][::-1]
            assert [(each.partition, each.offset) for each in one] == [(each.partition, each.offset) for each in other]
            assert {each.duplicate for each in one} == {not each.duplicate for each in other}
            assert len(values(eye, low)) + len(values(eye, high)) == 1 + 2

        calls = [("one", [(low, "a"), (high, "b")]), ("other", [(low, "b"), (high, "a")])]
        return Story({name: [Call("send", keyed(places, name.encode()))] for name, places in calls}, judge)

    weaver.explore(begin, at_least=6)


def test_a_sweep_beside_a_call_takes_no_key_that_counts(weaver: Weaver, eye: Connection) -> None:
    """I1: also when the call uses a key again that is past its window."""

    def begin() -> Story:
        (partition,) = new_topic(eye, 1)
        aged(eye, partition, ["old", "older"])

        def judge(played: Played) -> None:
            first, again = played.answers["sender.first"], played.answers["sender.again"]
            assert [(each.offset, each.duplicate) for each in first] == [(2, False), (3, False)]
            assert [(each.offset, each.duplicate) for each in again] == [(2, True), (3, True)]
            assert len(values(eye, partition)) == 4
            assert eye.execute("select dedup_key from msgtx.dedup_key order by 1").fetchall() == [("new",), ("old",)]
            eye.execute("truncate msgtx.dedup_key")

        send = keyed([(partition, "new"), (partition, "old")], b"x")
        sweep = Call("keys", lambda connection: sweeps.remove_dedup_keys(connection, None, None))
        return Story({"sender": [Call("first", send), Call("again", send)], "sweeper": [sweep]}, judge)

    weaver.explore(begin, at_least=12)
