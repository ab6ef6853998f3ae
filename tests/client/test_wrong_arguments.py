"""Each public call with wrong types and values for each of its arguments, derived from its signature (I16).

A refusal is typed, changes nothing in the database, and harms nobody: the object, and all others that share it, go on. What
an argument may be follows from its name and its annotation (`KINDS`): a new call is tried without more ado, and one with an
argument that is not known here fails `test_every_argument_of_every_public_call_is_known`.
"""

import asyncio
import contextlib
import dataclasses
import enum
import functools
import inspect
import threading
import typing
import uuid
from collections.abc import Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from typing import Any, Final

import prometheus_client
import pytest
import sqlalchemy
import sqlalchemy.ext.asyncio

import msgtx
from msgtx import Isolation, TopicPartition, aio, arguments, errors, metrics, orm, otel
from msgtx import client as clients
from msgtx.settings import MirrorSettings, WorkerSettings
from msgtx.snapshot import Snapshots
from tests.databases import Connection
from tools.listings import surface

pytestmark = pytest.mark.slow

SECONDS: Final = 20.0  # in which a call returns: a wrong argument that is waited for would hang
NOTHING: Final = object()  # an object of no class that anybody knows
# Tables whose rows tell what has changed; others are written in the background.
TABLES: Final = (
    "topic", "partition", "record_batch", "producer", "transaction", "transaction_decision", "transaction_seal",
    "consumer_group", "group_offset", "share_group", "named_snapshot",
)  # fmt: skip


class Broken:
    """What cannot even tell what it is."""

    def __repr__(self) -> str:
        raise RuntimeError("no repr")


# ── what an argument may be ──

NUMBERS: Final = [float("nan"), float("inf"), float("-inf"), 2**63, -(2**63) - 1]
NO_NUMBERS: Final = ["1", b"1", "", [], {}, NOTHING, True, Decimal(1), 1j, Broken()]
NO_WHOLE: Final = [*NUMBERS, *NO_NUMBERS, 1.5, 1.0]
NO_NAMES: Final = [5, 1.5, True, b"name", [], {}, NOTHING, "a\0b", "a\ud800", Broken()]
NO_LISTS: Final = [5, True, NOTHING, "text", b"bytes", [5], [NOTHING], [None], [[]], Broken()]
NO_FUNCTIONS: Final = [5, "name", [], {}, NOTHING, True, Broken()]
NO_OBJECTS: Final = [5, "text", b"bytes", [], {}, (), NOTHING, True, 1.5, Broken()]
NO_PARTITIONS: Final = [
    5, "topic", ("topic",), ("topic", 0, 0), ("topic", "0"), ("topic", 0.0), ("topic", True), (5, 0), None, ("topic", None),
    ["topic", 0], (NOTHING, NOTHING), NOTHING, Broken(),
]  # fmt: skip


@dataclasses.dataclass(frozen=True, eq=False)
class OfWorld:
    """A wrong value that names something which is there, so that nothing else is wrong with it."""

    made: Callable[["World"], Any]


# Of a partition that is there.
NO_PLACES: Final = [
    OfWorld(lambda world, index=index: (world.topic, index))  # type: ignore[misc]
    for index in ("0", 0.0, True, None, -1, 7, 2**63, NOTHING)
]


@dataclasses.dataclass(frozen=True)
class Kind:
    """What is refused for an argument, and what is right: a value, or a function of the world that returns one."""

    wrong: list[Any]
    right: Any = None


def _whole(right: int, *, least: int = 0, none: bool = False) -> Kind:
    return Kind([*NO_WHOLE, *([] if none else [None]), *([least - 1] if least > -(2**63) else [])], right)


