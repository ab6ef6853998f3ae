"""The functions that make values of a record's bytes."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from msgtx.types import Record

Deserializer = Callable[[bytes | None], Any]


@dataclass(frozen=True, slots=True)
class Deserializers:
    """The user's functions for keys and values; None: the bytes stay."""

    key: Deserializer | None
    value: Deserializer | None

    @property
    def needed(self) -> bool:
        """Whether there is one."""
        return self.key is not None or self.value is not None

    def of(self, record: Record) -> tuple[Any, Any]:
        """Return what they make of a record's key and value."""
        key = record.key if self.key is None else self.key(record.key)
        return key, record.value if self.value is None else self.value(record.value)
