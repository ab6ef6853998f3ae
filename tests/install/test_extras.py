"""Each extra in a new environment: pip reads what the wheel says, and the extra does one thing that it is for."""

import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Final

import pytest

from tests.artifacts import ROOT, build
from tests.databases import Server
from tests.install.wheelhouse import installed, pip, repack

BEGIN: Final = """
import msgtx
client = msgtx.connect(create=True)
client.topics.create("t", if_not_exists=True)
"""
# What a program does that has an extra; without a name: what needs none.
PROGRAMS: Final = {
    "": f"""{BEGIN}
with client.producer() as producer:
    producer.send("t", b"1")
with client.consumer("t", auto_offset_reset="earliest") as consumer:
    assert [record.value for record in consumer.poll(timeout=60.0)] == [b"1"]
""",
    "embedded": """
import sys
from pathlib import Path
from msgtx.database.embedded import binaries
found = binaries.choose(Path("nowhere"), binaries.Account())  # it asks the programs for their version
assert Path(sys.prefix).resolve() in found.folder.parents, found
""",
    "async": f"""{BEGIN}
import asyncio
from sqlalchemy.ext.asyncio import AsyncSession
from msgtx import aio

async def main():
    async with await aio.connect() as client:
        engine = client.async_engine()
        async with AsyncSession(engine) as session:
            await aio.publish(session, "t", b"1")
            await session.commit()
        await engine.dispose()

asyncio.run(main())
assert client.admin.partitions.progress("t")
""",
    "otel": f"""{BEGIN}
from msgtx import otel
otel.instrument(client)
with client.producer() as producer:
    assert producer.send("t", b"1").result(60.0).offset >= 0
""",
    "django": f"""{BEGIN}
import os
from urllib.parse import urlsplit
import django
from django.conf import settings

url = urlsplit(os.environ["MSGTX_DATABASE_URL"])
database = dict(ENGINE="django.db.backends.postgresql", NAME=url.path[1:], HOST=url.hostname, PORT=url.port)
database |= dict(USER=url.username, PASSWORD=url.password)
settings.configure(INSTALLED_APPS=["msgtx.django"], DATABASES={{"default": database}}, MSGTX={{"database": "default"}})
django.setup()
from msgtx.django import publish
publish("t", b"1")
""",
    "console": f"""{BEGIN}
import asyncio
from msgtx import console

asked = {{"type": "http", "method": "GET", "path": "/sign-in", "raw_path": b"/sign-in", "root_path": ""}}
asked |= {{"query_string": b"", "headers": [(b"host", b"localhost")], "scheme": "http", "http_version": "1.1"}}
asked |= {{"client": ("127.0.0.1", 5), "server": ("127.0.0.1", 80)}}
said = []

async def receive():
    return {{"type": "http.request", "body": b"", "more_body": False}}

async def send(message):
    said.append(message)

asyncio.run(console.app(client)(asked, receive, send))
assert said[0]["status"] == 200, said
import uvicorn
""",
    "kafka": f"""{BEGIN}
try:
    client.mirror("t", name="m", target="kafka://127.0.0.1:1", outage_timeout="100ms").run()
except msgtx.errors.MsgtxError as error:
    assert "127.0.0.1:1" in str(error), error
else:
    raise AssertionError
""",
    "testing": """
import os, sys, pytest
sys.exit(pytest.main(["-p", "no:cacheprovider", "--msgtx-url", os.environ["MSGTX_DATABASE_URL"], "test_kit.py"]))
""",
}
KIT: Final = """
def test_a_topic_is_made(msgtx_client):
    msgtx_client.topics.create("t")
"""
TYPED: Final = """
import msgtx
from msgtx import aio, errors


def read(client: msgtx.Client) -> list[bytes | None]:
    with client.producer() as producer:
        producer.send("t", b"1")
    with client.consumer("t", group="g") as consumer:
        return [record.value for record in consumer.poll(timeout="1s")]


def wrong(client: msgtx.Client) -> None:
    client.topics.create(5)  # type: ignore[arg-type]


async def later() -> aio.Client:
    return await aio.connect()


try:
    read(msgtx.connect())
except errors.MsgtxError as error:
    print(error.exit_code)
"""


def run(command: list[str], *, folder: Path, **environment: str) -> str:
    """Run a program outside of the clone, which must succeed. Return its output."""
    for each in ("PYTHONPATH", "MSGTX_DATABASE_URL"):
        environment.setdefault(each, "")
    done = subprocess.run(
        command,
        cwd=folder,
        env=os.environ | environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-5_000:]
    return done.stdout


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build("wheel", ROOT, tmp_path_factory.mktemp("made") / "wheel")


