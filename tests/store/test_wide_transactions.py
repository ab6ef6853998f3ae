"""What looks at a transaction of thousands of partitions finds each of them without going through all of them."""

import functools
import time
from collections.abc import Callable, Sequence

import pytest

from msgtx.store.append.append import append
from msgtx.store.fetch.cuts import consistent_cut
from msgtx.store.verify import verify_cut, verify_decisions
from tests.databases import Connection
from tests.store.steps import Writer, new_topic

WIDTHS = (500, 8_000)
# Times as long for 16 times as many: what goes through all of them for each takes up to 256 times as long.
MOST = 64
APPENDED = 250  # partitions of a call, fewer than one may lock

LOOKS: dict[str, Callable[[Connection, Sequence[int]], object]] = {
    "a cut": consistent_cut,
    "verify, a cut": lambda c, p: verify_cut(c, dict.fromkeys(p, 2), None),
    "verify, decisions": lambda c, p: verify_decisions(c, p, None),
}


def write_to_all(connection: Connection, width: int) -> list[int]:
    """Commit a transaction over all partitions of a topic, behind an undecided one in the first of them."""
    partitions = new_topic(connection, width)
    open_one, writer = Writer(connection), Writer(connection)
    open_one.send(partitions[0], b"open")
    rows = [writer.row(partition, b"wide") for partition in partitions]
    for at in range(0, width, APPENDED):
        append(connection, rows[at : at + APPENDED], flushed=False)
    for row in rows:
        writer.counted(row)
    writer.commit()
    return partitions


def seconds(look: Callable[[], object]) -> float:
    """Return the shortest of a few times."""
    times = []
    for _ in range(5):
        began = time.perf_counter()
        look()
        times.append(time.perf_counter() - began)
    return min(times)


@pytest.mark.long
def test_what_it_takes_grows_with_the_partitions(connection: Connection) -> None:
    took: dict[str, list[float]] = {name: [] for name in LOOKS}
    for width in WIDTHS:  # the narrow one first: verify looks at all decisions
        partitions = write_to_all(connection, width)
        for name, look in LOOKS.items():
            took[name].append(seconds(functools.partial(look, connection, partitions)))
    assert {name for name, (narrow, wide) in took.items() if wide > MOST * narrow} == set(), took
