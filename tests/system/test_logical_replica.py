"""A logical replica takes over, as docs/operations/upgrade.md says step by step (I1, I3, I5, I6, I17)."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import psycopg
import pytest
import sqlalchemy

import msgtx
from msgtx.database import embedded
from msgtx.database.embedded import binaries
from msgtx.store.operator.installation import sequences_behind
from tests.cli.program import Ended
from tests.client.steps import SECONDS, values
from tests.databases import Server, connect, scratch, use_server, wait_until

pytestmark = pytest.mark.long

COPIED = "select count(*) from pg_subscription_rel where srsubstate <> 'r'"
REPLAYED = "select bool_and(replay_lsn >= %s::pg_lsn) from pg_stat_replication where application_name = 'moving'"
Shell = Callable[..., Ended]


@dataclass(frozen=True)
class Move:
    """A database, and its logical replica on a server of its own."""

    old: Server
    new: Server
    url: str

    @property
    def name(self) -> str:
        return sqlalchemy.make_url(self.url).database or ""

    @property
    def moved(self) -> str:
        """The replica's address."""
        return self.new.url(self.name)

    def replicate(self) -> None:
        """Step 1."""
        address = sqlalchemy.make_url(self.old.superuser_url)
        source = f"host={address.host} port={address.port} user={address.username} password={address.password}"
        with self.old.administrator(self.name) as old, self.new.administrator(self.name) as new:
            old.execute("create publication p for tables in schema msgtx")
            new.execute(f"create subscription moving connection '{source} dbname={self.name}' publication p")
            wait_until(lambda: new.execute(COPIED).fetchone() == (0,), "every table is copied")

    def receive_all(self) -> None:
        """The end of step 2, and the beginning of step 3."""
        with self.old.administrator(self.name) as old, self.new.administrator(self.name) as new:
            written = old.execute("select pg_current_wal_lsn()").fetchone()
            wait_until(lambda: old.execute(REPLAYED, written).fetchone() == (True,), "the replica has received everything")
            new.execute("drop subscription moving")

    def behind(self) -> list[str]:
        with connect(self.moved) as owner:
            return [each.name for each in sequences_behind(owner)]


@pytest.fixture
def move() -> Iterator[Move]:
    folder = scratch("msgtx-logical-")
    try:
        yield _move(folder)
    finally:
        for home in folder.iterdir():
            embedded.stop(home)
        shutil.rmtree(folder)


def _move(folder: Path) -> Move:
    running = embedded.start(folder / "old")
    old = use_server(embedded.superuser_url(folder / "old"))
    with old.administrator() as administrator:
        administrator.execute("alter system set wal_level = logical")
    assert embedded.stop(folder / "old")
    embedded.start(folder / "old")
    embedded.start(folder / "new")
    new = replace(old, superuser_url=embedded.superuser_url(folder / "new"))
    made = Move(old, new, old.create_database())
    with new.administrator() as administrator:
        administrator.execute(f"create role {new.role} login password '{new.password}'")
        administrator.execute(f"create database {made.name} owner {new.role}")
    data = folder / "new" / "data"
    for program, *arguments in (
        ("pg_dump", "--schema-only", "-Fc", "-f", str(data / "dump"), "-d", made.url),
        ("pg_restore", "--exit-on-error", "-d", made.moved, str(data / "dump")),
    ):
        ended = binaries.account(data).run(running.binaries / program, *arguments, cwd=data)
        assert ended.returncode == 0, ended.stderr
    return made


def work(url: str, word: str) -> set[bytes]:
    """Let producers and a service each store something of their own in `t`. Return what."""
    with (
        msgtx.connect(url) as client,
        client.producer() as plain,
        client.producer(transactional_id="id") as producer,
        psycopg.connect(url) as session,
    ):
        for number in range(3):
            sent = plain.send("t", f"{word} sent {number}".encode(), partition=0).result(SECONDS)
            assert not sent.duplicate
        with producer.transaction():
            for partition in range(2):
                producer.send("t", f"{word} committed {partition}".encode(), partition=partition)
        with contextlib.suppress(ZeroDivisionError), producer.transaction():
            producer.send("t", b"aborted", partition=1)
            producer.flush()
            raise ZeroDivisionError
        msgtx.publish(session, "t", f"{word} published".encode())
    stored = {*(f"sent {number}" for number in range(3)), "committed 0", "committed 1", "published"}
    return {f"{word} {each}".encode() for each in stored}


def read(url: str, count: int) -> tuple[list[bytes | None], list[bytes | None]]:
    """Return this many records that a group gets next, and a share group; each commits them."""
    read: list[bytes | None] = []
    accepted: list[bytes | None] = []
    with (
        msgtx.connect(url) as client,
        client.consumer("t", group="g", auto_offset_reset="earliest", enable_auto_commit=False) as consumer,
        client.share_consumer("t", group="s") as member,
    ):
        while len(read) < count:
            read += values(consumer.poll(SECONDS, max_records=count - len(read)))
        consumer.commit()
        while len(accepted) < count:
            accepted += values(member.poll(SECONDS, max_records=count - len(accepted)))
            member.commit()
    return read, accepted


@pytest.mark.parametrize("is_noted", [True, False], ids=["noted", "forgotten"])
def test_everything_goes_on_on_a_logical_replica(move: Move, shell: Shell, is_noted: bool) -> None:
    """Behind are its sequences. `note_place` makes them skip ahead, or the first client that connects."""
    with msgtx.connect(move.url) as client:
        client.topics.create("t", partitions=2)
        client.admin.shares.configure("s", {"auto_offset_reset": "earliest"})
    move.replicate()
    stored = work(move.url, "before")
    parts = [read(move.url, 4)]
    with msgtx.connect(move.url) as client:
        cut = client.snapshot(["t"])
    move.receive_all()
    assert {"producer_id_sequence", "topic_topic_id_seq"} <= {*move.behind()}
    if is_noted:
        with connect(move.moved) as owner:
            owner.execute("select msgtx.note_place()")
    with msgtx.connect(move.moved) as client:
        assert move.behind() == []
        assert {*values(client.read(cut))} == stored
    stored |= work(move.moved, "after")
    parts.append(read(move.moved, len(stored) - 4))
    for found in zip(*parts, strict=True):
        assert sorted(filter(None, [*found[0], *found[1]])) == sorted(stored)
    with msgtx.connect(move.moved) as client:
        client.topics.create("another")
        assert [each for each in client.admin.doctor() if each.subject.startswith("sequence ")] == []
    for arguments in (("db", "check"), ("verify",)):
        assert shell(move.moved, *arguments).code == 0
