"""Neighbours: sessions that publish, a user with timeouts, a login that tries everything, a topic of many partitions."""

import contextlib
import itertools
import random
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

import psycopg
import sqlalchemy
from sqlalchemy.orm import Session

from msgtx import errors, orm
from tests.histories.history import Result
from tests.histories.members import EXTRA, EXTRA_PARTITIONS, SEALED, user_engine

if TYPE_CHECKING:
    from tests.histories.workers import World

OWN: Final = "own"  # the only topic of the login `low`
COPY: Final = "copy"
WIDE, WIDE_PARTITIONS = "wide", 10_000
WIDE_USED: Final = (0, 4_999, 9_999)
SPREAD: Final = 9_900  # more than the tests' server has entries for locks
SPREAD_SECONDS: Final = 60.0
WITHIN_SECONDS: Final = 1.0
SQL_PUBLISH: Final = sqlalchemy.text("select msgtx.publish(:topic, :value, partition => :partition)")
REPLICA: Final = sqlalchemy.text("set local session_replication_role = replica")


# ── sessions that publish ──


def publisher(world: "World") -> None:
    """A user's sessions that publish by hand and by SQL, to several partitions in any order, in one COMMIT (I6)."""
    engine = user_engine(world)
    numbers = itertools.count()
    while not world.finish.now:
        publishes = [
            (world.random.choice(("sql", "orm")), world.random.choice((EXTRA, EXTRA, "input")), world.random.randrange(2))
            for _ in range(world.random.randint(1, 4))
        ]
        _publish(world, engine, publishes, f"{world.life.process}#s{next(numbers)}")
        world.pause()


def _publish(world: "World", engine: sqlalchemy.Engine, publishes: list[tuple[str, str, int]], name: str) -> None:
    sent: list[int] = []
    try:
        with Session(engine) as session:
            if world.random.random() < 0.1:
                session.execute(REPLICA)  # as in a process that applies a logical replication
            for way, topic, partition in publishes:
                value = world.value()
                text = value.split(b" ", 1)[0].decode()
                sent.append(
                    world.recorder.invoke(
                        "send", topic=topic, partition=partition, values=[text], transaction=None, acks="all", once=True,
                        producer=f"{name}-{way}",
                    )
                )  # fmt: skip
                if way == "orm":
                    orm.publish(session, topic, value, partition=partition)
                else:
                    session.execute(SQL_PUBLISH, {"topic": topic, "value": value.decode(), "partition": partition})
            session.commit()
    except (errors.MsgtxError, sqlalchemy.exc.SQLAlchemyError) as error:
        answer = Result.FAIL if _took_nothing(error) else Result.INFO
        told = {"error": type(error).__name__, "detail": str(error)}
        world.recorder.complete_all([(answer, number, told) for number in sent])
        return
    world.recorder.complete_all([(Result.OK, number, {"offsets": [-1]}) for number in sent])


def _took_nothing(error: Exception) -> bool:
    """Whether PostgreSQL has refused the COMMIT: then its SQL transaction was rolled back."""
    state = getattr(getattr(error, "orig", None) or error.__cause__, "sqlstate", None)
    return state is not None and state[:2] not in {"08", "57"}


# ── a user with short timeouts ──


def bounded(world: "World") -> None:
    """Each call comes back within its own timeout, whatever the server does."""
    milliseconds = round(WITHIN_SECONDS * 1000)
    settings = {"max_block_ms": milliseconds, "delivery_timeout_ms": milliseconds, "linger_ms": 0}
    while not world.finish.now:
        # `TimeoutError` is what a flush says.
        with contextlib.suppress(errors.RetriableError, errors.AbortableError, errors.OutcomeUnknown, TimeoutError):
            plain, tape = world.producer(**settings)
            number = world.recorder.invoke("answer", within=WITHIN_SECONDS)
            error = plain.send(EXTRA, world.value(), partition=world.random.randrange(EXTRA_PARTITIONS)).exception()
            world.recorder.complete(
                Result.OK if error is None else Result.INFO, number, error=None if error is None else type(error).__name__
            )
            tape.settle()
            producer, _ = world.producer(transactional_id=world.life.name, transaction_timeout_ms=2_000, **settings)
            producer.init_transactions()
            for _ in range(world.random.randint(1, 10)):
                producer.begin_transaction()
                producer.send(EXTRA, world.value(), partition=world.random.randrange(EXTRA_PARTITIONS))
                if world.random.random() < 0.3:
                    producer.flush(WITHIN_SECONDS)
                producer.commit_transaction(WITHIN_SECONDS)
                world.pause()
        world.pause()


