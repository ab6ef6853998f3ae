"""Options of many commands, and what all options share: an environment variable, and `-o` and `--url` anywhere."""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

import click

from msgtx.types import Isolation

FORMATS: Final = ("table", "json", "jsonl")
Decorated = TypeVar("Decorated", bound=Callable[..., Any])


@dataclass(slots=True)
class Invocation:
    """What the options in front of the command say; `--url` and `-o` may also stand behind it."""

    url: str | None = None
    format: str = "table"
    debug: bool = False


class Option(click.Option):
    """An option whose environment variable stands in its help."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        settings.setdefault("show_envvar", True)
        super().__init__(*args, **settings)


option = partial(click.option, cls=Option)


def set_url(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Take a URL over into the invocation."""
    if value:
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


class Command(click.Command):
    """A command that takes `--url` and `-o` behind its name, too."""

    def __init__(self, *args: Any, **settings: Any) -> None:
        super().__init__(*args, **settings)
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


class Group(click.Group):
    """A noun with its verbs."""

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
    help="What to see: committed data only, or everything.  [default: read_committed]",
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
    verb = option("--yes", "-y", is_flag=True, help="Do not ask.")(verb)
    return option("--dry-run", is_flag=True, help="Only tell what would be done.")(verb)


def confirmed(what: str, *, dry_run: bool, yes: bool) -> bool:
    """Return whether to do it: not with `--dry-run`; else yes, or ask. Raise `Abort` if the answer is no."""
    if dry_run:
        click.echo(f"would {what}", err=True)
        return False
    return yes or click.confirm(f"{what}?", err=True, abort=True)
