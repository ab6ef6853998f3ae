"""Options of many commands, and what all options share: an environment variable, and `-o` and `--url` anywhere."""

import contextlib
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click

from msgtx import units
from msgtx.errors import ConfigError
from msgtx.types import Isolation

FORMATS: Final = ("table", "json", "jsonl")
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


@dataclass(slots=True)
class Invocation:
    """What the options in front of the command say; `--url` and `-o` may also stand behind it."""

    url: str | None = None
    format: str = "table"
    debug: bool = False


option = click.option


if TYPE_CHECKING:
    _Type = click.ParamType[float]
else:
    _Type = click.ParamType  # takes no parameter before click 8.4


class Quantity(_Type):
    """A duration or a size with its unit, read by `read(name, text)`; `least` of what that returns."""

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


def set_url(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Take a URL over into the invocation."""
    if value is not None:
        context.ensure_object(Invocation).url = value


def set_format(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Take a format over into the invocation."""
    if value:
        context.ensure_object(Invocation).format = value


def set_debug(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    """Take the flag over into the invocation, and show the library's log."""
    context.ensure_object(Invocation).debug |= value
    logging.basicConfig(level=logging.DEBUG if value else logging.WARNING, format="msgtx: %(message)s")
    if not value:
        logging.getLogger("psycopg").setLevel(logging.ERROR)  # a lost connection is reported once, by us


SHORT_HELP_CHARACTERS: Final = 200  # of a command in the list of a group: a sentence, never cut


class Command(click.Command):
    """A command that takes `--url` and `-o` behind its name, too."""

    def get_short_help_str(self, limit: int = SHORT_HELP_CHARACTERS) -> str:
        """Return the first sentence, whole."""
        return super().get_short_help_str(SHORT_HELP_CHARACTERS)

    def __init__(self, *args: Any, examples: Sequence[str] = (), **settings: Any) -> None:
        super().__init__(*args, **settings)
        self.examples = examples
        self.params += [
            click.Option(
                ["--url"],
                expose_value=False,
                allow_from_autoenv=False,
                callback=set_url,
                help="The database; see `msgtx --help`.",
            ),
            click.Option(
                ["-o", "--output"],
                type=click.Choice(FORMATS),
                expose_value=False,
                allow_from_autoenv=False,
                callback=set_format,
                help="The format; see `msgtx --help`.",
            ),
        ]

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write the examples, each on a line of its own, never wrapped."""
        super().format_epilog(ctx, formatter)
        if self.examples:
            with formatter.section("Examples"):
                for example in self.examples:
                    formatter.write(f"{' ' * formatter.current_indent}{example}\n")


class Group(click.Group):
    """A noun with its verbs."""

    def get_short_help_str(self, limit: int = SHORT_HELP_CHARACTERS) -> str:
        """Return the first sentence, whole."""
        return super().get_short_help_str(SHORT_HELP_CHARACTERS)

    command_class = Command
    group_class = type


class GroupWithDefault(Group):
    """A noun that means one of its verbs when none is named: `msgtx offsets orders` is `msgtx offsets list orders`."""

    def __init__(self, *args: Any, default: str, **settings: Any) -> None:
        super().__init__(*args, **settings)
        self._default = default

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put the verb where it was left out."""
        if not args or args[0] not in {*self.commands, *ctx.help_option_names}:
            args = [self._default, *args]
        return super().parse_args(ctx, args)


pass_invocation = click.make_pass_decorator(Invocation, ensure=True)

isolation = option(
    "--isolation",
    type=click.Choice([str(level) for level in Isolation]),
    help="What to see: only committed data, or everything.  [default: read_committed]",
)


def earliest_latest_or_number(text: str) -> str | int:
    """Read `earliest`, `latest`, or a number that is not negative."""
    if text in {"earliest", "latest"}:
        return text
    if not (text.isascii() and text.isdigit() and int(text) < 2**63):
        raise click.BadParameter(f"{text!r} is neither earliest nor latest nor a number from 0 on")
    return int(text)


def destructive(verb: Decorated) -> Decorated:
    """Give a verb that destroys something `--dry-run` and `--yes`; see `confirmed`."""
    # Not from the environment: a variable that was forgotten would disarm the question.
    verb = option("--yes", "-y", is_flag=True, allow_from_autoenv=False, help="Do not ask for confirmation.")(verb)
    return option("--dry-run", is_flag=True, help="Only show what would be done.")(verb)


def confirmed(what: str, *, dry_run: bool, yes: bool) -> bool:
    """Return whether to do it: not with `--dry-run`; else yes, or ask. Raise `Abort` if the answer is no."""
    if dry_run:
        click.echo(f"would {what}", err=True)
        return False
    with contextlib.redirect_stdout(sys.stderr):  # click below 8.3 writes a space there, whatever `err` says
        try:
            return yes or click.confirm(f"{what}?", err=True, abort=True)
        except click.Abort as refused:
            if isinstance(refused.__context__, KeyboardInterrupt):  # click takes it for an answer
                raise refused.__context__ from None
            raise


def confirmed_each(asked: Mapping[str, str], *, dry_run: bool, yes: bool) -> list[str]:
    """Return those names whose question is confirmed, when all are asked: an answer of no changes nothing."""
    return [name for name, what in asked.items() if confirmed(what, dry_run=dry_run, yes=yes)]
