"""PostgreSQL itself is replaced by a newer one: with pg_upgrade, or with a dump (operations/upgrade)."""

import contextlib
import importlib.util
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import sqlalchemy

import msgtx
from msgtx import Level
from msgtx.database import embedded
from msgtx.database.embedded import binaries
from msgtx.store.groups.groups import NO_OFFSETS
from msgtx.store.transactions.seal import seal, take_seat
from tests.cli.program import Ended
from tests.databases import Server, connect, scratch, use_server
from tests.store.steps import Writer, unique

pytestmark = pytest.mark.long

Shell = Callable[..., Ended]


@dataclass(frozen=True)
class Home:
    """The folder of an embedded server, and who runs it with which programs."""

    path: Path
    user: binaries.Account
    programs: Path

    def run(self, program: str, *arguments: str | Path) -> None:
        ended = self.user.run(self.programs / program, *arguments, cwd=self.path)
        assert ended.returncode == 0, ended.stdout + ended.stderr


@pytest.fixture
def folder() -> Iterator[Path]:
    found = scratch("msgtx-new-postgresql-")
    try:
        yield found
    finally:
        for home in found.iterdir():
            embedded.stop(home)
        shutil.rmtree(found)


@pytest.fixture
def versions() -> list[str]:
    """The versions that the extra `embedded` has, ascending, by their folders: each is built with the same compression."""
    spec = importlib.util.find_spec(binaries.WHEEL)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    found = sorted(Path(spec.submodule_search_locations[0]).glob("pginstall*"))
    assert len(found) > 1
    return [str(each) for each in found]


@pytest.fixture
def old(folder: Path, versions: list[str], monkeypatch: pytest.MonkeyPatch) -> Server:
    monkeypatch.setenv("MSGTX_POSTGRES", versions[0])
    embedded.start(folder / "old")
    return use_server(embedded.superuser_url(folder / "old"))


@pytest.fixture
def new(folder: Path, old: Server, versions: list[str], monkeypatch: pytest.MonkeyPatch) -> Home:
    monkeypatch.setenv("MSGTX_POSTGRES", versions[-1])
    user = binaries.account(folder / "old" / "data")
    return Home(folder / "new", user, binaries.choose(folder / "new" / "data", user).folder)


def upgrade(old: Server, url: str, new: Home) -> str:
    """Turn the old server's data into the new one's with pg_upgrade. Returns the database's new address."""
    before = new.path.parent / "old"
    running = embedded.status(before)
    assert running is not None
    assert embedded.stop(before)
    for made in (new.path, new.path / "log"):
        made.mkdir(mode=0o700)
        new.user.own(made)
    data = new.path / "data"
    new.run("initdb", "-D", data, "-U", embedded.SUPERUSER, "--locale=C", "--encoding=UTF8", "--no-data-checksums")
    rules = before / "data" / "pg_hba.conf"
    kept = rules.read_text(encoding="utf-8")
    rules.write_text("local all all trust\n", encoding="utf-8")
    new.run(
        "pg_upgrade", "-b", running.binaries, "-B", new.programs, "-d", before / "data", "-D", data, "-U", embedded.SUPERUSER
    )
    (data / "pg_hba.conf").write_text(kept, encoding="utf-8")
    with (data / "postgresql.conf").open("a", encoding="utf-8") as settings:
        settings.write("include_if_exists = 'msgtx.conf'\n")
    for name in ("password", "superuser-password"):
        shutil.copy2(before / name, new.path / name)
    started = embedded.start(new.path)
    return sqlalchemy.make_url(url).set(port=started.port).render_as_string(hide_password=False)


def restore(old: Server, url: str, new: Home) -> str:
    """Dump a database and restore it on a new server. Returns its new address."""
    embedded.start(new.path)
    server = replace(old, superuser_url=embedded.superuser_url(new.path))
    name = sqlalchemy.make_url(url).database or ""
    with server.administrator() as administrator:
        administrator.execute(f"create role {server.role} login password '{server.password}'")
        administrator.execute(f"create database {name} owner {server.role}")
    data = new.path / "data"
    owner = replace(new, user=binaries.account(data))
    owner.run("pg_dump", "-Fc", "-f", data / "dump", "-d", url)
    owner.run("pg_restore", "--exit-on-error", "-d", server.url(name), data / "dump")
    return server.url(name)


@pytest.mark.parametrize("move", [upgrade, restore], ids=["pg_upgrade", "pg_dump"])
def test_everything_goes_on_with_a_new_postgresql(
    old: Server, new: Home, shell: Shell, move: Callable[[Server, str, Home], str]
) -> None:
    """I1, I3, I5, I6, I12, I15: also where its numbers of SQL transactions begin anew."""
    url = old.create_database()
    with connect(url) as connection:
        for _ in range(5_000):  # as many SQL transactions as a new server has not had
            connection.execute("select pg_current_xact_id()")
    with msgtx.connect(url) as client, client.producer(transactional_id="writer") as producer:
        client.topics.create("letters", partitions=2)
        with client.producer() as plain:
            for number in range(10):
                plain.send("letters", b"%d" % number, partition=0)
        with producer.transaction():
            producer.send("letters", b"committed", partition=1)
        with contextlib.suppress(ZeroDivisionError), producer.transaction():
            producer.send("letters", b"aborted", partition=1)
            producer.flush()
            raise ZeroDivisionError
        with client.consumer("letters", group="readers", auto_offset_reset="earliest", enable_auto_commit=False) as consumer:
            read = [record.value for record in consumer.poll(10.0, max_records=4)]
            consumer.commit()
        client.admin.shares.configure("workers", {"auto_offset_reset": "earliest"})
        with client.share_consumer("letters", group="workers") as worker:
            done = [record.value for record in worker.poll(10.0, max_records=3)]
            worker.commit()
        cut = client.snapshot(["letters"])
        before = [record.value for record in client.read(cut)]
        assert sorted(filter(None, before)) == [*(b"%d" % number for number in range(10)), b"committed"]
    with connect(url) as connection, connect(url) as session, session.transaction(force_rollback=True):
        (partition,) = connection.execute("select partition_id from msgtx.partition order by 1 limit 1").fetchone() or (0,)
        writer = Writer(connection, unique("sealed"))
        writer.send(partition, b"sealed")
        seat = take_seat(session)
        seal(connection, writer.name, "session", tails=writer.tails, offsets=NO_OFFSETS, timeout_ms=600_000, seat=seat)
        opened = Writer(connection, unique("open"), timeout_ms=1_000)
        opened.send(partition, b"open")

    moved = move(old, url, new)
    with msgtx.connect(moved) as client, client.producer(transactional_id="writer") as producer:
        assert [record.value for record in client.read(cut)] == before
        with producer.transaction():
            producer.send("letters", b"after", partition=0)
        with client.consumer("letters", group="readers", enable_auto_commit=False) as consumer:
            while len(read) < 12:
                read += [record.value for record in consumer.poll(1.0)]
        with client.share_consumer("letters", group="workers") as worker:
            while len(done) < 12:
                done += [record.value for record in worker.poll(1.0)]
        for found in (read, done):
            assert sorted(filter(None, found)) == sorted([*filter(None, before), b"after"])
        assert [each.level for each in client.admin.doctor() if each.subject == "incarnation"] == [Level.PROBLEM]
        with connect(moved) as owner:
            owner.execute("select msgtx.note_place()")
        assert [each for each in client.admin.doctor() if each.subject == "incarnation"] == []
    assert shell(moved, "verify").code == 0
