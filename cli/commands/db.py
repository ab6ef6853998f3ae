"""`msgtx db`: the schema, the embedded server, the settings of the installation, the rights of roles."""

import contextlib
import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Final

import click

from msgtx import units
from msgtx.cli.terminal.confirmation import Decorated, confirmed, destructive
from msgtx.cli.terminal.database import connect, open_engine
from msgtx.cli.terminal.failure import FAILED, CommandFailed
from msgtx.cli.terminal.interruption import deferred
from msgtx.cli.terminal.invocation import Group, Invocation, option, pass_invocation
from msgtx.cli.terminal.output import show_many, show_one, show_table, write
from msgtx.errors import ConfigError, InvalidRequest
from msgtx.rows import database_row, row_of

if TYPE_CHECKING:
    from sqlalchemy import Connection

    from msgtx.database.schema.privileges import Resource
    from msgtx.types import RoleRight

RIGHTS: Final = ("produce", "consume", "observe", "admin")
STATUS: Final = {
    "tables": ("name", "bytes", "live_rows", "dead_rows", "last_vacuum"),
    "snapshot_holders": ("kind", "name", "pid", "role", "state", "since", "age", "retained_bytes"),
    "standbys": ("name", "client_address", "state", "sync_state", "behind_bytes", "behind_ms", "behind_records"),
    "rights": ("role", "can", "resource", "name", "exists"),
}


@contextlib.contextmanager
def _connection(invocation: Invocation) -> "Iterator[Connection]":
    """Open a SQL transaction on the database, without a check of its schema."""
    with open_engine(invocation) as engine, engine.transaction() as connection:
        yield connection


@click.group("db", cls=Group)
def command() -> None:
    """Set up and check the database."""


@command.command("init")
@pass_invocation
def init(invocation: Invocation) -> None:
    """Create the schema in the database, or upgrade it. Starts an embedded PostgreSQL if no database is named."""
    _upgrade(invocation)


@command.command("upgrade")
@pass_invocation
def upgrade(invocation: Invocation) -> None:
    """Upgrade the schema, its functions and its views to the version of this program."""
    _upgrade(invocation)


def _upgrade(invocation: Invocation) -> None:
    with deferred():
        from msgtx.database.schema import migrate
    with _connection(invocation) as connection:
        done = migrate.upgrade(connection)
    if invocation.format != "table":
        show_one(invocation.format, row_of(done))
    elif done.before is None:
        write(f"schema version {done.after}: made, with its functions and views\n")
    else:
        tables = "the tables are as they were" if done.before == done.after else f"the tables had version {done.before}"
        functions = "are created anew" if done.functions_renewed else "are as they were"
        write(f"schema version {done.after}: {tables}; the functions and views {functions}\n")


@command.command("current")
@pass_invocation
def current(invocation: Invocation) -> None:
    """Show the version of the schema."""
    with deferred():
        from msgtx.database.schema import migrate
    with _connection(invocation) as connection:
        show_one(invocation.format, {"schema_version": migrate.current(connection)})


@command.command("check")
@pass_invocation
def check(invocation: Invocation) -> int:
    """Check whether the schema fits this program, and say what to run if it does not (exit code 1)."""
    with deferred():
        from msgtx.database.calls import driver_of
        from msgtx.database.schema import migrate
        from msgtx.store.operator.installation import sequences_behind
    with _connection(invocation) as connection:
        problems = migrate.check(connection)
        if not problems:
            behind = sequences_behind(driver_of(connection))
            problems = [f"{each}: run `select msgtx.note_place()` as the owner" for each in behind]
    if invocation.format == "table":
        for problem in problems:
            click.echo(f"msgtx: {problem}", err=True)
        if not problems:
            click.echo("the schema is complete and fits this program", err=True)
    else:
        show_one(invocation.format, {"ok": not problems, "problems": problems})
    return FAILED if problems else 0


@command.command("status", examples=("msgtx db status", "msgtx db status -o json | jq .standbys"))
@pass_invocation
def status(invocation: Invocation) -> None:
    """Show the tables, holders of snapshots, standbys, connections and rights of the database.

    A holder of a snapshot keeps VACUUM from removing dead rows. `behind_records` says about how many records a standby does
    not show yet: as many as fit into the WAL that it lacks. It takes the right to observe every topic; other roles'
    sessions and standbys are shown to members of pg_read_all_stats alone.
    """
    with connect(invocation) as client:
        row = database_row(client.admin.database())
    if invocation.format != "table":
        show_one(invocation.format, row)
        return
    show_one("table", {name: value for name, value in row.items() if name not in STATUS})
    for name, columns in STATUS.items():
        if row[name]:
            write("\n")
            show_table(columns, [[each[column] for column in columns] for each in row[name]], title=name.replace("_", " "))


