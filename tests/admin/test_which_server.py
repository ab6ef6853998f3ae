"""With `read_url`: which server answers each call that reads. The page of standbys names those that the standby answers."""

import contextlib
import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Final

import click
import pytest

import msgtx
from msgtx import Consumer, Isolation, Snapshot, TopicPartition, TransactionId, errors
from msgtx.client import Client
from msgtx.database.connection import RawConnection
from msgtx.database.pool import Engine
from msgtx.database.standby import StandbyEngine
from tests.cli.conftest import msgtx as shell  # noqa: F401 - a fixture
from tests.cli.program import Ended
from tests.client.steps import store
from tests.docs.snippets import ROOT
from tests.docs.test_references import code, commands, rows, section
from tests.hooks import Hook
from tests.store.steps import unique

pytestmark = pytest.mark.slow

PAGE: Final = (ROOT / "docs/operations/standbys.md").read_text(encoding="utf-8")
TABLE: Final = {cells[0]: cells[1:] for cells in rows(section(PAGE, "## Which server answers"))}
STANDBY, BOTH = "the standby", "both"
TRANSACTION: Final = TransactionId(1, 0, 1)


def cut_of(client: Client, name: str) -> Snapshot:
    with msgtx.connect(client.secret_url) as other:
        return other.snapshots.get(name)


def polled(client: Client, name: str) -> None:
    with client.consumer(name, group=unique(name), auto_offset_reset="earliest") as consumer:
        assert consumer.poll(30.0)


