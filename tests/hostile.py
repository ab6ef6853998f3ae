"""`python -m tests.hostile --minutes N --seed S`: a login with few rights does all that it may, with any arguments.

Functions and views are those that the database lets it call and read, so new ones are covered automatically. Others have
a transaction open meanwhile, a sequence begun, a member in a group: afterwards all of that continues, what they wrote is
there once, `verify` finds nothing, no secret was shown, and nothing of unbounded size was stored. No row of theirs has
changed: of their logs, transactions, groups, share groups, dead letters and keys.
"""

import contextlib
import random
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import click
import psycopg

import msgtx
from msgtx import Acknowledgement, errors
from msgtx.store.append.append import append
from msgtx.store.topics.topics import describe_topics
from msgtx.store.transactions.producers import init_producer_id
from tests.databases import Connection, Server
from tests.faults import crash_server
from tests.roles import Roles, open_roles
from tests.store.steps import Writer, batch, unique
from tests.verdicts import conclude

SECONDS: Final = 60.0
LARGEST_ROW: Final = (
    3_000_000  # bytes of a row that any role stores: a batch of records; other rows have what their texts may have
)
LARGEST_TEXT_ROW: Final = 200_000
BATCHES: Final = ("record_batch", "staged_record")
MANY: Final = 20_000  # elements of an occasional array
SHORT: Final = 200  # characters of the five elements that a long array repeats
STATEMENT_SECONDS: Final = 2  # its own: no promise covers what it runs
# What it sets in its own session, some of it refused. TEAM: a role of which it is a member, with rights of its own.
SETTINGS: Final = (
    "set search_path = pg_temp, public, msgtx", "reset search_path",
    "set statement_timeout = '5ms'", f"set statement_timeout = '{STATEMENT_SECONDS}s'",
    "set default_transaction_isolation = 'serializable'", "set default_transaction_isolation = 'repeatable read'",
    "set default_transaction_isolation = 'read committed'", "set session_replication_role = replica",
    "set lock_timeout = '1ms'", "set lock_timeout = 0", "set row_security = off", "set work_mem = '64kB'",
    "set synchronous_commit = off", "set standard_conforming_strings = off", "set client_min_messages = debug1",
    "set timezone = 'Pacific/Apia'", "set enable_indexscan = off", "set from_collapse_limit = 1", "set role none",
    "set constraints all immediate", "set default_transaction_read_only = on", "set default_transaction_read_only = off",
    "create temp table if not exists topic (topic_id int, name text)",
    "create temp table if not exists role_right (role_name name, can text, topic_pattern text, resource text)",
    "create or replace function pg_temp.caller() returns name language sql return 'postgres'::name",
    "create or replace function pg_temp.acts_for_owner() returns boolean language sql return true",
    "notify msgtx, 'g1,2,3,99999999999999999999999,,x'", "notify msgtx, ''", "listen msgtx",
    "select pg_try_advisory_lock(1836279553, 1), pg_try_advisory_lock(1836279554, 1)", "select pg_advisory_unlock_all()",
    "begin; select msgtx.mark(); rollback", "discard plans",
    "set role none", "set role pg_read_all_data", "set session authorization default", "reset role",
    "set msgtx.caller = 'postgres'", "set msgtx.role_name = 'postgres'", "set application_name = 'msgtx-coordinator'",
    "create or replace function pg_temp.clock() returns timestamptz language sql return 'infinity'::timestamptz",
    "set search_path = pg_temp, pg_catalog", "savepoint s", "prepare transaction 'mine'",
    "select pg_notify('msgtx', repeat('1,', 3000)) from generate_series(1, 50)",
    "begin; select pg_notify('msgtx', n::text) from generate_series(1, 1000) n; rollback",
    "create temp table if not exists share_group as select 1 as group_id",
    "create temp table if not exists setting (name text, value bigint)",
)  # fmt: skip
FUNCTIONS: Final = """
    select p.proname, array(select format_type(t, null) from unnest(p.proargtypes) t), p.pronargdefaults,
           coalesce(p.proargnames[:p.pronargs]::text[], array_fill(''::text, array[p.pronargs]))
    from pg_proc p where p.pronamespace = 'msgtx'::regnamespace and p.prokind = 'f' and p.prorettype <> 'trigger'::regtype
      and has_function_privilege(p.oid, 'execute') order by 1, 2"""
