"""The ends of a batch that is not to take everything: they divide no transaction (I15)."""

from collections.abc import Iterable, Mapping

# The span of a transaction: first and last offset by partition id.
Span = Mapping[int, tuple[int, int]]


def lowered(starts: Mapping[int, int], ends: Mapping[int, int], transactions: Iterable[Span]) -> dict[int, int]:
    """Return the greatest ends, none above `ends` nor below `starts`, that divide none of these transactions.

    `transactions`: all that have records between `starts` and `ends`. Records before `starts` do not count: they were read
    before. Each transaction is looked at once: one that reaches over an end, but lies behind all of them, stays there.
    """
    found = dict(ends)
    spans = [
        {
            partition: (max(first, starts[partition]), last)
            for partition, (first, last) in transaction.items()
            if partition in starts and last >= starts[partition]
        }
        for transaction in transactions
    ]
    # By partition, the transactions there, the furthest reaching one last: those over the end are taken from the back.
    waiting: dict[int, list[tuple[int, int]]] = {partition: [] for partition in starts}
    for number, span in enumerate(spans):
        for partition, (_, last) in span.items():
            waiting[partition].append((last, number))
    for each in waiting.values():
        each.sort()
    moved = list(starts)
    while moved:
        partition = moved.pop()
        over = waiting[partition]
        while over and over[-1][0] >= found[partition]:
            _, number = over.pop()
            if any(first < found[where] for where, (first, _) in spans[number].items()):
                for where, (first, _) in spans[number].items():
                    if first < found[where]:
                        found[where] = first
                        moved.append(where)
    return found