TIMEOUT = Kind([*NUMBERS, *[each for each in NO_NUMBERS if each != "1"], -1, -0.5, "soon", "-1s"], "50ms")
MILLISECONDS = Kind([*NUMBERS, "soon", b"1s", [], {}, NOTHING, True, 1j, -1, 0.0001, "9" * 5_000, Broken()], 100)
FLAG = Kind([0, 1, "no", "true", [], NOTHING, 1.0, Broken()], False)
NAME = Kind([*NO_NAMES, "", "x" * 1_001, None], lambda world: world.topic)
TOPIC = Kind([*NO_NAMES, None, "", "no such topic"], lambda world: world.topic)
TEXT = Kind(NO_NAMES, None)
PARTITION = Kind([*NO_PARTITIONS, *NO_PLACES], lambda world: world.partition)
PARTITIONS = Kind(
    [*NO_LISTS, ("topic", 0)] + [OfWorld(lambda world, each=each: [each.made(world)]) for each in NO_PLACES],  # type: ignore[misc]
    lambda world: [world.partition],
)
TOPICS = Kind([*NO_LISTS, ["a\0b"], ["no such topic"]], lambda world: [world.topic])
INDEX = Kind([*NO_WHOLE, -1, 7], 0)
FUNCTION = Kind(NO_FUNCTIONS)
CONFIG = Kind([5, "linger.ms=5", [5], NOTHING, {5: 5}, {"no.such.setting": 5}, True, Broken()])
OFFSETS = Kind(
    [*NO_OBJECTS[:2], [], NOTHING, True, Broken(), {("topic", "0"): 0}, {5: 5}]
    + [
        OfWorld(lambda world, offset=offset: {world.partition: offset})  # type: ignore[misc]
        for offset in [*NO_WHOLE, None, -2, msgtx.OffsetAndMetadata(1.5)]  # type: ignore[arg-type]
    ],
    lambda world: {world.partition: 0},
)
SNAPSHOT = Kind(NO_OBJECTS, lambda world: world.cut)
SESSION = Kind(NO_OBJECTS)
TRANSACTION_ID = Kind(
    [*NO_OBJECTS, None, "1.2", (1, 2), (1, 2, "3"), (1, 2, 1.5), (1, 2, 2**63), "x"], lambda world: world.id
)
# Offsets that cannot be fail it: who catches the error and commits would commit outputs without their offsets (I10).
FAILS_ITS_TRANSACTION: Final = {"send_offsets", "send_offsets_to_transaction"}
NO_TARGETS: Final = [each for each in NO_NUMBERS if each != {}]
TARGET = Kind([*NUMBERS, *NO_TARGETS, None, 1.5, msgtx.ShiftBy(1.5), {("t", 0): "5"}, {5: 5}], "earliest")  # type: ignore[arg-type]
STATES = Kind([*NO_LISTS, ["no such state"]])
STOP = Kind(NO_OBJECTS, lambda world: world.stop)
# Of a record: `msgtx.rules.record` decides, and `tests/system/test_doors.py` compares its doors.
CONTENT = Kind(["text", 5, 1.5, [], {}, NOTHING, True, Broken()], b"x")
KEYS_AND_MORE = Kind([*(each for each in NO_LISTS if each not in ([5], [None])), [1, 2]], None)