VIEWS: Final = """
    select c.relname from pg_class c where c.relnamespace = 'msgtx'::regnamespace and c.relkind = 'v'
    and has_table_privilege(c.oid, 'select') order by 1"""
TABLES: Final = """
    select c.relname from pg_class c where c.relnamespace = 'msgtx'::regnamespace and c.relkind = 'r' order by 1"""


# What belongs to others. Heartbeats, markers and floors are nobody's.
THEIRS: Final = {
    "record_batch": "partition_id = any(%(partitions)s)",
    "partition": "partition_id = any(%(partitions)s)",
    "topic": "name = any(%(topics)s)",
    "transaction": "producer_id = any(%(producers)s)",
    "transaction_partition": "producer_id = any(%(producers)s)",
    "transaction_decision": "producer_id = any(%(producers)s)",
    "producer": "producer_id = any(%(producers)s)",
    "consumer_group": "group_id = any(%(groups)s)",
    "group_member": "group_id = any(%(groups)s)",
    "group_assignment": "group_id = any(%(groups)s)",
    "group_offset": "group_id = any(%(groups)s)",
    "share_group": "group_id = any(%(groups)s)",
    "share_state": "group_id = any(%(groups)s) and version = (select max(n.version) from msgtx.share_state n"
    " where n.group_id = t.group_id and n.partition_id = t.partition_id)",
    "share_parked": "group_id = any(%(groups)s)",
    "share_pending": "group_id = any(%(groups)s)",
    "dedup_key": "topic_id in (select topic_id from msgtx.topic where name = any(%(topics)s))",
    "named_snapshot": "name = %(cut)s",
    "setting": "true",
    "role_right": "true",
}


@dataclass
class Report:
    """What was tried, and what broke. `refused` by SQLSTATE."""

    seed: int
    calls: int = 0
    functions: set[str] = field(default_factory=set)
    answered: set[str] = field(default_factory=set)
    refused: dict[str, int] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


