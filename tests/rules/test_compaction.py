"""Compaction's decision: each key's newest committed record stays."""

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from msgtx.rules.compaction import KeyedBatch, newest_of, survivors


def row(base_offset: int, *keys: bytes | None, **columns: Any) -> KeyedBatch:
    given = {"is_committed": True, "keys": keys, "offset_deltas": None, **columns}
    return KeyedBatch(base_offset=base_offset, record_count=len(keys), **given)


@pytest.mark.parametrize(
    ("batch", "newest"),
    [
        (row(5, b"a", b"b", b"a"), {b"a": 7, b"b": 6}),
        (row(5, b"a", b"b", offset_deltas=[2, 9]), {b"a": 7, b"b": 14}),
        (row(5, b"a", None, b"b"), {b"a": 5, b"b": 7}),
        (row(5, b"a", is_committed=False), {}),
        (KeyedBatch(5, 2, True, None, None), {}),
        (row(5), {}),
    ],
)
def test_the_newest_offset_of_a_key_is_its_last_committed_one(batch: KeyedBatch, newest: dict[bytes, int]) -> None:
    assert newest_of(batch) == newest


NEWEST = {b"a": 7, b"b": 3}


@pytest.mark.parametrize(
    ("batch", "stay"),
    [
        (row(5, b"a", b"b", b"a"), [1, 2]),  # b's newest noted record precedes the batch, so this one is newer
        (row(0, b"a", b"b", b"c", b"b"), [2, 3]),
        (row(0, b"a", b"b", offset_deltas=[7, 8]), [0, 1]),
        (row(0, None, b"a", None), [0, 2]),
        (KeyedBatch(0, 2, True, None, None), [0, 1]),
        (row(9, b"a", b"c", is_committed=False), []),
        (row(0, b"c", b"d", tombstones=[1]), [0, 1]),
        (row(0, b"c", b"d", tombstones=[1], tombstones_expired=True), [0]),
        (row(0, b"c", None, tombstones=[1], tombstones_expired=True), [0, 1]),  # no key, no tombstone
        (row(0, b"a", b"d", tombstones=[0, 1], tombstones_expired=True), []),
    ],
)
def test_what_stays(batch: KeyedBatch, stay: Sequence[int]) -> None:
    assert survivors(NEWEST, batch) == stay


@given(st.lists(st.tuples(st.lists(st.sampled_from([b"a", b"b", b"c", None]), max_size=5), st.booleans()), max_size=8))
def test_a_pass_over_everything_leaves_one_record_of_each_key(log: list[tuple[list[bytes | None], bool]]) -> None:
    batches, offset = [], 0
    for keys, is_committed in log:
        batches.append(row(offset, *keys, is_committed=is_committed))
        offset += len(keys)
    newest: dict[bytes, int] = {}
    for batch in batches:
        newest.update(newest_of(batch))
    left = [
        (batch.offsets[index], batch.keys[index])
        for batch in batches
        if batch.keys is not None
        for index in survivors(newest, batch)
    ]
    committed = [
        (at, key)
        for batch in batches
        if batch.is_committed and batch.keys is not None
        for at, key in zip(batch.offsets, batch.keys, strict=True)
    ]
    assert left == [(at, key) for at, key in committed if key is None or at == max(o for o, k in committed if k == key)]
