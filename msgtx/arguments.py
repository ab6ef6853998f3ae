"""Arguments of public calls: a value of a wrong type, or one that cannot be right, is refused before any lock.

Each checker returns the argument as the rest of the package takes it: numbers of other libraries become `int` or `float`,
subclasses of `str` become `str`. Source: I16.
"""

import operator
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from msgtx.errors import ConfigError, InvalidRequest, WrongType
from msgtx.types import TopicPartition, TransactionId

Given = TypeVar("Given")
LARGEST_INT4: Final = 2**31 - 1
LARGEST_INT8: Final = 2**63 - 1
# Names stand in indexes, up to two in one, and a row of an index holds 2,704 bytes. Longer ones are no names but data.
NAME_BYTES: Final = 1_000
SHOWN_CHARACTERS: Final = 80


def shown(value: object) -> str:
    """Return the text of a value for an error: a part of a long one, and the type of one whose `repr` raises."""
    try:
        text = repr(value)
    except Exception:  # noqa: BLE001 - of a class of the user's
        text = object.__repr__(value)
    return text if len(text) <= SHOWN_CHARACTERS else f"{text[:SHOWN_CHARACTERS]}…"


# ── numbers ──


def whole(name: str, value: object, *, least: int = 0, most: int = LARGEST_INT8) -> int:
    """Return a whole number. Raise `WrongType`, and `InvalidRequest` outside the bounds."""
    number = value
    if number.__class__ is not int:
        try:
            number = operator.index(number)  # type: ignore[arg-type]
        except (TypeError, ValueError):
            number = True
        if isinstance(value, bool) or isinstance(number, bool):
            raise WrongType(f"{name} is a whole number, not {shown(value)}", name=name)
    assert isinstance(number, int)
    if not least <= number <= most:
        bounds = f"{least} or more" if number < least else f"at most {most}"
        raise InvalidRequest(f"{name} is {bounds}, not {shown(value)}", name=name)
    return number


def flag(name: str, value: object) -> bool:
    """Return true or false. Raise `WrongType` for anything else: the text "no" would be true."""
    if value is not True and value is not False:
        raise WrongType(f"{name} is True or False, not {shown(value)}", name=name)
    return value


# ── names ──


def text(name: str, value: object) -> str:
    """Return a text. Raise `WrongType`, and `InvalidRequest` for one that cannot be stored."""
    if not isinstance(value, str):
        raise WrongType(f"{name} is a text, not {shown(value)}", name=name)
    if "\0" in value:
        raise InvalidRequest(f"{name} has no NUL character; this one is {shown(value)}", name=name)
    try:
        value.encode()
    except UnicodeEncodeError:
        raise InvalidRequest(f"{name} is no valid UTF-8: {shown(value)}", name=name) from None
    return value if value.__class__ is str else str.__str__(value)


def check_name(what: str, name: object) -> str:
    """Return a name. Raise `WrongType`, `InvalidRequest` for a text that cannot be stored as one.

    `what` it names: "a group".
    """
    if not isinstance(name, str):
        raise WrongType(f"the name of {what} is a text, not {shown(name)}", name=what)
    try:
        size = len(name.encode())
    except UnicodeEncodeError:
        raise InvalidRequest(f"the name of {what} is no valid UTF-8: {name[:50]!r}", name=what) from None
    if not 0 < size <= NAME_BYTES:
        begin = f": {name[:50]!r}…" if size else ""
        raise InvalidRequest(f"the name of {what} has 1 to {NAME_BYTES} bytes of UTF-8, not {size}{begin}", name=what)
    if "\0" in name:
        raise InvalidRequest(f"the name of {what} has no NUL character; this one is {name[:50]!r}", name=what)
    return name if name.__class__ is str else str.__str__(name)


def topic(value: object) -> str:
    """Return the name of a topic. Raise `WrongType`, `InvalidRequest`."""
    if not isinstance(value, str):
        raise WrongType(
            f'a topic is a name, not {a_kind(value)}: {shown(value)}; several are consumer("a", "b")', name="topic"
        )
    return text("the name of a topic", value)


