"""JDBC: the address of a database for Java's driver, and the statements that Spark's executors run with it."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final
from urllib.parse import quote, urlencode
from uuid import UUID

from msgtx.database.calls import query
from msgtx.database.connection import RawConnection
from msgtx.database.wire import Int4Array, Int8Array
from msgtx.errors import ConfigError
from msgtx.generated import calls

DRIVER: Final = "org.postgresql.Driver"
# Of one round trip, in rows of the log: 8 MiB go through the heap faster than 25 (measured); 64 rows are enough that round
# trips for one-record rows do not show on a local network.
JDBC_BYTES: Final = 8 * 1024 * 1024
MOST_ROWS: Final = 64
SAMPLED_RANGES: Final = 16
# The most that a task holds, also if large rows lie between small ones: some tasks fit into a heap of 512 MB. One row
# may be larger, and is fetched by itself.
HELD_BYTES: Final = 32 * 1024 * 1024
END: Final = 2**63 - 1
# Run by a task before its statement, in the same SQL transaction. The planner counts each look-up of a row as a read
# from disk, and would compile a statement that ends before its compilation.
IN_ITS_TRANSACTION: Final = "set local jit = off"
SOCKET_TIMEOUT_SECONDS: Final = 600  # a server that died without a word is noticed then; rows come within seconds
_SESSION_ATTRIBUTES: Final = {
    "any": "any",
    "read-write": "primary",
    "primary": "primary",
    "read-only": "secondary",
    "standby": "secondary",
    "prefer-standby": "preferSecondary",
}
_SETTINGS: Final = {
    "sslmode": "sslmode",
    "sslcert": "sslcert",
    "sslkey": "sslkey",
    "sslrootcert": "sslrootcert",
    "krbsrvname": "kerberosServerName",
    "connect_timeout": "connectTimeout",
    "options": "options",
}
# Spark gives the driver properties in small letters, so that a setting of mixed case has no effect there: it is in the URL.
_SECRETS: Final = ("user", "password", "sslpassword")


@dataclass(frozen=True, slots=True)
class Address:
    """The options for Spark. The URL holds neither user nor password; this object's text has no properties."""

    url: str
    properties: Mapping[str, str] = field(repr=False)


def address_of(connection: RawConnection, given: Mapping[str, str] = MappingProxyType({})) -> Address:
    """Return the address behind a connection, as libpq found it: a URL, the environment, a service, a password file.

    `given`: libpq's parameters of the URL. It may name several hosts, of which the connection knows the one it has. Raise
    `ConfigError` for a Unix socket.
    """
    used = {option.keyword.decode(): option.val.decode() for option in connection.pgconn.info if option.val}
    used |= {name: given[name] for name in ("host", "port") if given.get("host") and given.get(name)}
    if connection.info.password:
        used["password"] = connection.info.password
    return address(used)


def address(parameters: Mapping[str, str]) -> Address:
    """Return the address for libpq's parameters. Raise `ConfigError` for an address that Java's driver cannot use."""
    hosts = (parameters.get("host") or parameters.get("hostaddr") or "").split(",")
    ports = parameters.get("port", "5432").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    if any(not host or host[0] in "/@" for host in hosts):
        raise ConfigError(
            "the database is reached through a Unix socket, and Java's driver speaks TCP only:"
            " name a host in the URL, like postgresql://user@localhost/database"
        )
    places = ",".join(
        f"[{host}]:{port or 5432}" if ":" in host else f"{host}:{port or 5432}"
        for host, port in zip(hosts, ports, strict=True)
    )
    database = parameters.get("dbname") or parameters.get("user", "")
    settings = {
        "ApplicationName": "msgtx spark",
        "tcpKeepAlive": "true",
        "socketTimeout": str(SOCKET_TIMEOUT_SECONDS),
        # Binary from the first row on: bytes as hexadecimal text are twice as many, arrays of them ten times as slow.
        "prepareThreshold": "-1",
    }
    settings |= {theirs: parameters[ours] for ours, theirs in _SETTINGS.items() if parameters.get(ours)}
    if wanted := parameters.get("target_session_attrs"):
        settings["targetServerType"] = _SESSION_ATTRIBUTES[wanted]
    if parameters.get("load_balance_hosts") == "random":
        settings["loadBalanceHosts"] = "true"
    properties = {name: parameters[name] for name in _SECRETS if parameters.get(name)}
    return Address(
        f"jdbc:postgresql://{places}/{quote(database, safe='')}?{urlencode(settings, quote_via=quote)}",
        {"driver": DRIVER, "sessionInitStatement": IN_ITS_TRANSACTION, **properties},
    )