# By name, and where a name has several meanings by the beginning of its annotation, too.
URL: Final = Kind([5, b"postgresql://", "", [], NOTHING, True, "no url", "postgresql://h:port/d"], lambda world: world.url)
KINDS: Final[dict[str, Kind | dict[str, Kind]]] = {
    "after": Kind([*NO_WHOLE, -1], None),
    "answer": Kind(NO_OBJECTS, msgtx.Acknowledgement.ACCEPT),
    "auto_offset_reset": Kind([*NO_OBJECTS, None, "no such word"], "earliest"),
    "batch": FLAG,
    "befores": OFFSETS,
    "client": Kind([*NO_OBJECTS, None], lambda world: world.client),
    "commit": FLAG,
    "config": CONFIG,
    "consumer_config": CONFIG,
    "create": FLAG,
    "cut": SNAPSHOT,
    "dedup_key": Kind([5, True, b"key", [], NOTHING, "", "a\0b", "x" * 300, Broken()], None),
    "delay_ms": Kind([*MILLISECONDS.wrong[:-5], Broken()], None),
    "deliver_at": Kind([*NUMBERS, *NO_NUMBERS, 1.5], None),
    "dry_run": FLAG,
    "full_speed": FLAG,
    "end": {"int": _whole(0, least=-(2**63), none=True), "msgtx.types.Snapshot": Kind(NO_OBJECTS)},
    "failure": Kind([*NO_OBJECTS, None, "stop", msgtx.Stop, msgtx.Acknowledgement.REJECT], msgtx.Stop()),
    "group": Kind([*NO_NAMES, "x" * 1_001], lambda world: world.topic),
    "group_metadata": Kind([*NO_NAMES, "", "x" * 1_001, msgtx.GroupMetadata(5), msgtx.GroupMetadata("g", generation=1.5)],  # type: ignore[arg-type]
                           lambda world: world.topic),
    "handler": Kind([*NO_FUNCTIONS, None], lambda world: lambda session, record: None),
    "header": TEXT,
    "headers": Kind([5, "text", [5], [("name", "text")], {"name": 5}, NOTHING, [(5, b"x")], Broken()], None),
    "host": Kind([*NO_NAMES, None], "127.0.0.1"),
    "idle_timeout": Kind([*NUMBERS, "soon", b"1s", [], {}, NOTHING, True, 1j, -1, "9" * 5_000, Broken()], 0.05),
    "if_not_exists": FLAG,
    "isolation": Kind([*NO_OBJECTS, None, "no such word"], Isolation.READ_COMMITTED),
    "keep_prepared": FLAG,
    "key": CONTENT,
    "json": {"str": TEXT, "": Kind([NOTHING, {1, 2}, float("nan"), b"x", Broken()])},
    "key_deserializer": FUNCTION,
    "key_serializer": FUNCTION,
    "keys": KEYS_AND_MORE,
    "before_offset": _whole(5, none=True),
    "before": _whole(0, none=True),
    "contents": FLAG,
    "groups": FLAG,
    "epochs_before": _whole(5, none=True),
    "from_offset": _whole(0, none=True),
    "limit": _whole(10, least=1),
    "minutes": _whole(60, least=1),
    "offsets_after": Kind([*(each for each in NO_LISTS if each != [5]), ["5"], [1.5], [True], [-1]], None),
    "pieces": _whole(5, least=1, none=True),
    "producer": Kind([*NO_NAMES[1:], "", None, -1], lambda world: f"{world.topic}-prepared"),
    "skip": _whole(0),
    "transaction": Kind([*NO_NAMES, "", None], lambda world: world.id),
    "limits": Kind(NO_OBJECTS),
    "longer_than_ms": _whole(5, none=True),
    "max_records": {"int | None": _whole(1, none=True), "int": _whole(1, least=1)},
    "max_bytes": Kind([*NUMBERS, "much", b"1", [], {}, NOTHING, True, 1j, 0, -1, "9" * 5_000, Broken()], "1MB"),
    "rate_limit": _whole(1, least=1, none=True),
    "repartition": FLAG,
    "until_caught_up": FLAG,
    "on_removed": Kind([*NO_OBJECTS, None, "no such word"], "stop"),
    "on_progress": FUNCTION,
    "source": Kind([*NO_OBJECTS, "postgresql://h:port/d"]),
    "max_failures_in_a_row": _whole(20, least=1),
    "max_transaction_timeout_ms": _whole(5, none=True),
    "meter_provider": Kind(NO_OBJECTS),
    "most": _whole(5, least=1),
    "name": Kind([*NO_NAMES, None, "", "x" * 1_001], lambda world: f"new-{uuid.uuid4().hex[:8]}"),
    "observer": Kind([*NO_OBJECTS, None], lambda world: msgtx.observer.Observer()),
    "offset": _whole(0),
    "offsets": OFFSETS,
    "on_assign": FUNCTION,
    "on_commit": FUNCTION,
    "outage_timeout": Kind([*NUMBERS, "soon", b"1s", [], {}, NOTHING, True, 1j, -1, "9" * 5_000, Broken()], 0.05),
    "on_delivery": FUNCTION,
    "on_failover": Kind(["", "no", 5, True, b"trust", ["trust"]], None),
    "on_lost": FUNCTION,
    "on_revoke": FUNCTION,
    "only": Kind([*NO_LISTS, ["no such sweep"]], ["overdue"]),
    "partition": {"int": INDEX, "msgtx.types.TopicPartition": PARTITION},
    "partitions": {
        "collections.abc.Iterable": PARTITIONS,
        "collections.abc.Collection": Kind([*NO_LISTS, ["0"], [1.5], [True], [-1], [7]], None),
        "int": Kind([*NO_WHOLE, 0, -1], 2),
        "list": Kind([*NO_LISTS, ["0"], [1.5], [True], [-1], [3]], None),  # of a topic with three
    },
    "pairs": _whole(0),
    "pattern": Kind([*NO_NAMES, "(", "(?P<a", "x{9999999999}"], None),
    "pool_size": Kind([*NO_WHOLE, None, 0, -1], 3),
    "port": Kind([*NO_WHOLE, None, -1, 65_536], 0),
    "prefix": Kind([*NO_NAMES, None], ""),
    "producer_ids": Kind([*(each for each in NO_LISTS if each != [5]), ["5"], [1.5], [True], [-1]], None),
    "progress": FUNCTION,
    "read_url": URL,
    "reads_only": FLAG,
    "reason": Kind([each for each in NO_NAMES if not isinstance(each, str)], None),  # of any characters
    "record": Kind([*NO_OBJECTS, None], lambda world: world.record),
    "records": Kind([*NO_LISTS, None], lambda world: [world.record]),
    "registry": Kind([*NO_OBJECTS, None], lambda world: prometheus_client.CollectorRegistry()),
    "replace": FLAG,
    "require_stable": FLAG,
    "resolve": FLAG,
    "session": SESSION,
    "session_factory": Kind([*NO_FUNCTIONS, None], lambda world: world.factory),
    "settings": {"msgtx.settings.ShareGroupSettings": Kind([*NO_OBJECTS[:4], NOTHING, {5: 5}, {"no": 5}, Broken()], {})},
    "share_consumer": Kind([*NO_OBJECTS, None], lambda world: world.answers),
    "share_members": Kind([*NO_WHOLE, 0, -1, 101], None),
    "skip_missing": FLAG,
    "start": {"int": _whole(0, least=-(2**63), none=True), "msgtx.types.Snapshot": Kind(NO_OBJECTS)},
    "sort": Kind([*NO_OBJECTS, None, "no such order"], "producer_id"),
    "states": STATES,
    "since": Kind([each for each in MILLISECONDS.wrong if each != 0.0001], "1h"),
    "stop": STOP,
    "target": {"str | Client": Kind([*NO_OBJECTS, "postgresql://h:port/d"]), "": TARGET},
    "text": Kind([5, None, b"text", "", "x", NOTHING, [], "a\0b", "9" * 5_000, Broken()]),
    "timeout": TIMEOUT,
    "timeout_ms": Kind([*MILLISECONDS.wrong, 0], "5s"),
    "times": OFFSETS,
    "timestamp": {
        "int | datetime": Kind([*NUMBERS, *NO_NUMBERS, 1.5], None),
        "int": _whole(-1, least=-(2**63)),
    },
    "timestamp_ms": _whole(0),
    "timestamps": KEYS_AND_MORE,
    "to": TOPIC,
    "token": Kind([*NO_OBJECTS, None, "x", "1.2.3@", (1, 2)], lambda world: world.token),
    "topic": TOPIC,
    "topics": {"collections.abc": TOPICS, "list": TOPICS, "str": Kind([5, b"topic", None, ["topic"], True, NOTHING])},
    "tracer_provider": Kind(NO_OBJECTS),
    "transaction_id": TRANSACTION_ID,
    "transaction_ms": Kind([*MILLISECONDS.wrong, 0, None], 50),
    "transactional_id": NAME,
    "transform": Kind([*NO_FUNCTIONS, None], lambda world: lambda record: None),
    "url": URL,
    "value": CONTENT,
    "value_deserializer": FUNCTION,
    "value_serializer": FUNCTION,
    "values": Kind([*NO_LISTS[:-4], None, ["text"], [NOTHING], Broken()], [b"x"]),
    "wait": FLAG,
}  # fmt: skip
# Not wrong for this call: its documents say so.
FINE: Final[dict[tuple[str, str], Callable[[object], bool]]] = {
    ("Client.find", "key"): lambda value: isinstance(value, str),
    ("Client.find", "offset"): lambda value: value is None,
    ("Client.find_before", "key"): lambda value: isinstance(value, str),
    ("Client.search", "text"): lambda value: isinstance(value, str) and value not in ("", "a\0b"),
    ("GroupsAdmin.reset", "topics"): lambda value: isinstance(value, str),  # one name is taken for a list of it
    ("TransactionsAdmin.blocking", "transaction"): lambda value: value is None,
    ("TransactionsAdmin.list", "most"): lambda value: value is None,
    ("SharesAdmin.reset_offsets", "topics"): lambda value: isinstance(value, str),
    ("orm.read", "topic"): lambda value: value in ("", "no such topic"),  # nothing is read of what is not there
    ("orm.read", "partition"): lambda value: value == 7,
    ("otel.processing", "group"): lambda value: isinstance(value, str) and len(value) > 1_000,
}
WORKERS: Final = {*WorkerSettings.__annotations__, *MirrorSettings.__annotations__}
# What takes whatever another function is given.
NOT_OURS: Final = {
    *(("run", name) for name in ("call", "arguments", "named")),
    *((name, "arguments") for name in ("engine", "async_engine")),
}