@command.command("url")
@option(
    "--with-password",
    is_flag=True,
    help="Include the password, for programs. For psql, there is `msgtx db psql`.",
)
@pass_invocation
def url(invocation: Invocation, *, with_password: bool) -> None:
    """Show the URL of the database. Starts the embedded server if it is not running."""
    with deferred():
        from msgtx.database.address import public_url
    with open_engine(invocation) as engine:
        _show_url(invocation, engine.url if with_password else public_url(engine.url))


def _show_url(invocation: Invocation, found: str) -> None:
    if invocation.format == "table":
        write(found + "\n")
    else:
        show_one(invocation.format, {"url": found})


@command.command(
    "psql",
    examples=("msgtx db psql", "msgtx db psql -- -f report.sql"),
    context_settings={"ignore_unknown_options": True},
)
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[-- ARGUMENT...]")
@pass_invocation
def psql(invocation: Invocation, arguments: tuple[str, ...]) -> None:
    """Run psql on the database, with ARGUMENTs of psql. Starts the embedded server if it is not running.

    The address and the password are passed in psql's environment, so that no list of processes shows them, and any version
    of psql understands them.
    """
    with deferred():
        from msgtx.database.address import environment_of
    with open_engine(invocation) as engine:
        environment, rest = environment_of(engine.url)
    try:
        os.execvpe("psql", ["psql", *([rest] if rest else []), *arguments], {**os.environ, **environment})  # noqa: S606, S607 - the user's own program
    except FileNotFoundError as error:
        raise CommandFailed("there is no psql in the PATH: install PostgreSQL's client programs") from error


@command.command("start")
@pass_invocation
def start(invocation: Invocation) -> None:
    """Start the embedded server, also if MSGTX_DATABASE_URL is set, and show its URL."""
    with deferred():
        from msgtx.database import embedded
        from msgtx.database.address import public_url
    server = embedded.start()
    click.echo(f"{'started the server' if server.started else 'a server runs'} in {server.home}", err=True)
    _show_url(invocation, public_url(server.url))


@command.command("stop")
@option("--yes", "-y", is_flag=True, allow_from_autoenv=False, help="Do not ask, even if other clients are connected.")
@pass_invocation
def stop(invocation: Invocation, *, yes: bool) -> None:
    """Stop the embedded server. Open transactions are rolled back; the data stays.

    If other clients are connected, it asks first.
    """
    with deferred():
        from msgtx.database import embedded
    home = embedded.default_home()
    if not yes and (others := embedded.sessions()):
        connected = units.counted(others, "session") + (" is connected" if others == 1 else " are connected")
        confirmed(f"stop the server of {home}: {connected}", dry_run=False, yes=False)
    click.echo(f"stopped the server of {home}" if embedded.stop() else f"no server runs in {home}", err=True)


@command.command("settings")
@click.argument("name", required=False)
@click.argument("value", required=False)
@pass_invocation
def settings(invocation: Invocation, name: str | None, value: str | None) -> None:
    """Show the settings of the installation, or only NAME; or set NAME to VALUE (10000, or 10s) for all clients."""
    with deferred():
        from msgtx.database.schema import settings
    with _connection(invocation) as connection:
        if name is not None and value is not None:
            settings.change(connection, name, value=_number(name, value))
        found = settings.read_limits(connection)
    if name is not None and name not in found:
        raise ConfigError(f"unknown setting {name!r}; known are {', '.join(found)}")
    rows = [{"name": one, "value": found[one]} for one in found if name in {None, one}]
    show_many(invocation.format, rows, ("name", "value"))


def _number(name: str, value: str) -> int:
    if (read := units.reader_of(name)) is not None:
        return read(name, value)
    try:
        return int(value)
    except ValueError as error:
        raise click.UsageError(f"{name} is a whole number, not {value!r}") from error


def _of_a_role(verb: Decorated) -> Decorated:
    """Give a verb about a role's right its options."""
    verb = option(
        "--transactional-id",
        "transactional_id",
        help="With --can produce: the transactional ids that the role may use, given as topics are.",
    )(verb)
    verb = option("--group", help="With --can consume: the consumer groups that the role may use, given as topics are.")(
        verb
    )
    verb = option("--topic", help="A name, or the beginning of names followed by *.  [default: *]")(verb)
    verb = option("--can", type=click.Choice(RIGHTS), required=True, help="What the role may do.")(verb)
    return option("--role", required=True, help="A role of this PostgreSQL server.")(verb)