def fetch_rows(connection: RawConnection, ranges: Sequence[tuple[int, int]], *, ends: Sequence[int] | None = None) -> int:
    """Return how many rows are fetched at once from ranges (partition id, start), before `ends` if they are given.

    As many as usually make `JDBC_BYTES`, by the first rows of some ranges; but so few that the largest of any range fit
    into `HELD_BYTES`.
    """
    some = ranges[:: -(-len(ranges) // SAMPLED_RANGES) or 1]
    ((largest,),) = query(
        connection, LARGEST_ROW, Int4Array(each for each, _ in some), Int8Array(start for _, start in some)
    )
    usual = max(1, min(JDBC_BYTES // (largest or 1), MOST_ROWS))
    ((fitting,),) = query(
        connection,
        FITTING_ROWS,
        HELD_BYTES,
        Int4Array(each for each, _ in ranges),
        Int8Array(start for _, start in ranges),
        Int8Array(itertools.repeat(END, len(ranges)) if ends is None else ends),
        JDBC_BYTES // MOST_ROWS,
        MOST_ROWS,
    )
    return usual if fitting is None else max(1, min(usual, fitting))


LARGEST_ROW: Final = """
    select max(first.byte_size)
    from rows from (pg_catalog.unnest(%s::pg_catalog.int4[]), pg_catalog.unnest(%s::pg_catalog.int8[])) a(id, start)
    cross join lateral (
        select b.byte_size from msgtx.committed_batches b
        where b.partition_id = a.id and b.base_offset >= a.start order by b.base_offset limit 8) first"""
# Of each range the largest rows, the largest first, as long as they fit together; null: all of them do. Others are so small
# that as many as are fetched at once do not count. One that begins before the range may come on top.
FITTING_ROWS: Final = """
    select min(fit.rows)
    from (
        select a.place, pg_catalog.count(*) filter (where large.together <= %s) as rows, pg_catalog.count(*) as found
        from rows from (pg_catalog.unnest(%s::pg_catalog.int4[]), pg_catalog.unnest(%s::pg_catalog.int8[]),
                        pg_catalog.unnest(%s::pg_catalog.int8[])) with ordinality a(id, first, last, place)
        cross join lateral (
            select pg_catalog.sum(l.byte_size) over (order by l.byte_size desc rows unbounded preceding) as together
            from (
                select b.byte_size from msgtx.committed_batches b
                where b.partition_id = a.id and b.base_offset >= a.first and b.base_offset < a.last and b.byte_size > %s
                order by b.byte_size desc limit %s) l) large
        group by a.place) fit
    where fit.rows < fit.found"""


def batches_of(bounds: Sequence[tuple[int, int]]) -> str:
    """Return a relation for Spark: the rows of the log, each with the bounds of the range that it is read for.

    A range is chosen by `predicate`, with its place among these (start, end). One row is joined, so the view's order stays.
    """
    starts, ends = (",".join(map(str, column)) for column in zip(*bounds, strict=True))
    return (
        "(select b.*, r.start_offset, r.end_offset, r.range_number from msgtx.committed_batches b"  # noqa: S608 - numbers
        f" cross join rows from (pg_catalog.unnest('{{{starts}}}'::pg_catalog.int8[]),"
        f" pg_catalog.unnest('{{{ends}}}'::pg_catalog.int8[]))"
        " with ordinality r(start_offset, end_offset, range_number)) as msgtx_batches"
    )


def predicate(place: int, partition_id: int, bounds: tuple[int, int], *, incarnation: UUID, strict: bool) -> str:
    """Return the condition for the rows of one range, `place` counting from 0. It checks the range in the same statement.

    The check stands twice: as a bound of the index scan, and by itself, for that is evaluated also when there are no rows.
    """
    start, end = bounds
    arguments = f"{partition_id}, {start}, {end}, '{incarnation}'::pg_catalog.uuid, {str(strict).lower()}"
    check = f"msgtx.{calls.CHECK_RANGE.name}({arguments})"
    return (
        f"{check} is not null and range_number = {place + 1} and partition_id = {partition_id}"
        f" and base_offset >= {check} and base_offset < {end} and last_offset >= {start}"
    )
