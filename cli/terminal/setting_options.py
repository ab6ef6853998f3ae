"""Options that are settings: their types, bounds, defaults and help are those of `msgtx.declared.settings`."""

from collections.abc import Callable, Collection
from typing import Any, Final

import click

from msgtx.cli.terminal.confirmation import Decorated
from msgtx.cli.terminal.invocation import option
from msgtx.cli.terminal.quantities import bytes_, milliseconds, seconds
from msgtx.declared.settings import CONSUMER, LARGEST, Kind, Setting, Settings

TYPES: Final[dict[Kind, Callable[[Setting], Any]]] = {
    Kind.DURATION: lambda one: milliseconds(one.least) if one.name.endswith("_ms") else seconds(one.least),
    Kind.SIZE: lambda one: bytes_(one.least),
    Kind.NUMBER: lambda one: click.IntRange(one.least, one.most if one.most < LARGEST else None),
    Kind.CHOICE: lambda one: click.Choice([str(each) for each in one.choices]),
    Kind.TEXT: lambda _: str,
}


def setting_option(table: Settings, name: str, *, default: str | None = None, given: bool = False) -> Callable[..., Any]:
    """Return the option of a setting. `default`: told instead of its own; `given`: it stands in for a missing option."""
    (one,) = (each for each in table if each.name == name)
    flag = f"--{name.replace('_', '-')}"
    help_ = help_of(one)
    if one.kind is Kind.FLAG:
        return option(flag, is_flag=True, help=help_)
    told = one.default if default is None else default
    if given:
        return option(flag, type=TYPES[one.kind](one), metavar=one.form, default=one.default, help=help_)
    help_ += "" if told in {None, ""} else f"  [default: {told}]"
    return option(flag, type=TYPES[one.kind](one), metavar=one.form, help=help_)


def setting_options(
    table: Settings, *, default: str | None = None, given: Collection[str] = ()
) -> Callable[[Decorated], Decorated]:
    """Give a verb the options of these settings. `given`: those whose default stands in for a missing option."""

    def give(verb: Decorated) -> Decorated:
        for one in reversed(table):
            verb = setting_option(table, one.name, default=default, given=one.name in given)(verb)
        return verb

    return give


def help_of(one: Setting) -> str:
    """Return the sentence about a setting, without Markdown."""
    text = one.says if one.says.startswith("`") else one.says[0].upper() + one.says[1:]
    return f"{text.replace('`', '').rstrip('.')}."


isolation: Final = setting_option(CONSUMER, "isolation")
