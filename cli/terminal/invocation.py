"""The options of every command: `--url`, `--read-url`, `--on-failover` and `-o`, before or after its name, and `--debug`."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import click

from msgtx.declared.settings import CLIENT
from msgtx.rules.names import did_you_mean
from msgtx.settings import OnFailover

FORMATS: Final = ("table", "json", "jsonl")
(ON_FAILOVER,) = (each for each in CLIENT if each.name == "on_failover")


@dataclass(slots=True)
class Invocation:
    """The options in front of the command; those of every command may also stand behind it."""

    url: str | None = None
    read_url: str | None = None
    on_failover: OnFailover | None = None
    format: str = "table"
    debug: bool = False


option = click.option


def set_url(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Take a URL over into the invocation."""
    if value is not None:
        context.ensure_object(Invocation).url = value


def set_read_url(context: click.Context, parameter: click.Parameter, value: str | None) -> None:
    """Take the URL to read from over into the invocation."""
    if value is not None:
        context.ensure_object(Invocation).read_url = value


def set_on_failover(context: click.Context, parameter: click.Parameter, value: OnFailover | None) -> None:
    """Take over into the invocation what to do after a failover."""
    if value is not None:
        context.ensure_object(Invocation).on_failover = value


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
    """A command that takes `--url`, `--read-url`, `--on-failover` and `-o` after its name, too."""

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
                ["--read-url"],
                expose_value=False,
                allow_from_autoenv=False,
                callback=set_read_url,
                help="The standby to read from; see `msgtx --help`.",
            ),
            click.Option(
                ["--on-failover"],
                type=click.Choice(ON_FAILOVER.choices),
                expose_value=False,
                allow_from_autoenv=False,
                callback=set_on_failover,
                help="Go on or stop after a failover; see `msgtx --help`.",
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

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        """Return a command by its name. Fail with the nearest name for an unknown one."""
        if args and self.get_command(ctx, args[0]) is None and not args[0].startswith("-"):
            advice = did_you_mean(args[0], self.list_commands(ctx), otherwise="")
            ctx.fail(f"No such command {args[0]!r}{advice and ': '}{advice}")
        return super().resolve_command(ctx, args)

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