def kind_of(call: str, parameter: inspect.Parameter) -> Kind:
    """Return what an argument may be. Fail where that is not known."""
    found = KINDS.get(parameter.name)
    if isinstance(found, dict):
        words = _words(parameter)
        found = next((kind for begin, kind in found.items() if words.startswith(begin)), None)
    assert found is not None, f"{call}: nothing is known here of {parameter}; add it to KINDS"
    return found


def _words(parameter: inspect.Parameter) -> str:
    given = parameter.annotation
    words = given if isinstance(given, str) else inspect.formatannotation(given)
    return words.replace("datetime.datetime", "datetime")


# ── the calls ──

CLASSES: Final = [
    *surface.ADMIN,
    *(
        kind
        for room in (msgtx, aio)
        for kind in (getattr(room, name) for name in room.__all__)
        if isinstance(kind, type) and not dataclasses.is_dataclass(kind) and not issubclass(kind, (tuple, enum.Enum))
    ),
]
VALUES: Final = [msgtx.TransactionId, msgtx.PreparedTransaction, msgtx.Snapshot]


def public_calls() -> dict[str, tuple[object, Callable[..., Any]]]:
    """Return public calls by name, with their class (or module)."""
    found: dict[str, tuple[object, Callable[..., Any]]] = {"connect": (msgtx, msgtx.connect)}
    for owner in CLASSES:
        for name in surface.public(owner):
            call = inspect.getattr_static(owner, name, None)
            if inspect.isfunction(call):
                found[f"{'aio.' if owner.__module__ == 'msgtx.aio' else ''}{owner.__name__}.{name}"] = (owner, call)
    for module in (aio, metrics, orm, otel):
        for name in module.__all__:
            if inspect.isfunction(call := getattr(module, name)):
                found[f"{module.__name__.removeprefix('msgtx.')}.{name}"] = (module, call)
    for value in VALUES:
        found[f"{value.__name__}.parse"] = (value, value.parse)
    return found