# ── a login that may consume one topic ──


def low(world: "World") -> None:
    """A login that may consume a topic of its own, and tries all that the database lets it do."""
    while not world.finish.now:
        with contextlib.suppress(psycopg.Error), psycopg.connect(world.life.low_url, autocommit=True) as session:
            session.execute("set statement_timeout = '2s'")
            while not world.finish.now and not session.closed:
                _try(world, session, world.random.choice(DEEDS))
                world.pause()
        world.pause()


def _try(world: "World", session: "Login", deed: "Deed") -> None:
    number = world.recorder.invoke("try", deed=deed.__name__)
    try:
        deed(session, world.random)
    except psycopg.Error as error:
        told = {"error": type(error).__name__, "detail": str(error)}
        world.recorder.complete(Result.INFO if session.closed else Result.FAIL, number, **told)
        return
    world.recorder.complete(Result.OK, number)


Login = psycopg.Connection[tuple[object, ...]]
Deed = Callable[[Login, random.Random], None]


def _join_with_a_pattern(session: Login, chance: random.Random) -> None:
    """None of the patterns matches another role's topic: it asks for nothing, in a long text."""
    pattern = chance.choice(("(", "[", "(own|own)*x", "*", "(o+)+$"))
    _join(session, chance, 2_147_483_647, [], pattern)


def _join_for_its_own_topic(session: Login, chance: random.Random) -> None:
    _join(session, chance, 6_000, [OWN], None)


def _join(session: Login, chance: random.Random, timeout_ms: int, topics: list[str], pattern: str | None) -> None:
    session.execute(
        "select * from msgtx.join_group(%s, %s, null, 'low', 1, %s, 'cooperative-sticky', %s, %s, 1)",
        [chance.choice((COPY, SEALED)), f"low-{chance.randrange(5)}", timeout_ms, topics, pattern],
    )


def _have_a_member_leave(session: Login, chance: random.Random) -> None:
    group = chance.choice((COPY, SEALED))
    session.execute("select msgtx.leave_group(%s, m.member_id) from msgtx.describe_members(%s) m limit 1", [group, group])


def _commit_for_others(session: Login, chance: random.Random) -> None:
    session.execute(
        "select * from msgtx.commit_offsets(array[%s], array[p.partition_id], array[0::bigint], array[''],"
        " array[null::text], array[-1], array[null::text], array[null::text])"
        " from msgtx.partitions p where p.topic = 'input'",
        [chance.choice((COPY, SEALED, "tally"))],
    )


def _take_a_look(session: Login, chance: random.Random) -> None:
    view = chance.choice(("records", "committed_records", "transactions", "group_offsets", "partitions", "topics"))
    session.execute(f"select count(*) from msgtx.{view}")


def _end_what_is_open(session: Login, chance: random.Random) -> None:
    verb = chance.choice(("fence_producer('copy-0')", "delete_group('copy')", "delete_topic('input')",
                          "init_producer_id('copy-0', 1000)", "expire_overdue()", "fence_everybody()"))  # fmt: skip
    session.execute(f"select * from msgtx.{verb}")


DEEDS: Final[tuple[Deed, ...]] = (
    _join_with_a_pattern,
    _join_for_its_own_topic,
    _have_a_member_leave,
    _commit_for_others,
    _take_a_look,
    _end_what_is_open,
)


# ── many partitions ──


def wide(world: "World") -> None:
    """A topic of many partitions, few of them in use; at the end a record goes to most of them, at once."""
    producer, tape = world.producer(linger_ms=5)
    while not world.finish.now:
        producer.send(WIDE, world.value(), partition=world.random.choice(WIDE_USED))
        tape.settle()
        world.pause()
    producer.flush(SPREAD_SECONDS)
    tape.settle()
    milliseconds = round(SPREAD_SECONDS * 1000)
    settings = {"batch_bytes": 1_024, "delivery_timeout_ms": milliseconds, "max_block_ms": milliseconds}
    with world.client.producer(linger_ms=3_000, **settings) as many:
        number = world.recorder.invoke("spread", within=SPREAD_SECONDS, partitions=SPREAD)
        unused = [index for index in range(WIDE_PARTITIONS) if index not in WIDE_USED][:SPREAD]
        futures = [many.send(WIDE, b"spread", partition=index) for index in unused]
        many.flush(SPREAD_SECONDS * 2)
        failed = [type(error).__name__ for future in futures if (error := future.exception()) is not None]
        told = {"error": failed[0], "detail": f"{len(failed)} of {SPREAD} failed"} if failed else {}
        world.recorder.complete(Result.INFO if failed else Result.OK, number, **told)