# A public method that reads, and a call. `name` is that of a topic, and of all else.
READS: Final[Mapping[str, Callable[[Client, str], object]]] = {
    "find": lambda client, name: client.find(name, partition=0, offset=0),
    "find_before": lambda client, name: client.find_before(name, 0),
    "search": lambda client, name: client.search(name),
    "read": lambda client, name: list(client.read(cut_of(client, name))),
    "snapshot": lambda client, name: client.snapshot([name]),
    "transaction_outcome": lambda client, name: client.transaction_outcome(TRANSACTION),
    "snapshots.describe": lambda client, name: client.snapshots.describe(name),
    "snapshots.get": lambda client, name: client.snapshots.get(name),
    "snapshots.list": lambda client, name: client.snapshots.list(),
    "snapshots.ranges": lambda client, name: client.snapshots.ranges([name]),
    "snapshots.take": lambda client, name: client.snapshots.take([name]),
    "topics.describe": lambda client, name: client.topics.describe(name),
    "topics.describe_all": lambda client, name: client.topics.describe_all(),
    "topics.list": lambda client, name: client.topics.list(),
    "admin.activity": lambda client, name: client.admin.activity(),
    "admin.coordinators": lambda client, name: client.admin.coordinators(),
    "admin.database": lambda client, name: client.admin.database(),
    "admin.doctor": lambda client, name: client.admin.doctor(),
    "admin.find_coordinator": lambda client, name: client.admin.find_coordinator(name),
    "admin.verify": lambda client, name: client.admin.verify([name]),
    "admin.groups.describe": lambda client, name: client.admin.groups.describe(name),
    "admin.groups.lags": lambda client, name: client.admin.groups.lags(),
    "admin.groups.list": lambda client, name: client.admin.groups.list(),
    "admin.groups.members": lambda client, name: client.admin.groups.members(name),
    "admin.groups.offsets": lambda client, name: client.admin.groups.offsets(name),
    "admin.mirrors.describe": lambda client, name: client.admin.mirrors.describe(name),
    "admin.mirrors.list": lambda client, name: client.admin.mirrors.list(),
    "admin.partitions.describe": lambda client, name: client.admin.partitions.describe(TopicPartition(name, 0)),
    "admin.partitions.describe_all": lambda client, name: client.admin.partitions.describe_all(name),
    "admin.partitions.offsets": lambda client, name: client.admin.partitions.offsets([name], -1, Isolation.READ_COMMITTED),
    "admin.partitions.progress": lambda client, name: client.admin.partitions.progress(name),
    "admin.partitions.rows": lambda client, name: client.admin.partitions.rows(TopicPartition(name, 0)),
    "admin.producers.describe": lambda client, name: client.admin.producers.describe(TopicPartition(name, 0)),
    "admin.producers.history": lambda client, name: client.admin.producers.history(name),
    "admin.shares.describe": lambda client, name: client.admin.shares.describe(f"{name}shares"),
    "admin.shares.list": lambda client, name: client.admin.shares.list(),
    "admin.spark.list": lambda client, name: client.admin.spark.list(),
    "admin.transactions.blocking": lambda client, name: client.admin.transactions.blocking(),
    "admin.transactions.describe": lambda client, name: client.admin.transactions.describe(name),
    "admin.transactions.find_hanging": lambda client, name: client.admin.transactions.find_hanging(),
    "admin.transactions.list": lambda client, name: client.admin.transactions.list(),
    "admin.transactions.outcome": lambda client, name: client.admin.transactions.outcome(TRANSACTION),
    "admin.transactions.page": lambda client, name: client.admin.transactions.page(),
    "admin.transactions.prepared": lambda client, name: client.admin.transactions.prepared(),
    "admin.transactions.show": lambda client, name: client.admin.transactions.show(TRANSACTION),
    "Consumer.beginning_offsets": lambda client, name: client.consumer(name).beginning_offsets([TopicPartition(name, 0)]),
    "Consumer.batch": polled,
    "Consumer.committed": lambda client, name: client.consumer(name, group=name).committed([TopicPartition(name, 0)]),
    "Consumer.end_offsets": lambda client, name: client.consumer(name).end_offsets([TopicPartition(name, 0)]),
    "Consumer.lag": lambda client, name: client.consumer(name).lag(),
    "Consumer.offset_lag": lambda client, name: client.consumer(name).offset_lag(),
    "Consumer.offsets_for_times": lambda client, name: client.consumer(name).offsets_for_times({TopicPartition(name, 0): 0}),
    "Consumer.poll": polled,
}  # fmt: skip
OTHERS: Final = {
    *("producer", "consumer", "share_consumer", "process", "process_into", "mirror", "engine", "async_engine", "observe"),
    *("complete", "sweep", "close", "closed", "url", "secret_url"),
    *("snapshots.delete", "snapshots.save", "topics.alter", "topics.create", "topics.delete"),
    *("admin.groups.delete", "admin.groups.delete_offsets", "admin.groups.reset", "admin.mirrors.reset"),
    *("admin.shares.configure", "admin.shares.delete", "admin.shares.redrive", "admin.shares.reset_offsets"),
    *("admin.partitions.delete_records", "admin.transactions.abort", "admin.transactions.fence"),
    *("Consumer.begin", "Consumer.settle", "Consumer.assign", "Consumer.assignment", "Consumer.close", "Consumer.closed"),
    *("Consumer.commit", "Consumer.group_metadata", "Consumer.pause", "Consumer.position", "Consumer.resume"),
    *("Consumer.rewind", "Consumer.seek", "Consumer.seek_to_beginning", "Consumer.seek_to_end", "Consumer.seek_to_time"),
    *("Consumer.stop", "Consumer.subscribe"),
}
COMMANDS: Final = {
    *("activity", "consume NAME --from-beginning --no-follow --max-messages 1", "coordinator find NAME", "coordinator list"),
    *("db check", "db current", "db grants", "db status", "doctor", "find NAME", "groups describe NAME", "groups lag"),
    *("groups list", "groups members NAME", "metrics", "mirror describe NAME", "mirror list", "offsets list NAME"),
    *("offsets ranges NAME", "offsets snapshot NAME", "offsets snapshots", "search NAME", "shares describe NAMEshares"),
    *("shares list", "spark status", "topics describe NAME", "topics list", "topics progress NAME", "topics rows NAME"),
    *("transactions blocking", "transactions describe NAME", "transactions describe-producers NAME"),
    *("transactions find-hanging", "transactions history NAME", "transactions list", "transactions outcome 1.0.1"),
    *("transactions prepared", "transactions show 1.0.1", "verify NAME"),
}
OTHER_COMMANDS: Final = {
    *("console", "coordinator run", "db after-failover", "db grant", "db init", "db psql", "db revoke", "db settings"),
    *(
        "db start",
        "db stop",
        "db upgrade",
        "db url",
        "demo",
        "groups delete",
        "groups delete-offsets",
        "groups reset-offsets",
    ),
    *("mirror reset", "mirror run", "offsets delete-snapshot", "perf consume", "perf e2e", "perf produce", "process"),
    *("produce", "shares configure", "shares delete", "shares redrive", "shares reset-offsets", "spark audit"),
    *("spark expire", "spark export", "spark import", "spark pipeline", "spark report", "sweep", "topics alter"),
    *("topics create", "topics delete", "topics delete-records", "transactions abort", "transactions complete"),
    *("transactions fence",),
}