CALLS: Final = public_calls()
ARGUMENTS: Final = {
    name: {
        each.name: each
        for each in inspect.signature(call).parameters.values()
        if each.name != "self" and (call.__name__, each.name) not in NOT_OURS
    }
    for name, (_, call) in CALLS.items()
}


def settings_of(parameter: inspect.Parameter) -> type | None:
    """Return the names of settings that a call takes as `**settings`."""
    unpacked = typing.get_args(parameter.annotation)
    return unpacked[0] if parameter.kind is parameter.VAR_KEYWORD and unpacked else None


def test_every_argument_of_every_public_call_is_known() -> None:
    for name, parameters in ARGUMENTS.items():
        for parameter in parameters.values():
            if settings_of(parameter) is None:
                kind_of(name, parameter)
    found = {parameter.name for each in ARGUMENTS.values() for parameter in each.values()}
    assert found | WORKERS >= KINDS.keys(), "of no call"


# ── the world ──


@dataclasses.dataclass
class World:
    """What the calls need, and witnesses that work beside them."""

    client: msgtx.Client
    connection: Connection
    topic: str
    output: str
    partition: TopicPartition
    cut: msgtx.Snapshot
    id: msgtx.TransactionId
    token: msgtx.PreparedTransaction
    record: Any
    stop: threading.Event
    factory: Any
    witness: msgtx.Producer
    answers: Any = None  # a share consumer in the twin that is tried

    @property
    def url(self) -> str:
        """The database's."""
        return self.client.secret_url

    def facts(self) -> list[tuple[Any, ...]]:
        """Return what the tables hold, as counts and hashes."""
        asked = " union all ".join(
            f"select '{table}', count(*), coalesce(sum(hashtext(t::text)::bigint), 0) from msgtx.{table} t"
            for table in TABLES
        )
        return self.connection.execute(asked).fetchall()


@pytest.fixture(scope="module")
def world(database_url: str) -> Iterator[World]:
    with contextlib.ExitStack() as block:
        client = block.enter_context(msgtx.connect(database_url, pool_size=20))
        raw = block.enter_context(Connection.connect(database_url, autocommit=True))
        topic = client.topics.create(f"wrong-{uuid.uuid4().hex[:8]}", partitions=3).name
        output = client.topics.create(f"{topic}-output").name
        prepared = block.enter_context(client.producer(transactional_id=f"{topic}-prepared"))
        with prepared.transaction() as transaction:
            prepared.send(topic, b"prepared", partition=2)
            token = transaction.prepare()
        witness = block.enter_context(client.producer(linger_ms=60_000))
        place = witness.send(topic, b"first", partition=0)
        witness.flush(SECONDS)
        assert place.result(0).offset == 0
        engine = sqlalchemy.create_engine("postgresql+psycopg://", creator=client.runtime.engine.dedicated)
        block.callback(engine.dispose)
        stop = threading.Event()
        stop.set()
        yield World(
            client, raw, topic, output, TopicPartition(topic, 0), client.snapshot([topic]), token.transaction_id, token,
            msgtx.ShareRecord(topic, 0, 0, 0, None, b"x"), stop, engine.connect, witness,
        )  # fmt: skip