def _about(topic: str | None, group: str | None, transactional_id: str | None) -> "tuple[Resource, str]":
    """Return the kind of a right's resource, and its name or the beginning of names: one of the three, else every topic."""
    from msgtx.database.schema.privileges import ALL_TOPICS, Resource

    given = [
        (resource, name)
        for resource, name in zip(Resource, (topic, group, transactional_id), strict=True)
        if name is not None
    ]
    if len(given) > 1:
        raise click.UsageError("a right is about topics, groups or transactional ids: grant one after the other")
    return given[0] if given else (Resource.TOPIC, ALL_TOPICS)


@command.command(
    "grant",
    examples=(
        "msgtx db grant --role shop --can produce --topic 'orders*'",
        "msgtx db grant --role mailer --can consume --topic orders",
        "msgtx db grant --role mailer --can consume --group mail",
        "msgtx db grant --role watch --can observe",
    ),
)
@_of_a_role
@pass_invocation
def grant(
    invocation: Invocation, *, role: str, can: str, topic: str | None, group: str | None, transactional_id: str | None
) -> None:
    """Let a role produce to topics, consume, observe or administer them, and nothing else.

    At first, every consuming role may use all consumer groups, and every producing role all transactional ids. Once a grant
    names a group or an id, only roles with such a grant may use it, and these roles may use no others.

    The role must exist; its logins may then use msgtx with this right. To observe is to look, but at no record: at topics,
    groups and transactions, and with every topic at `doctor` and `metrics`. Who administers may also observe. A role that
    administers every topic may also run sweeps, coordinators and `verify`. Run this command as the schema's owner, who needs
    no rights. It shows what the role may do afterwards.
    """
    with deferred():
        from msgtx.database.schema import rights
        from msgtx.database.schema.privileges import Right
    with _connection(invocation) as connection:
        resource, name = _about(topic, group, transactional_id)
        rights.grant(connection, role, can=Right(can), topic=name, resource=resource)
        found = rights.read_rights(connection)
    _show_rights(invocation, [row for row in found if row.role == role])


@command.command("revoke")
@_of_a_role
@pass_invocation
def revoke(
    invocation: Invocation, *, role: str, can: str, topic: str | None, group: str | None, transactional_id: str | None
) -> None:
    """Take back what `grant` gave with the same options. Later calls are refused; shows what the role may still do."""
    with deferred():
        from msgtx.database.schema import rights
        from msgtx.database.schema.privileges import Right
    with _connection(invocation) as connection:
        resource, name = _about(topic, group, transactional_id)
        taken = rights.revoke(connection, role, can=Right(can), topic=name, resource=resource)
        found = rights.read_rights(connection)
    _show_rights(invocation, [row for row in found if row.role == role])
    if not taken:
        raise InvalidRequest(f"role {role!r} had no right to {can} on {name!r}: a right is revoked as it was granted")


@command.command("grants")
@pass_invocation
def grants(invocation: Invocation) -> None:
    """Show the rights of each role on topics, groups and transactional ids.

    The owner, members of the owner's role and superusers may do everything.
    """
    with deferred():
        from msgtx.database.schema import rights
    with _connection(invocation) as connection:
        found = rights.read_rights(connection)
    _show_rights(invocation, found)


def _show_rights(invocation: Invocation, found: "Sequence[RoleRight]") -> None:
    show_many(invocation.format, map(row_of, found), ("role", "can", "resource", "name", "exists"))


@command.command("after-failover")
@destructive
@pass_invocation
def after_failover(invocation: Invocation, *, dry_run: bool, yes: bool) -> None:
    """Declare that the database may have lost acknowledged data.

    Run it once after a failover to an asynchronous standby, or after a
    restore, before you let clients in again. Every existing client gets
    IncarnationChanged, every producer is fenced, open transactions are
    aborted, groups have no members, and ids skip ahead. Nothing in the
    log is removed. The table says what each kind of client sees.
    """
    with deferred():
        from msgtx.admin import failover
    with open_engine(invocation) as engine:
        if confirmed("change the incarnation and fence every producer", dry_run=dry_run, yes=yes):
            show_one(invocation.format, row_of(failover.after_failover(engine)))
        if invocation.format == "table":
            columns = ("kind", "sees", "to do")
            show_many("table", (dict(zip(columns, row, strict=True)) for row in failover.SEEN), columns)
