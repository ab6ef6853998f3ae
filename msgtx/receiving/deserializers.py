"""The functions that make values of a record's bytes."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, TypeVar

from msgtx import arguments
from msgtx.errors import DeserializationError
from msgtx.types import Record, not_deserialized

Deserialized = TypeVar("Deserialized", bound=Record[Any, Any])


@dataclass(frozen=True, slots=True)
class Deserializers:
    """The user's functions for keys and values; None: the bytes stay. A key or value that is None stays None."""

    key: Callable[[bytes], Any] | None = None
    value: Callable[[bytes], Any] | None = None

    def __post_init__(self) -> None:
        """Raise `WrongType`."""
        arguments.function("key_deserializer", self.key)
        arguments.function("value_deserializer", self.value)

    @property
    def needed(self) -> bool:
        """Whether there is one."""
        return self.key is not None or self.value is not None

    def apply(self, record: Record[Any, Any]) -> None:
        """Deserialize a record in place. Raise what a function raises; the record is unchanged then."""
        key, value = record.key, record.value
        if key is not None and self.key is not None:
            key = self.key(key)
        if value is not None and self.value is not None:
            value = self.value(value)
        record.key, record.value = key, value

    def applied(self, record: Deserialized) -> Deserialized:
        """Return a deserialized copy. Raise `DeserializationError`."""
        copied = replace(record)
        try:
            self.apply(copied)
        except Exception as error:
            raise failed(record, error) from error
        return copied

    def before(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a worker's function, given a deserialized record (or list of records) as its last argument.

        A record that cannot be deserialized fails as if the function had raised: the worker keeps its bytes.
        """
        if not self.needed:
            return function

        def called(*given: Any) -> Any:
            *others, last = given
            if isinstance(last, list):
                return function(*others, [self.applied(record) for record in last])
            return function(*others, self.applied(last))

        return called


def failed(record: Record[Any, Any], error: Exception, advice: str = "") -> DeserializationError:
    """Return the error of a record on which a deserializer failed."""
    return not_deserialized(record, f"the deserializer raised {error!r}{advice}")