@contextlib.contextmanager
def made(world: World, owner: object, name: str) -> Iterator[tuple[Any, Callable[[], object]]]:
    """Make an object for a call, and what shows that it still works."""
    client, topic = world.client, world.topic
    nothing: Callable[[], object] = lambda: None  # noqa: E731
    match owner:
        case msgtx.Producer | msgtx.Transaction if name in {"init_transactions"}:
            with contextlib.closing(client.producer(transactional_id=f"{topic}-{uuid.uuid4().hex}")) as producer:
                yield producer, producer.init_transactions
        case msgtx.Producer if name in {"send", "send_batch", "flush", "close"}:
            with client.producer(linger_ms=60_000) as producer:
                first = producer.send(topic, b"accepted before", partition=0)

                def works() -> None:
                    producer.flush(SECONDS)
                    assert first.result(0).offset >= 0
                    assert producer.send_batch(topic, [b"later"]).exception(SECONDS) is None

                yield producer, works
        case msgtx.Producer | msgtx.Transaction:
            with client.producer(transactional_id=f"{topic}-{uuid.uuid4().hex}", linger_ms=30_000) as producer:
                begun = None if name in {"begin_transaction", "transaction"} else producer.begin_transaction()
                sent = producer.send(topic, b"accepted before", partition=1) if begun else None

                def commits() -> None:
                    if name in FAILS_ITS_TRANSACTION:
                        producer.abort_transaction()
                    if begun is None or name in FAILS_ITS_TRANSACTION:
                        producer.begin_transaction()
                    producer.send(topic, b"later", partition=1)
                    producer.commit_transaction()
                    assert sent is None or name in FAILS_ITS_TRANSACTION or sent.result(0).offset >= 0

                yield (begun if owner is msgtx.Transaction else producer), commits
        case msgtx.Consumer:
            by_group = client.consumer(topic, group=f"{topic}-{uuid.uuid4().hex[:8]}", enable_auto_commit=False)
            free = client.consumer(enable_auto_commit=False, group=f"{topic}-free")
            with by_group, free:
                free.assign([world.partition])

                def polls() -> None:
                    for consumer in (by_group, free):
                        consumer.seek_to_beginning()
                        assert consumer.poll(SECONDS)
                        consumer.commit()

                yield (free if name in {"assign"} else by_group), polls
        case msgtx.ShareConsumer:
            group = f"{topic}-{uuid.uuid4().hex[:8]}"
            client.admin.shares.configure(group, {"auto_offset_reset": "earliest"})
            with client.share_consumer(topic, group=group, acknowledgement_mode="explicit") as consumer:
                records = consumer.poll(SECONDS)
                assert records
                world.record = records[0]

                def acknowledges() -> None:
                    consumer.acknowledge(records[0])
                    consumer.commit()

                yield consumer, acknowledges
        case clients.Admin:
            yield client.admin, nothing
        case (
            surface.SharesAdmin
            | surface.GroupsAdmin
            | surface.PartitionsAdmin
            | surface.ProducersAdmin
            | surface.MirrorsAdmin
            | surface.SparkAdmin
            | surface.TransactionsAdmin
        ):
            yield getattr(client.admin, owner.__name__.removesuffix("Admin").lower()), nothing
        case surface.TopicsAdmin:
            yield client.topics, nothing
        case _ if owner is Snapshots:
            yield client.snapshots, nothing
        case msgtx.Client:
            yield client, client.topics.list
        case _:
            yield None, nothing


@contextlib.asynccontextmanager
async def made_in_loop(world: World, owner: object, name: str) -> Any:
    """Make an object of `msgtx.aio` for a call."""
    topic, threads = world.topic, ThreadPoolExecutor(2)
    client = aio.Client(world.client, threads)

    async def nothing() -> None:
        return None

    match owner:
        case aio.Producer if name in {"send", "send_batch", "flush", "close"}:
            async with client.producer(linger_ms=60_000) as producer:
                first = await producer.send(topic, b"accepted before", partition=0)

                async def works() -> None:
                    await producer.flush(SECONDS)
                    assert (await first).offset >= 0

                yield producer, works
        case aio.Producer | aio.Transaction:
            producer = client.producer(transactional_id=f"{topic}-{uuid.uuid4().hex}", linger_ms=30_000)
            if name != "init_transactions":
                await producer.init_transactions()
            begins = name in {"begin_transaction", "transaction", "init_transactions"}
            begun = None if begins else await producer.begin_transaction()

            async def commits() -> None:
                if name == "init_transactions":
                    await producer.init_transactions()
                if name in FAILS_ITS_TRANSACTION:
                    await producer.abort_transaction()
                if begun is None or name in FAILS_ITS_TRANSACTION:
                    await producer.begin_transaction()
                await producer.send(topic, b"later", partition=1)
                await producer.commit_transaction()

            yield (begun if owner is aio.Transaction else producer), commits
            await producer.close()
        case aio.Consumer:
            group = f"{topic}-{uuid.uuid4().hex[:8]}"
            async with client.consumer(
                *([] if name == "assign" else [topic]), group=group, enable_auto_commit=False
            ) as consumer:
                if name == "assign":
                    await consumer.assign([world.partition])

                async def polls() -> None:
                    await consumer.seek_to_beginning()
                    assert await consumer.poll(SECONDS)

                yield consumer, polls
        case aio.ShareConsumer:
            group = f"{topic}-{uuid.uuid4().hex[:8]}"
            world.client.admin.shares.configure(group, {"auto_offset_reset": "earliest"})
            async with client.share_consumer(topic, group=group, acknowledgement_mode="explicit") as consumer:
                records = await consumer.poll(SECONDS)
                world.record = records[0]

                async def acknowledges() -> None:
                    consumer.acknowledge(records[0])
                    await consumer.commit()

                yield consumer, acknowledges
        case aio.Topics:
            yield client.topics, nothing
        case aio.Client:
            yield client, nothing
        case _:
            yield None, nothing
    threads.shutdown(wait=False)


