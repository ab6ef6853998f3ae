"""The arguments of a reset as text: topics with partitions, durations and times are read; options are written."""

import itertools
import re
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING

from msgtx import errors, units
from msgtx.types import ShiftBy

if TYPE_CHECKING:
    from msgtx.rules.reset import Target

Scopes = Sequence[tuple[str, Sequence[int] | None]]  # topics, or some of their partitions


def read_scope(text: str) -> tuple[str, tuple[int, ...] | None]:
    """Read a topic, or some of its partitions (`orders`, `orders:0,2`): the name, and the partitions or None for all."""
    found = re.fullmatch(r"([^:]+)(?::(\d{1,9}(?:,\d{1,9})*))?", text, re.ASCII)
    if found is None:
        raise errors.InvalidRequest(f"{text!r} is no topic, nor a topic with partitions, like orders:0,2", name="topic")
    return found[1], None if found[2] is None else tuple(map(int, found[2].split(",")))


def read_duration(text: str) -> timedelta:
    """Read a duration: `36h`, or ISO 8601, of days and less."""
    if text[:1].isdigit():
        try:
            return timedelta(seconds=units.seconds("it", text))
        except (errors.ConfigError, OverflowError) as error:
            raise errors.InvalidRequest(f"{text!r} is no duration like 36h, 1d12h or P1DT12H", name="duration") from error
    number = r"(\d{1,9})"
    found = re.fullmatch(
        rf"P(?:{number}D)?(?:T(?:{number}H)?(?:{number}M)?(?:(\d{{1,9}}(?:\.\d{{1,6}})?)S)?)?", text, re.ASCII
    )
    if found is None or text.endswith(("P", "T")):
        raise errors.InvalidRequest(f"{text!r} is no duration like 36h, P1DT2H30M or PT90S", name="duration")
    days, hours, minutes, seconds = (float(part or 0) for part in found.groups())
    return timedelta(days=min(days, 1e6), hours=hours, minutes=minutes, seconds=seconds)


def read_moment(text: str) -> datetime:
    """Read an ISO 8601 time; without an offset it is UTC."""
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise errors.InvalidRequest(
            f"{text!r} is no time like 2026-01-31T12:00:00 or 2026-01-31T12:00:00+01:00", name="time"
        ) from error
    return found if found.tzinfo is not None else found.replace(tzinfo=UTC)


def scope_words(scopes: Scopes | None) -> list[str]:
    """Return the options of the command line for these topics; None: for all."""
    if scopes is None:
        return ["--all-topics"]
    named = [topic if indexes is None else f"{topic}:{','.join(map(str, indexes))}" for topic, indexes in scopes]
    return [*itertools.chain.from_iterable(("--topic", each) for each in named)]


def target_words(target: "Target") -> list[str]:
    """Return the options of the command line for a target."""
    match target:
        case str():
            return [f"--to-{target}"]
        case timedelta():
            return ["--by-duration", f"{target.total_seconds():.6f}".rstrip("0").rstrip(".") + "s"]
        case datetime():
            return ["--to-datetime", target.isoformat()]
        case ShiftBy(offsets):
            return [f"--shift-by={offsets}"]
        case Mapping():
            return ["--from-file", "FILE"]
        case _:
            return [f"--to-offset={target}"]