PATHS: Final = {" ".join(path) for path, found in commands() if not isinstance(found, click.Group)}


def path_of(command: str) -> str:
    """Return the name of a command without its arguments."""
    words = command.split()
    (found,) = PATHS & {" ".join(words[:count]) for count in range(1, len(words) + 1)}
    return found


@pytest.fixture
def client(database_url: str) -> Iterator[Client]:
    """A client whose standby is its primary, which shows everything."""
    with msgtx.connect(database_url, read_url=database_url) as client:
        yield client


@pytest.fixture
def name(client: Client) -> str:
    """The name of a topic with a record, a group, a saved snapshot, and, with `shares` behind it, of a share group."""
    made = unique("name") + "."  # no place: a topic and a partition
    client.topics.create(made)
    store(client, made, b"a record")
    with client.consumer(made, group=made, auto_offset_reset="latest") as consumer:
        consumer.commit({TopicPartition(made, 0): 0})
    client.snapshots.save(made, client.snapshot([made]))
    client.admin.shares.configure(f"{made}shares", {"auto_offset_reset": "earliest"})
    return made


def public(of: object, prefix: str = "") -> Iterator[str]:
    """Yield the names of the public methods of a client, and of what it holds."""
    for name, member in inspect.getmembers(of):
        if name.startswith("_") or name in ("runtime", "embedded"):
            continue
        if type(member).__name__.endswith(("Admin", "Snapshots")):
            yield from public(member, f"{prefix}{name}.")
        else:
            yield prefix + name


def test_every_public_method_is_known_here(client: Client) -> None:
    """A new one belongs to `READS` or to `OTHERS`."""
    known = {*public(client), *(f"Consumer.{name}" for name in dir(Consumer) if not name.startswith("_"))}
    assert known == READS.keys() | OTHERS


def test_every_command_is_known_here() -> None:
    assert {*map(path_of, COMMANDS)} | OTHER_COMMANDS == PATHS


def test_the_page_names_the_calls_that_the_standby_answers(client: Client, name: str) -> None:
    assert client.runtime.engine.standby is not None
    primary, standby = Hook(client.runtime.engine), Hook(client.runtime.engine.standby)
    found: dict[str, set[str]] = {STANDBY: set(), BOTH: set()}
    for method, read in READS.items():
        before = primary.seen.total(), standby.seen.total()
        with contextlib.suppress(errors.UsageError, errors.CoordinatorNotAvailable, errors.InvalidProducerIdMapping):
            read(client, name)
        asks = primary.seen.total() > before[0], standby.seen.total() > before[1]
        assert any(asks), method
        if asks[1]:
            found[BOTH if asks[0] else STANDBY].add(method)
    assert {where: {*code(TABLE[where][0])} for where in found} == found


def test_the_page_names_the_commands_that_ask_the_standby(
    shell: Callable[..., Ended],  # noqa: F811
    database_url: str,
    name: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[Engine] = []

    def connected(engine: Engine, connect: Callable[[Engine], RawConnection] = Engine.dedicated) -> RawConnection:
        asked.append(engine)
        return connect(engine)

    monkeypatch.setattr(Engine, "dedicated", connected)
    monkeypatch.setenv("MSGTX_READ_URL", database_url)
    found = set()
    for command in COMMANDS:
        asked.clear()
        ended = shell(*command.replace("NAME", name).split())
        assert asked, ended.err
        if any(isinstance(engine, StandbyEngine) for engine in asked):
            found.add(f"msgtx {path_of(command)}")
    assert found == {*code(TABLE[STANDBY][1]), *code(TABLE[BOTH][1])}
