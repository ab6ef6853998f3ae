"""Looking at records in a test: what was published, what is there, dead letters, and whether all is there once."""

import contextlib
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator
from operator import attrgetter
from typing import Final, TypeVar

from msgtx.client import Client
from msgtx.orm import pending
from msgtx.types import Record

A = TypeVar("A")
B = TypeVar("B")
NAMED_AT_MOST: Final = 5
GROUP: Final = "msgtx.dead-letter.group"
__all__ = ["assert_exactly_once", "committed", "dead_letters", "pending", "published"]


def committed(client: Client, *topics: str) -> list[Record]:
    """Return the committed records of topics, in the order of their partitions."""
    return list(client.read(client.snapshot(topics)))


@contextlib.contextmanager
def published(client: Client, *topics: str) -> Iterator[list[Record]]:
    """Have a list that holds, after the block, the records of topics that were committed in it."""
    found: list[Record] = []
    before = client.snapshot(topics)
    yield found
    found.extend(client.read(client.snapshot(topics), start=before))


def dead_letters(client: Client, group: str) -> list[Record]:
    """Return the dead letters that a group has written, to whatever topics; of a share group, too."""
    topics = client.topics.list()
    return [each for each in committed(client, *topics) if (GROUP, group.encode()) in each.headers] if topics else []


def assert_exactly_once(
    inputs: Iterable[A],
    outputs: Iterable[B],
    *,
    by: str | Callable[[A | B], Hashable] | tuple[Callable[[A], Hashable], Callable[[B], Hashable]],
) -> None:
    """Require one output for each input. `by`: what names both, as a function or an attribute; or one function for each.

    Raise `AssertionError` with those that are missing, there more than once, or of no input; also if there are none of both.
    """
    of_input, of_output = by if isinstance(by, tuple) else (by, by)
    wanted = Counter(map(_function(of_input), inputs))
    found = Counter(map(_function(of_output), outputs))
    if not wanted and not found:
        raise AssertionError("there are no inputs and no outputs, so nothing is shown")
    wrong = {
        "missing": wanted - found,
        "more than once": Counter({each: found[each] for each in found - wanted if each in wanted}),
        "of no input": Counter({each: found[each] for each in found if each not in wanted}),
    }
    told = [f"{len(these)} {what}: {_shown(these)}" for what, these in wrong.items() if these]
    if told:  # no `assert`, to which pytest would add what it says once more
        raise AssertionError(f"of {wanted.total()} inputs, {'; '.join(told)}")


def _function(by: object) -> Callable[..., Hashable]:
    return attrgetter(by) if isinstance(by, str) else by  # type: ignore[return-value]  # the caller's types say so


def _shown(these: Counter[Hashable]) -> str:
    first = [f"{each!r} ({times} times)" if times > 1 else repr(each) for each, times in sorted(these.items(), key=repr)]
    return ", ".join(first[:NAMED_AT_MOST]) + (" …" if len(first) > NAMED_AT_MOST else "")
