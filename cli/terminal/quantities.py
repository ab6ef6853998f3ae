"""Types of options: durations and sizes with their units, and places in a partition."""

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import click

from msgtx import units
from msgtx.errors import ConfigError

if TYPE_CHECKING:
    _Type = click.ParamType[float]
else:
    _Type = click.ParamType  # takes no parameter before click 8.4


class Quantity(_Type):
    """A duration or a size with its unit, read by `read(name, text)`; `least`: of the parsed number."""

    def __init__(self, name: str, read: Callable[[str, object], float], least: float) -> None:
        self.name = name
        self._read = read
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the number. Fail with the words of `read`."""
        name = "it" if param is None else param.opts[0]
        try:
            found = self._read(name, value)
        except ConfigError as error:
            self.fail(str(error), param, ctx)
        if found < self._least:
            self.fail(f"{name} is {self._least:g} or more, not {value}", param, ctx)
        return found


def milliseconds(least: float = 0) -> Quantity:
    """Return the type of a duration; a number alone is one of milliseconds."""
    return Quantity("duration", units.milliseconds, least)


def seconds(least: float = 0) -> Quantity:
    """Return the type of a duration; a number alone is one of seconds."""
    return Quantity("duration", units.seconds, least)


def bytes_(least: float = 0) -> Quantity:
    """Return the type of a size; a number alone is one of bytes."""
    return Quantity("size", units.size, least)


def earliest_latest_or_number(text: str) -> str | int:
    """Read `earliest`, `latest`, or a number that is not negative."""
    if text in {"earliest", "latest"}:
        return text
    if not (text.isascii() and text.isdigit() and int(text) < 2**63):
        raise click.BadParameter(f"{text!r} is neither earliest nor latest nor a number from 0 on")
    return int(text)
