"""Durations and sizes with their units: `7d`, `1h30m`, `timedelta(days=7)`, `50MiB`. The one place that reads them."""

import math
import numbers
import operator
import re
from collections.abc import Callable
from datetime import timedelta
from fractions import Fraction
from typing import Final

from msgtx.arguments import shown
from msgtx.errors import ConfigError, InvalidRequest, WrongType

Duration = int | float | str | timedelta
Size = int | str
MILLISECONDS: Final = {
    "ms": 1,
    "s": 1_000,
    "min": 60_000,
    "m": 60_000,
    "h": 3_600_000,
    "d": 86_400_000,
    "w": 604_800_000,
}
BYTES: Final = {
    "B": 1,
    **{f"{letter}iB": 1024**power for power, letter in enumerate("KMGT", 1)},
    **{f"{letter}B": 1000**power for power, letter in enumerate("kMGT", 1)},
}
LONGEST_SECONDS: Final = 2**40 / 1000  # 34 years: a thread cannot wait for more than 292 years
LIMIT: Final = 2**63  # of a number in the database
LONGEST: Final = 100  # characters of a text that is read as a number
_PART: Final = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)\s*")
_NUMBER: Final = re.compile(r"[+-]?\d+(\.\d+)?")


def milliseconds(name: str, value: object, *, unit: str = "ms") -> int:
    """Return a duration in milliseconds; a number alone is in `unit`. Raise `ConfigError`, which names the setting."""
    if isinstance(value, timedelta):
        found = Fraction(value // timedelta(microseconds=1), 1000)
    else:
        found = _read(name, value, MILLISECONDS, unit=unit, like="10s, 500ms, 1h30m or 7d")
    return _whole(name, value, found, "milliseconds")


def seconds(name: str, value: object) -> float:
    """Return a duration in seconds; a number alone is one of seconds. Raise `ConfigError`, which names the setting."""
    if isinstance(value, timedelta):
        return value.total_seconds()
    found = _read(name, value, MILLISECONDS, unit="s", like="10s, 500ms, 1h30m or 7d")
    if abs(found) >= LIMIT:
        raise ConfigError(f"{name} is a number of milliseconds of 64 bits; {shown(value)} is more", name=name)
    return float(found / 1000)


def wait_seconds(name: str, value: object) -> float:
    """Return how long a call waits. Raise as `seconds`, `WrongType`, and `InvalidRequest` out of bounds."""
    if isinstance(value, str | timedelta):
        number = seconds(name, value)
    elif isinstance(value, bool) or not isinstance(value, numbers.Real):
        raise WrongType(f"{name} is a number of seconds, or reads like 10s or 500ms; not {shown(value)}", name=name)
    else:
        try:
            number = float(value)
        except (TypeError, ValueError, OverflowError):
            number = math.inf
    if not 0 <= number <= LONGEST_SECONDS:  # also for a value that is no number
        raise InvalidRequest(f"{name} is 0 to {LONGEST_SECONDS:.0f} seconds, not {shown(value)}", name=name)
    return number


def timeout(value: object, name: str = "timeout") -> float | None:
    """Return how long a call waits, in seconds; None: as long as the call says. Raise as `wait_seconds` does."""
    return None if value is None else wait_seconds(name, value)


def size(name: str, value: object) -> int:
    """Return a size in bytes; a number alone is one of bytes. Raise `ConfigError`, which names the setting."""
    return _whole(name, value, _read(name, value, BYTES, unit="B", like="512B, 400KiB or 50MiB"), "bytes")


def reader_of(setting: str) -> Callable[[str, object], int] | None:
    """Return the parser of a setting with a unit: a duration's name ends in `_ms`, a size's in `_bytes[_per_second]`."""
    if setting.endswith("_ms"):
        return milliseconds
    return size if setting.endswith(("_bytes", "_bytes_per_second")) else None


def counted(number: int, noun: str) -> str:
    """Return `1 record`, `2 records`."""
    return f"{number:,} {noun}" + ("" if number == 1 else "s")


def lasting(seconds: float) -> str:
    """Return `0.4 s`, `12 s`, `3 min`, `1 h 5 min`."""
    whole = int(seconds)
    if whole < 60:
        return f"{seconds:.2g} s" if whole < 10 else f"{whole} s"
    hours, minutes = divmod(whole // 60, 60)
    return " ".join([*([f"{hours} h"] if hours else []), *([f"{minutes} min"] if minutes else [])])


def _read(name: str, value: object, units: dict[str, int], *, unit: str, like: str) -> Fraction:
    if (number := _number(value)) is not None:
        return number * units[unit]
    text = value.strip() if isinstance(value, str) and len(value) <= LONGEST else ""
    if _NUMBER.fullmatch(text):
        return Fraction(text) * units[unit]
    parts = _PART.findall(text)
    if not parts or _PART.sub("", text) or any(each not in units for _, each in parts):
        alone = {"ms": "milliseconds", "s": "seconds", "min": "minutes", "B": "bytes"}[unit]
        raise ConfigError(f"{name} reads like {like}, or is a number of {alone}; not {shown(value)}", name=name)
    return sum((Fraction(number) * units[each] for number, each in parts), Fraction(0))


def _number(value: object) -> Fraction | None:
    """Return a number exactly, also one of numpy's. None: it is none, or is not finite."""
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return None
    try:
        return Fraction(operator.index(value)) if hasattr(value, "__index__") else Fraction(float(value))
    except (TypeError, ValueError, OverflowError):
        return None


def _whole(name: str, value: object, found: Fraction, unit: str) -> int:
    if found.denominator != 1:
        raise ConfigError(f"{name} is a whole number of {unit}; {shown(value)} is not", name=name)
    if abs(found) >= LIMIT:
        raise ConfigError(f"{name} is a number of {unit} of 64 bits; {shown(value)} is more", name=name)
    return int(found)