# ── the test ──

# A call with right arguments does something, or waits: only wrong ones are tried, each beside right ones.
NEEDED: Final[dict[str, Mapping[str, Any]]] = {
    "Client.process": {
        "topics": lambda world: world.topic,
        "stop": lambda world: world.stop,
        "to": lambda world: world.output,
    },
    "Client.process_into": {"topics": lambda world: world.topic, "stop": lambda world: world.stop},
    **{name: {"value": b"x"} for name in ("Producer.send", "aio.Producer.send", "aio.publish", "orm.publish")},
    "aio.Client.process_into": {"stop": lambda world: world.stop, "settings": lambda world: {"group": world.topic}},
    "Client.mirror": {"topics": lambda world: world.topic, "settings": lambda world: {"stop": world.stop}},
    "PartitionsAdmin.offsets": {"timestamp": -1},
    "Client.complete": {"token": lambda world: world.token},
    "find_hanging": {"topic": lambda world: world.topic},
}


def right(world: World, name: str, parameter: inspect.Parameter) -> Any:
    """Return a right value of an argument."""
    given = NEEDED.get(name, {}).get(parameter.name, kind_of(name, parameter).right)
    return given(world) if callable(given) and not isinstance(given, type) else given


def by_position_of(parameters: Mapping[str, inspect.Parameter]) -> set[Any]:
    """Return the kinds of parameters that are given by position: all that can be, where there is an `*`."""
    star = inspect.Parameter.VAR_POSITIONAL
    both = {inspect.Parameter.POSITIONAL_OR_KEYWORD} if star in {each.kind for each in parameters.values()} else set()
    return {star, inspect.Parameter.POSITIONAL_ONLY, *both}


def tries(world: World, name: str) -> Iterator[tuple[str, Any, tuple[Any, ...], dict[str, Any]]]:
    """Yield calls with one wrong argument: its name, the value, and what the call is given."""
    for wrong in ARGUMENTS[name].values():
        if (settings := settings_of(wrong)) is not None:
            yield from settings_tried(world, name, settings)
            continue
        for each in kind_of(name, wrong).wrong:
            value = each.made(world) if isinstance(each, OfWorld) else each
            if FINE.get((name.removeprefix("aio."), wrong.name), lambda _: False)(value):
                continue
            if value is None and wrong.default is None:
                continue
            yield wrong.name, value, *given(world, name, {wrong.name: value})