@pytest.fixture(scope="module")
def resolved(tmp_path_factory: pytest.TempPathFactory, wheel: Path) -> Callable[[str], dict[str, str]]:
    """Let pip say which packages an extra brings, and their versions, without an installation."""
    house, folder = tmp_path_factory.mktemp("metadata"), tmp_path_factory.mktemp("resolved")
    for name in installed():
        repack(name, house, only_metadata=True)

    def resolve(extra: str) -> dict[str, str]:
        report = folder / f"{extra}.json"
        wanted = f"msgtx[{extra}] @ {wheel.as_uri()}"
        arguments = ["--dry-run", "--ignore-installed", "--no-index", "--find-links", house, "--report", report, wanted]
        run(pip("install", *arguments), folder=folder)
        brought = [each["metadata"] for each in json.loads(report.read_text())["install"]]
        return {re.sub(r"[-_.]+", "-", each["name"]).lower(): each["version"] for each in brought if each["name"] != "msgtx"}

    return resolve


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, resolved: Callable[[str], dict[str, str]]) -> Path:
    """A folder with the packages of all extras but Spark's."""
    folder = tmp_path_factory.mktemp("house")
    for name in resolved(",".join(filter(None, PROGRAMS))):
        repack(name, folder)
    return folder


@pytest.fixture
def install(house: Path, wheel: Path, tmp_path: Path) -> Callable[[str], Path]:
    """Install the wheel with an extra in a new environment. Return its Python."""

    def made(extra: str) -> Path:
        run([sys.executable, "-m", "venv", "--without-pip", "new"], folder=tmp_path)
        wanted = f"msgtx[{extra}] @ {wheel.as_uri()}"
        python = tmp_path / "new" / "bin" / "python"
        into = ["--python", python, "install", "--no-compile", "--no-index", "--find-links", house, wanted]
        run(pip(*into), folder=tmp_path)
        return python

    return made


@pytest.mark.parametrize("extra", PROGRAMS)
def test_an_extra_installs_and_does_what_it_is_for(
    extra: str, install: Callable[[str], Path], tmp_path: Path, database_url: str, server: Server
) -> None:
    python = install(extra)
    (tmp_path / "test_kit.py").write_text(KIT)
    url = server.superuser_url if extra == "testing" else database_url  # the kit makes databases
    run([str(python), "-c", PROGRAMS[extra]], folder=tmp_path, MSGTX_DATABASE_URL=url, MSGTX_POSTGRES="wheel")
    assert run([str(python.with_name("msgtx")), "--version"], folder=tmp_path)
    assert run([str(python), "-c", "import msgtx; print(msgtx.__file__)"], folder=tmp_path).startswith(
        str(python.parents[1])
    )


def test_every_extra_for_users_has_a_program() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    elsewhere = {"spark", "all", "examples", "docs", "dev"}  # the next tests; a clone's
    assert set(extras) - elsewhere == set(PROGRAMS) - {""}


@pytest.mark.parametrize("extra", ["spark", "all", "examples"])
def test_an_extra_resolves_to_what_this_environment_has(extra: str, resolved: Callable[[str], dict[str, str]]) -> None:
    """So the tests of Spark and of the examples, which run here, are tests of what pip installs."""
    brought = resolved(extra)
    ours = installed()
    assert brought == {name: ours[name] for name in brought}
    assert ("fastapi" if extra == "examples" else "pyspark") in brought


def test_spark_runs_the_wheel(wheel: Path, tmp_path: Path, database_url: str) -> None:
    site = tmp_path / "site"
    run([sys.executable, "-m", "zipfile", "-e", str(wheel), str(site)], folder=tmp_path)
    program = f"""{BEGIN}
from msgtx.spark_jobs import session
with client.producer() as producer:
    producer.send("t", b"1")
spark = session.session("install", master="local[1]")
assert spark.read.format("msgtx").option("subscribe", "t").load().count() > 0
session.end()
assert {str(site)!r} in msgtx.__file__
"""
    run([sys.executable, "-c", program], folder=tmp_path, PYTHONPATH=str(site), MSGTX_DATABASE_URL=database_url)


def test_types_come_with_the_wheel(install: Callable[[str], Path], tmp_path: Path) -> None:
    python = install("async")
    (tmp_path / "typed.py").write_text(TYPED)
    mypy = [
        sys.executable,
        "-m",
        "mypy",
        "--strict",
        "--python-executable",
        str(python),
        "--cache-dir=/dev/null",
        "typed.py",
    ]
    assert "Success" in run(mypy, folder=tmp_path)  # without types, the comment in `wrong` would be one too many
