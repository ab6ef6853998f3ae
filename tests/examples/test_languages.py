"""The workers of examples/languages: no sale is booked or labelled twice or never, whatever is killed (I10, I17)."""

import os
import shutil
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import sqlalchemy

import msgtx
from msgtx.store.shares.shares import configure_share_group
from msgtx.store.topics.topics import create_topic
from tests.databases import Connection, wait_until
from tests.store.steps import TABLES

pytestmark = pytest.mark.long

ROOT = Path(msgtx.__file__).resolve().parent.parent
SOURCES = ROOT / "examples" / "languages"
JARS = (Path("/usr/share/java/postgresql.jar"),)
SALES = 100
SECONDS = 120.0  # of a program: the machine may be busy
Program = Callable[[str], Sequence[str]]


def need(*commands: str) -> None:
    """Skip, and say which program is missing."""
    missing = [command for command in commands if shutil.which(command) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")


def made(command: Sequence[str], folder: Path) -> None:
    """Run what fetches or compiles a program's modules; skip, and say why, where they cannot be had."""
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=600, check=False)
    if done.returncode:
        pytest.skip(f"{' '.join(command)}: {done.stderr.strip()[-500:]}")


def in_node(folder: Path) -> Program:
    need("node", "npm")
    made(["npm", "install", "--no-audit", "--no-fund"], folder)
    return lambda what: ["node", "shop.mjs", what, str(SALES)]


def in_go(folder: Path) -> Program:
    need("go")
    made(["go", "build", "-o", "shop", "."], folder)
    return lambda what: ["./shop", what, str(SALES)]


def in_java(folder: Path) -> Program:
    need("java", "javac")
    jars = [path for path in (Path(os.environ.get("JDBC_JAR", "")), *JARS) if path.is_file()]
    if not jars:
        pytest.skip(f"no JDBC driver: neither JDBC_JAR nor {JARS[0]} is a file")
    made(["javac", "Shop.java"], folder)
    return lambda what: ["java", "-cp", f"{jars[0]}:.", "Shop", what, str(SALES)]


def in_psql(folder: Path) -> Program:
    need("psql")
    psql = 'psql -qAtX -v ON_ERROR_STOP=1 "$DATABASE_URL"'
    loop = f"while {psql} -f $0.sql > more.$0.$$ && grep -q t more.$0.$$; do :; done"
    return lambda what: ["sh", "-c", f"{psql} -f publish.sql" if what == "publish" else loop, what]


LANGUAGES: Mapping[str, Callable[[Path], Program]] = {"node": in_node, "go": in_go, "java": in_java, "psql": in_psql}


class Shop:
    """The programs of a language, and the tables of the shop."""

    def __init__(self, connection: Connection, folder: Path, url: str, program: Program) -> None:
        self.connection = connection
        self.folder = folder
        self.log = folder / "log"
        self.program = program
        parts = sqlalchemy.make_url(url)
        plain = parts.set(drivername="postgresql", query={"sslmode": "disable"})
        jdbc = (
            f"jdbc:postgresql://{parts.host}:{parts.port}/{parts.database}?user={parts.username}&password={parts.password}"
        )
        self.environment = {
            **os.environ,
            "DATABASE_URL": plain.render_as_string(hide_password=False),
            "JDBC_URL": f"{jdbc}&sslmode=disable",
        }
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, what: str) -> subprocess.Popen[bytes]:
        """Start a program in a process group of its own."""
        with self.log.open("ab") as log:
            begun = subprocess.Popen(
                self.program(what), cwd=self.folder, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )
        self.running.append(begun)
        return begun

    def kill(self, program: subprocess.Popen[bytes]) -> None:
        """Kill -9, with its children."""
        os.killpg(program.pid, signal.SIGKILL)
        program.wait(SECONDS)

    def succeeds(self, program: subprocess.Popen[bytes]) -> bool:
        """Wait for the end of a program."""
        return program.wait(SECONDS) == 0

    def run(self, what: str) -> None:
        """Run a program to its end."""
        assert self.succeeds(self.start(what)), self.log.read_text(encoding="utf-8")

    def count(self, table: str) -> int:
        (rows,) = self.connection.execute(f"select count(*) from {table}").fetchone() or (0,)
        return int(rows)


@pytest.fixture(params=LANGUAGES)
def shop(request: pytest.FixtureRequest, connection: Connection, database_url: str, tmp_path: Path) -> Iterator[Shop]:
    folder = Path(shutil.copytree(SOURCES / request.param, tmp_path / "shop"))
    found = Shop(connection, folder, database_url, LANGUAGES[request.param](folder))
    for statement in (SOURCES / "tables.sql").read_text(encoding="utf-8").split(";\n"):
        connection.execute(statement)
    connection.execute(f"truncate {', '.join(f'msgtx.{table}' for table in TABLES)} cascade")
    create_topic(connection, "sales", 3, {"retention_ms": -1})
    configure_share_group(connection, "labels", {"auto_offset_reset": "earliest", "record_lock_duration_ms": 1_000})
    yield found
    for each in found.running:
        if each.poll() is None:
            found.kill(each)
    connection.execute("drop table shop_sale, shop_booked, shop_label")


def test_a_worker_in_any_language_loses_and_doubles_nothing(shop: Shop) -> None:
    """One of two is killed in the middle."""
    shop.run("publish")
    assert shop.count("shop_sale") == SALES
    victim, other = shop.start("take"), shop.start("take")
    wait_until(lambda: shop.count("shop_booked") > 0)
    shop.kill(victim)
    assert shop.succeeds(other), shop.log.read_text(encoding="utf-8")
    shop.run("take")
    assert shop.connection.execute("select sale_id, cents from shop_booked order by 1").fetchall() == [
        (number, number * 5) for number in range(1, SALES + 1)
    ]
    victim = shop.start("receive")
    wait_until(lambda: shop.count("shop_label") > 0)
    shop.kill(victim)
    wait_until(
        lambda: shop.start("receive").wait(SECONDS) == 0
    )  # one whose lock has expired meanwhile ends, and begins again
    shop.run("receive")
    assert shop.connection.execute("select sale_id from shop_label order by 1").fetchall() == [
        (number,) for number in range(1, SALES + 1)
    ]