class Others:
    """The clients to which promises must hold: a service with groups and ids of its own, and the owner."""

    def __init__(self, roles: Roles, owner: msgtx.Client, connection: Connection) -> None:
        self.secret = unique("secret")
        self.topic = f"{self.secret}-topic"
        self.group = f"{self.secret}-group"
        self.transactional_id = f"{self.secret}-id"
        self.owner, self.connection = owner, connection
        owner.topics.create(self.topic, partitions=4)
        self.partitions = describe_topics(connection, [self.topic])[self.topic].partition_ids
        role = roles.make(
            f"produce:{self.topic}", f"consume:{self.topic}",
            f"consume:group:{self.group}", f"consume:group:{self.secret}-shares",
            f"produce:transactional_id:{self.transactional_id}*",
            f"produce:transactional_id:{self.secret}-owners",  # an id that no grant names is open to every producer
        )  # fmt: skip
        self.session = roles.connect(role)
        self.client = msgtx.connect(roles.url_of(role))
        self.consumer = self.client.consumer(
            self.topic, group=self.group, auto_offset_reset="earliest", enable_auto_commit=False
        )
        self.consumer.poll(0.2)
        self.member = self.consumer.group_metadata().member_id
        self._begin_shares()
        # One at each partition: a transaction half written, a sequence begun, a half-written transaction of the owner.
        self.writer = Writer(self.session, f"{self.transactional_id}-1", timeout_ms=900_000)
        self.writer.send(self.partitions[0], b"half")
        self.sequence = init_producer_id(self.session, None, timeout_ms=60_000)
        append(self.session, [batch(self.partitions[1], b"one", producer=self.sequence, sequence=0)])
        self.owners = Writer(connection, f"{self.secret}-owners", timeout_ms=900_000)
        self.owners.send(self.partitions[2], b"half")

    def _begin_shares(self) -> None:
        """Have a member of a share group hold records, one of them released for later, and one a dead letter."""
        self.share_group, self.letters = f"{self.secret}-shares", f"{self.secret}-shares-dead-letters"
        self.cut = f"{self.secret}-cut"
        self.owner.admin.shares.configure(
            self.share_group, {"auto_offset_reset": "earliest", "record_lock_duration_ms": "1h"}
        )
        self.only_shared = f"{self.secret}-shared"
        # A topic whose name is that of the dead letters of a share group which nobody has made.
        self.bait = f"{self.secret}-bait"
        self.owner.topics.create(f"{self.bait}-dead-letters")
        self.owner.topics.create(self.only_shared)
        with self.owner.producer() as producer:
            for number in range(4):
                producer.send(self.only_shared, b"shared %d" % number, dedup_key=f"{self.secret}-key-{number}").result(
                    SECONDS
                )
        self.member_of_shares = self.owner.share_consumer(
            self.only_shared, group=self.share_group, acknowledgement_mode="explicit", session_timeout_ms=300_000
        )
        self.held = []
        while len(self.held) < 4:
            self.held += self.member_of_shares.poll(1.0)
        self.member_of_shares.acknowledge(self.held[2], Acknowledgement.REJECT, reason="dead")
        self.member_of_shares.acknowledge(self.held[3], Acknowledgement.RELEASE, delay_ms=3_600_000)
        self.member_of_shares.commit()
        self.owner.snapshots.save(self.cut, self.owner.snapshot([self.only_shared]))

    def fingerprint(self) -> dict[str, list[Any]]:
        """Return all rows that are theirs, by table."""
        topics = [self.topic, self.only_shared, self.letters, f"{self.bait}-dead-letters"]
        known = describe_topics(self.connection, topics)
        groups = self.connection.execute(
            "select group_id from msgtx.consumer_group where name = any(%s)", [[self.group, self.share_group]]
        ).fetchall()
        of = {
            "topics": topics,
            "cut": self.cut,
            "partitions": [each for topic in known.values() for each in topic.partition_ids],
            "groups": [group for (group,) in groups],
            "producers": [self.writer.name[0], self.owners.name[0], self.sequence[0]],
        }
        return {
            table: sorted(
                str(row)
                for row in self.connection.execute(f"select t::text from msgtx.{table} t where {where}", of).fetchall()
            )
            for table, where in THEIRS.items()
        }

    @property
    def names(self) -> list[str]:
        """Names that the stranger has guessed."""
        return [
            self.group, f"{self.transactional_id}-1", f"{self.secret}-owners", self.member, self.share_group, self.letters,
            self.only_shared, f"{self.secret}-key-0", self.cut,
        ]  # fmt: skip

    @property
    def numbers(self) -> list[int]:
        """Numbers that the stranger has guessed: producer ids, epochs, partitions."""
        return [*self.writer.name, *self.owners.name, *self.sequence, *self.partitions, *self.shares]

    @property
    def shares(self) -> list[int]:
        """Numbers of members of their share group, and of its partition."""
        rows = self.connection.execute(
            "select m.member_number from msgtx.group_member m"
            " join msgtx.consumer_group g using (group_id) where g.name = %s",
            [self.share_group],
        ).fetchall()
        ids = describe_topics(self.connection, [self.only_shared])[self.only_shared].partition_ids
        return [number for (number,) in rows] + list(ids)

    def go_on(self) -> list[str]:
        """Finish what was begun. Returns what is not as promised."""
        found: list[str] = []
        for name, writer, partition in (("a role's", self.writer, 0), ("the owner's", self.owners, 2)):
            writer.send(self.partitions[partition], b"whole")
            decided = writer.decide("COMMIT")
            if decided.error is not None or decided.outcome != "COMMIT":
                found.append(f"{name} transaction ended with {decided}")
        (answer,) = append(self.session, [batch(self.partitions[1], b"two", producer=self.sequence, sequence=1)])
        if answer.error is not None or answer.duplicate:
            found.append(f"the next batch of a sequence was answered with {answer}")
        read: list[tuple[int, bytes | None]] = []
        deadline = time.monotonic() + SECONDS
        while len(read) < 6 and time.monotonic() < deadline:
            read += [(record.partition, record.value) for record in self.consumer.poll(1.0)]
        expected = {0: [b"half", b"whole"], 1: [b"one", b"two"], 2: [b"half", b"whole"]}
        if {at: [value for partition, value in read if partition == at] for at in range(3)} != expected:
            found.append(f"read were {read}")
        self.consumer.commit()
        if self.consumer.group_metadata().member_id != self.member:
            found.append(f"the member {self.member} was thrown out of its group")
        for record in self.held[:2]:
            self.member_of_shares.acknowledge(record)
        self.member_of_shares.commit()
        if again := self.member_of_shares.poll(0.2):
            found.append(f"of its share group it was given {again}")
        with self.owner.producer() as producer:
            if not producer.send(self.only_shared, b"again", dedup_key=f"{self.secret}-key-0").result(SECONDS).duplicate:
                found.append("a key of deduplication was forgotten")
        whole = Writer(self.session, f"{self.transactional_id}-2")
        whole.commit_whole(whole.row(self.partitions[0], b"whole"))
        return found

    def close(self) -> None:
        """End their sessions."""
        self.member_of_shares.close()
        self.consumer.close()
        self.client.close()
        self.session.close()