def given(world: World, name: str, chosen: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return what a call is given, by position and by name: these arguments, and right ones for others that it needs."""
    needed = NEEDED.get(name, {})
    by_position = by_position_of(ARGUMENTS[name])
    positional: list[Any] = []
    named: dict[str, Any] = {}
    for each in ARGUMENTS[name].values():
        if each.kind is each.VAR_KEYWORD:
            named |= needed[each.name](world) if each.name in needed else {}
            continue
        required = each.default is each.empty and each.kind is not each.VAR_POSITIONAL
        if not required and each.name not in {*chosen, *needed}:
            continue
        value = chosen[each.name] if each.name in chosen else right(world, name, each)
        if each.kind in by_position:
            positional.append(value)
        else:
            named[each.name] = value
    return tuple(positional), named


SETTINGS: Final[dict[str, list[Any]]] = {
    "number": [*NUMBERS, b"1", [], {}, NOTHING, True, 1j, -2, "many", 1.5, "9" * 5_000, Broken()],
    "text": [5, 1.5, True, b"name", [], {}, NOTHING, "a\0b", "a\ud800", "", Broken()],
    "word": [5.5, [], {}, NOTHING, "no such word", b"all", Broken()],
    "flag": ["maybe", 5, 1.5, [], NOTHING, None, b"1", Broken()],
}


def settings_tried(world: World, name: str, settings: type) -> Iterator[tuple[str, Any, tuple[Any, ...], dict[str, Any]]]:
    """Yield calls with one wrong setting each."""
    parameters = ARGUMENTS[name]
    topics = {each.name: world.topic for each in parameters.values() if each.kind is each.VAR_POSITIONAL}
    hints = typing.get_type_hints(settings)
    for setting in hints:
        if setting in parameters:
            continue
        if setting in WORKERS:
            by_name = inspect.Parameter(setting, inspect.Parameter.KEYWORD_ONLY, annotation=hints[setting])
            values = kind_of(name, by_name).wrong
        elif setting.endswith(("_ms", "_bytes")) or hints[setting] is int:
            values = SETTINGS["number"]
        elif hints[setting] is bool:
            values = SETTINGS["flag"]
        elif typing.get_origin(hints[setting]) is typing.Literal or setting == "isolation":
            values = SETTINGS["word"]
        else:
            values = SETTINGS["text"]
        group = {"group": world.topic} if "group" in hints else {}
        for value in values:
            positional, named = given(world, name, topics)
            yield setting, value, positional, {**named, **group, setting: value}


def outcome(call: Callable[[], Any]) -> BaseException | None:
    """Call, enter what is a block, and begin what is an iteration. Return what was raised."""
    try:
        found = call()
        if isinstance(found, Iterator):
            next(found, None)
        elif hasattr(found, "__enter__") and not isinstance(found, msgtx.Producer | msgtx.Consumer | msgtx.ShareConsumer):
            with found:
                pass
        elif hasattr(found, "close"):
            found.close()
        elif hasattr(found, "exception"):
            return found.exception(SECONDS)
    except Exception as error:  # noqa: BLE001 - it is looked at
        return error
    return None


async def outcome_in_loop(call: Callable[[], Any]) -> BaseException | None:
    """Call in an event loop; await, or enter what is a block. Return what was raised."""
    try:
        found = call()
        if isinstance(found, Awaitable):
            found = await asyncio.wait_for(found, SECONDS)
        if isinstance(found, aio.Consumer):
            async with found:
                pass
        elif isinstance(found, aio.Producer | aio.ShareConsumer):
            await found.close()
        elif isinstance(found, aio.Delivery):
            await found
        elif hasattr(found, "__aenter__"):
            async with found:
                pass
    except Exception as error:  # noqa: BLE001 - it is looked at
        return error
    return None


def complaint(name: str, argument: str, value: object, error: BaseException | None) -> str | None:
    """Return what is wrong with the outcome of a call with a wrong argument."""
    shown = arguments.shown(value)
    if error is None:
        return f"{name}({argument}={shown}) is taken"
    fine = isinstance(error, errors.MsgtxError) and not error.retriable and not error.fatal
    if fine:
        return None
    return f"{name}({argument}={shown}) raises {type(error).__name__}: {error}"[:250]


def assert_nothing_of(complaints: list[str | None]) -> None:
    found = [each for each in complaints if each is not None]
    if found:
        pytest.fail("\n".join(["", *found]), pytrace=False)


@pytest.mark.parametrize("name", [name for name in CALLS if ARGUMENTS[name]])
def test_a_wrong_argument_is_refused_and_harms_nobody(world: World, name: str) -> None:
    owner, call = CALLS[name]
    before = world.witness.send(world.topic, b"before", partition=0)
    complaints: list[str | None] = []
    told: dict[str, set[str]] = {}
    in_loop = getattr(owner, "__module__", getattr(owner, "__name__", "")) == "msgtx.aio" or owner is aio

    async def all_in_loop() -> None:
        async with made_in_loop(world, owner, call.__name__) as (each, works):
            bound = functools.partial(call, each) if each is not None else call
            facts = world.facts()
            for argument, value, positional, named in tries(world, name):
                error = await outcome_in_loop(lambda: bound(*positional, **named))  # noqa: B023 - at once
                told.setdefault(argument, set()).add(str(error))
                complaints.append(complaint(name, argument, value, error))
            assert_nothing_of(complaints)
            assert [each for each in world.facts() if each not in facts] == [], "something has changed"
            await works()

    with contextlib.ExitStack() as block, ThreadPoolExecutor(1) as thread:
        if in_loop:
            asyncio.run(asyncio.wait_for(all_in_loop(), 5 * SECONDS))
        else:
            each, works = block.enter_context(made(world, owner, call.__name__))
            bound = functools.partial(call, each) if each is not None else call
            facts = world.facts()
            for argument, value, positional, named in tries(world, name):
                error = thread.submit(outcome, lambda: bound(*positional, **named)).result(SECONDS)  # noqa: B023
                told.setdefault(argument, set()).add(str(error))
                complaints.append(complaint(name, argument, value, error))
            assert_nothing_of(complaints)
            assert [each for each in world.facts() if each not in facts] == [], "something has changed"
            works()
    assert len(told) == 1 or len(set.union(*told.values())) > 1, "another argument, which is wrong too, is always refused"
    world.witness.flush(SECONDS)
    assert before.result(0).offset >= 0
