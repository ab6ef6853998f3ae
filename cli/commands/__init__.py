"""The table of contents: the commands, each in the module of its name, loaded when it is used."""

import importlib

import click

from msgtx.cli.terminal.interruption import deferred
from msgtx.cli.terminal.invocation import (
    FORMATS,
    ON_FAILOVER,
    Group,
    option,
    set_debug,
    set_format,
    set_on_failover,
    set_read_url,
    set_url,
)

NAMES = (
    "demo",
    "db",
    "topics",
    "produce",
    "consume",
    "find",
    "search",
    "process",
    "mirror",
    "transactions",
    "groups",
    "shares",
    "offsets",
    "sweep",
    "coordinator",
    "doctor",
    "activity",
    "metrics",
    "console",
    "verify",
    "perf",
    "spark",
)


class Commands(Group):
    """The commands by name. Each module calls its own one `command`."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names, in the order of the help."""
        return list(NAMES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import a command."""
        if cmd_name not in NAMES:
            return None
        with deferred():
            found = importlib.import_module(f"msgtx.cli.commands.{cmd_name}").command
        assert isinstance(found, click.Command)
        return found


@click.group(
    "msgtx",
    cls=Commands,
    context_settings={"auto_envvar_prefix": "MSGTX", "help_option_names": ["-h", "--help"], "show_default": True},
)
@click.version_option(package_name="msgtx", message="%(package)s %(version)s")
@option(
    "--url",
    envvar="MSGTX_DATABASE_URL",
    expose_value=False,
    is_eager=True,
    callback=set_url,
    help="The database: postgresql://user@host:port/database. Without one, an embedded PostgreSQL is used.",
)
@option(
    "--read-url",
    envvar="MSGTX_READ_URL",
    expose_value=False,
    is_eager=True,
    callback=set_read_url,
    help="A standby of it, from which consumers, searches, verify and metrics read.",
)
@option(
    "--on-failover",
    type=click.Choice(ON_FAILOVER.choices),
    expose_value=False,
    is_eager=True,
    callback=set_on_failover,
    help="After a failover: trust goes on, with an error for each proven loss; stop ends the command.  [default: trust]",
)
@option(
    "-o",
    "--output",
    type=click.Choice(FORMATS),
    default="table",
    expose_value=False,
    is_eager=True,
    callback=set_format,
    help="The output format: a table for people, JSON or JSON lines for programs.",
)
@option(
    "--debug",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=set_debug,
    help="Show the log, and the traceback of an error.",
)
def command() -> None:
    """Kafka's exactly-once messaging in ordinary PostgreSQL tables.

    Data goes to stdout, progress and messages go to stderr. Each option may also be set by an environment variable named
    after its command (MSGTX_TOPICS_CREATE_PARTITIONS), except for options that answer a question, such as --yes.

    \b
    Exit codes: 0 done, 1 the operation failed, 2 wrong usage, 3 the database
    cannot be reached, 4 fenced or aborted, 130 interrupted.

    \b
    Completion for bash (for zsh and fish: zsh_source, fish_source):
      eval "$(_MSGTX_COMPLETE=bash_source msgtx)"
    """  # noqa: D301 - \b is click's mark for text that is not filled