class Stranger:
    """A login that may produce, consume and administer topics of its own, and knows others' names and numbers."""

    def __init__(self, connection: Connection, others: Others, chance: random.Random, own: list[int], team: str) -> None:
        self.connection = connection
        self.share_groups = ("own-shares", others.bait, others.share_group)
        self.settings = (*SETTINGS, f"set role {team}", f"set role {team}", f"set local role {team}", "reset role")
        self.chance = chance
        self.secret = others.secret
        self.own = own
        near = [*own, *others.partitions, *others.shares]  # partitions, and numbers that are perhaps some
        self.near = near
        self.hints: dict[str, list[Any]] = {
            "producer_id": [others.writer.name.producer_id, others.owners.name.producer_id, others.sequence.producer_id],
            "producer_epoch": [0], "expected_epoch": [0], "transaction_number": [0], "outcome": ["COMMIT", "ABORT"],
            "decided_by": ["client", "admin", "resolve"], "kind": ["session", "external"], "app_id": others.names,
            "transactional_id": others.names, "group_name": [others.group, others.share_group],
            "group_names": [others.group, others.share_group], "dead_letter_topic": [others.letters, others.only_shared],
            "answers": ["accept", "release", "reject", "renew"], "first_offsets": [0, 1], "last_offsets": [0, 1],
            "call_number": [1, 2, 3, 2**62], "dedup_keys": [f"{others.secret}-key-0"], "in_name": [others.cut],
            "member_id": [others.member], "member_ids": [others.member, None], "generation": [1, 2], "generations": [1, 2],
            "member_number": [*range(1, 4), *others.shares],
            "member_numbers": others.shares, "strategy": ["range", "cooperative-sticky"], "isolation": ["read_committed"],
            "partitions": near, "partition_ids": near, "partition_id": near, "offsets": [0, 1], "timeout_ms": [None, 60_000],
            "heartbeat_number": [2**63 - 1], "topics": ["own-topic"], "pattern": [None, "("], "instance_id": [None],
        }  # fmt: skip
        self.functions = connection.execute(FUNCTIONS).fetchall()
        self.views = [name for (name,) in connection.execute(VIEWS)]
        self.texts: list[str | None] = [
            None, "", "(", "(a+)+$", "x" * 300, "x" * 5_000, "x" * 1_000_000, "%", "a'b\"c;--\\", "\u202eabc", "🚀" * 400,
            "own-topic", "own-group", "COMMIT", "ABORT", "client", "admin", "resolve", "coordinator", "external", "session",
            "read_committed", "range", "cooperative-sticky", "0:1", "nan", *others.names,
        ]  # fmt: skip
        self.integers: list[int | None] = [
            None, -1, 0, 1, 2, 7, 50, 45_000, 2**31 - 1, -(2**31), *own * 3, *others.numbers * 2
        ]  # fmt: skip
        self.large: list[int | None] = [*self.integers, 2**63 - 1, -(2**63), 2**40, 2**32]

    def aimed(self, name: str, kind: str) -> Any:
        """Return an argument that others would pass here, by its name."""
        for ending, values in self.hints.items():
            if name.endswith(ending):
                value = self.chance.choice(values)
                return [value] if kind.endswith("[]") else value
        return [self.batch(aimed=True)] if kind == "msgtx.batch[]" else self.value(kind)

    def value(self, kind: str) -> Any:
        """Return an argument of this type, as a SQL literal."""
        chance = self.chance
        if kind.endswith("[]"):
            if chance.random() < 0.05:
                return None
            length = MANY if chance.random() < 0.02 else chance.choice((0, 1, 1, 1, 2, 3, 5))
            some = [self.value(kind[:-2]) for _ in range(min(length, 5))]
            if length > 5 and sum(len(str(each)) for each in some) > SHORT:
                return some
            return some * (length // 5) if length > 5 else some
        match kind:
            case "text" | "name":
                return chance.choice(self.texts)
            case "integer" | "smallint":
                return chance.choice(self.integers)
            case "bigint":
                return chance.choice(self.large)
            case "boolean":
                return chance.choice((True, False, None))
            case "bytea":
                return chance.choice((None, b"", b"\0\xff", b"x" * 1_000, b"x" * 1_100_000))
            case "jsonb":
                return chance.choice(
                    (None, "{}", "null", "[]", '{"a": null}', '{"a": {"b": 1}}', f'{{"a": "{"x" * 5_000}"}}')
                )
            case "uuid":
                return chance.choice((None, "00000000-0000-0000-0000-000000000000"))
            case "timestamp with time zone":
                return chance.choice(
                    (None, "infinity", "-infinity", "1970-01-01Z", "294276-12-31 23:59:59Z", "4713-01-01 BC")
                )
            case "msgtx.batch":
                return self.batch()
            case _:
                return None

    def batch(self, *, aimed: bool = False) -> str:
        """Return a row to append; aimed at a producer of others."""
        if aimed:
            place = self.chance.choice(self.near)
            if self.chance.random() < 0.3:
                return f'({place},,,,,1,,"{{""\\\\x78""}}",,,,)'
            number, sequence = self.chance.choice(("", "0")), self.chance.choice("012")
            producer = self.chance.choice(self.hints["producer_id"])
            return f'({place},{producer},0,{number},{sequence},1,,"{{""\\\\x78""}}",,,,)'
        columns = ("integer", "bigint", "integer", "bigint", "bigint", "bigint", "bytea[]", "bytea[]")
        texts = [self.literal(kind) for kind in columns]
        return f"({','.join(texts)},,,,)"

    def literal(self, kind: str) -> str:
        """Return a value as a part of a composite's text."""
        value = self.value(kind)
        if value is None:
            return ""
        if isinstance(value, list):
            parts = ("NULL" if each is None else f"\\\\x{each[:1000].hex()}" for each in value[:5])
            return '"{' + ",".join(f'""{part}""' if part != "NULL" else part for part in parts) + '}"'
        return str(value)

    def share(self, report: Report) -> None:
        """Be a member of a share group, of its own or under a name of others, and reject what it is given."""
        group, number = self.chance.choice(self.share_groups), 0
        with contextlib.suppress(psycopg.Error):
            rows = self.connection.execute(
                "select member_number from msgtx.join_share_group(%s, %s, null, 1, 45000, '{own-topic}')",
                [group, unique("low")],
            ).fetchall()
            number = rows[0][0] or 0
        for at in self.own:
            self.run(report, "share", "select f.error from msgtx.append(array[%s::msgtx.batch]) f",
                     [f'({at},,,,,1,,"{{x}}",,,,)'])  # fmt: skip
            with contextlib.suppress(psycopg.Error):
                call = self.chance.randrange(1 << 30)
                rows = self.connection.execute(
                    "select f.first_offset from msgtx.acquire_records(%s, %s, %s, %s, 1, 100000) f",
                    [group, number, call, [at]],
                ).fetchall()
                for (offset,) in rows:
                    self.run(report, "share", "select f.error from msgtx.acknowledge_records(array[%s], array[%s]::bigint[],"
                             " array[%s], array[%s]::bigint[], array[%s]::bigint[], array['reject'], array['x'],"
                             " array[null]::int[], %s) f", [group, number, at, offset, offset, call])  # fmt: skip

    def act(self, report: Report) -> None:
        """Do one thing."""
        chance = self.chance
        if chance.random() < 0.02:
            self.share(report)
            return
        if chance.random() < 0.08:
            self.run(report, "a setting", chance.choice(self.settings), [])
            if chance.random() < 0.5:
                self.run(report, "a setting", f"reset all; set statement_timeout = '{STATEMENT_SECONDS}s'", [])
            return
        if chance.random() < 0.1:
            view = chance.choice(self.views)
            self.run(report, view, f'select v::text from msgtx."{view}" v limit 2000', [])
            return
        name, kinds, defaults, names = chance.choice(self.functions)
        given = kinds[: len(kinds) - chance.randint(0, defaults)]
        value = self.aimed if chance.random() < 0.5 else lambda _, kind: self.value(kind)
        arguments = [value(argument, kind) for argument, kind in zip(names, given, strict=False)]
        told = ", ".join(f"%s::{kind}" for kind in given)
        statement = f'select f::text from msgtx."{name}"({told}) f limit 2000'
        report.functions.add(name)
        self.run(report, name, statement, arguments)

    def run(self, report: Report, name: str, statement: str, arguments: list[Any]) -> None:
        """Run a statement by itself. A refusal is fine unless it shows a bug, or a secret."""
        report.calls += 1
        began = time.monotonic()
        try:
            cursor = self.connection.execute(statement, arguments)
            told = str(cursor.fetchall() if cursor.description else "")
            report.answered.add(name)
        except psycopg.Error as error:
            state = error.sqlstate or type(error).__name__
            report.refused[state] = report.refused.get(state, 0) + 1
            told = str(error)
            if state.startswith("XX") or self.connection.closed:
                report.failures.append(f"{name}: {state} {told[:200]}")
        if not self.connection.closed and self.connection.info.transaction_status != psycopg.pq.TransactionStatus.IDLE:
            self.connection.rollback()
        if time.monotonic() - began > 4 * STATEMENT_SECONDS:
            report.failures.append(f"{name} took {time.monotonic() - began:.1f} s")
        # It knows names; no answer may contain what it was not given: the topic's name, values.
        if f"{self.secret}-topic" in told or "half" in told:
            report.failures.append(f"{name} told a secret: {told[:200]}")


def attack(server: Server, url: str, *, seed: int, calls: int | None = None, seconds: float = 1e9) -> Report:
    """Have a stranger make `calls` calls, or act for `seconds`, on a database with msgtx's schema. Returns what broke."""
    report = Report(seed)
    chance = random.Random(seed)
    with _scene(server, url) as (roles, owner, connection, others):
        owner.topics.create("own-topic", partitions=2)
        own = describe_topics(connection, ["own-topic"])["own-topic"].partition_ids
        append(connection, [batch(each, b"own") for each in own])
        role = roles.make("produce:own-*", "consume:own-*", "admin:own-*")
        team = roles.make("produce:team-*", "consume:own-*", options="nologin")
        roles.sql(f"alter role {role} noinherit; grant {team} to {role}")
        before, theirs = _sizes(connection), others.fingerprint()
        with contextlib.closing(roles.connect(role)) as session:
            session.execute(f"set statement_timeout = '{STATEMENT_SECONDS}s'")
            stranger = Stranger(session, others, chance, list(own), team)
            deadline = time.monotonic() + seconds
            while (calls is None or report.calls < calls) and time.monotonic() < deadline and not session.closed:
                stranger.act(report)
        now = others.fingerprint()
        report.failures += [
            f"of others' {table}: {len(rows)} rows, now {len(now[table])}; {sorted({*rows} ^ {*now[table]})[:2]}"[:1000]
            for table, rows in theirs.items() if rows != now[table]
        ]  # fmt: skip
        try:
            report.failures += others.go_on()
        except (AssertionError, errors.MsgtxError) as error:
            report.failures.append(f"others cannot go on: {error!r}")
        with owner.producer() as producer:
            producer.send(others.topic, b"the owner's").result(SECONDS)
        report.failures += [f"verify: {broken}" for broken in owner.admin.verify([others.topic]).violations]
        for table, (_, largest) in _sizes(connection).items():
            if largest > max(before[table][1], LARGEST_ROW if table in BATCHES else LARGEST_TEXT_ROW):
                report.failures.append(f"a row of {table} has {largest:,} bytes")
    return report


@contextlib.contextmanager
def _scene(server: Server, url: str) -> Iterator[tuple[Roles, msgtx.Client, Connection, Others]]:
    with contextlib.ExitStack() as stack:
        roles = stack.enter_context(open_roles(server, url))
        owner = stack.enter_context(msgtx.connect(url))
        connection = stack.enter_context(owner.runtime.engine.connection())
        others = Others(roles, owner, connection)
        stack.callback(others.close)
        yield roles, owner, connection, others


def _sizes(connection: Connection) -> dict[str, tuple[int, int]]:
    """Return how many rows each table has, and the bytes of the largest."""
    found = {}
    for (table,) in connection.execute(TABLES).fetchall():
        rows = connection.execute(f'select count(*), coalesce(max(octet_length(t::text)), 0) from msgtx."{table}" t')
        found[table] = rows.fetchall()[0]
    return found


@click.command()
@click.option("--minutes", type=float, default=1.0, show_default=True)
@click.option("--seed", type=int, default=None, help="Plans what is called, and with what. Default: the time.")
def main(*, minutes: float, seed: int | None) -> None:
    """Let a stranger act for `minutes`; the exit code (tests/verdicts.py) says whether a promise to others is broken."""
    chosen = int(time.time()) if seed is None else seed
    click.echo(f"seed {chosen}")
    with tempfile.TemporaryDirectory(prefix="msgtx-hostile-") as folder, crash_server() as server:
        Path(folder).chmod(0o700)
        report = attack(server.server, server.server.create_database(), seed=chosen, seconds=60 * minutes)
    click.echo(f"functions called {len(report.functions)}, answered {len(report.answered)}; refusals {report.refused}")
    again = f"tests.hostile --minutes {minutes:g} --seed {chosen}"
    conclude(report.failures, looked=f"calls, together {report.calls}", again=again)


if __name__ == "__main__":
    main()