def topics(value: Iterable[str]) -> list[str]:
    """Return the names of topics. Raise `WrongType` for a single name: its letters are no topics."""
    if isinstance(value, str):
        raise WrongType("topics is a list of names; for one topic write [name]", name="topics")
    return [topic(each) for each in listed("topics", value)]


def partition(value: object) -> TopicPartition:
    """Return a partition, given as `TopicPartition` or as a pair. Raise `WrongType`, `InvalidRequest`."""
    if not isinstance(value, tuple) or len(value) != 2:
        raise WrongType(f"a partition is a TopicPartition(topic, index), not {shown(value)}", name="partition")
    return TopicPartition(topic(value[0]), whole("the index of a partition", value[1], least=-LARGEST_INT8))


def partitions(value: Iterable[TopicPartition]) -> list[TopicPartition]:
    """Return partitions. Raise `WrongType`, `InvalidRequest`."""
    return [partition(each) for each in listed("partitions", value)]


def transaction_id(value: object) -> TransactionId:
    """Return the name of a transaction, given as a text or as three numbers. Raise `WrongType`, `InvalidRequest`."""
    if isinstance(value, str):
        return TransactionId.parse(value)
    if not isinstance(value, tuple) or len(value) != len(TransactionId._fields):
        raise WrongType(
            f"a transaction id is a TransactionId, or a text like 17.0.3, not {shown(value)}", name="transaction_id"
        )
    number, epoch, count = value
    return TransactionId(
        whole("a producer id", number), whole("an epoch", epoch, most=LARGEST_INT4), whole("a transaction's number", count)
    )


# ── the rest ──


def listed(name: str, value: Any) -> list[Any]:
    """Return an iterable as a list. Raise `WrongType`, also for a text."""
    if isinstance(value, str | bytes | bytearray | memoryview):
        raise WrongType(f"{name} is a list, not {shown(value)}", name=name)
    try:
        return list(value)
    except TypeError:
        raise WrongType(f"{name} is a list, not {shown(value)}", name=name) from None


def column(name: str, value: Any) -> Sequence[Any]:
    """Return a column of records' values, which can be indexed. Raise `WrongType`, also for a text or bytes."""
    return value if value.__class__ is list or value.__class__ is tuple else listed(name, value)


def mapping(name: str, value: Any) -> Mapping[Any, Any]:
    """Return a mapping. Raise `WrongType`."""
    if not isinstance(value, Mapping):
        raise WrongType(f"{name} is a mapping, not {shown(value)}", name=name)
    return value


def function(name: str, value: Given | None) -> Given | None:
    """Return a function of the user's, or None. Raise `WrongType` for an object that cannot be called."""
    if value is not None and not callable(value):
        raise WrongType(f"{name} is a function, not {shown(value)}", name=name)
    return value


def stop_signal(name: str, value: Given | None) -> Given | None:
    """Return an object that ends a loop, such as a `threading.Event`, or None. Raise `WrongType`."""
    if value is not None and not callable(getattr(value, "is_set", None)):
        raise WrongType(f"{name} has is_set(), as threading.Event has; {shown(value)} has not", name=name)
    return value


def one_of(name: str, value: object, choices: Iterable[str]) -> str:
    """Return one of several words. Raise `ConfigError`."""
    known = [*choices]
    if not isinstance(value, str) or value not in known:
        raise ConfigError(f"{name} is one of {', '.join(known)}, not {shown(value)}", name=name)
    return value


def an_instance(name: str, value: object, kind: type[Given] | tuple[type, ...], words: str) -> Given:
    """Return an object of a class. Raise `WrongType` with the allowed values in words."""
    if not isinstance(value, kind):
        raise WrongType(f"{name} is {words}, not {shown(value)}", name=name)
    return value  # type: ignore[return-value]


def a_kind(value: object) -> str:
    """Return the name of a value's class, with its article as the errors have it."""
    return f"a {type(value).__name__}"
