"""Addresses: every form that libpq takes, and none that shows a password (I16)."""

from collections.abc import Callable
from pathlib import Path
from urllib.parse import quote

import pytest

import msgtx
from msgtx import errors
from msgtx.database import address
from msgtx.database.calls import query
from msgtx.database.pool import Engine
from tests.cli.program import Program
from tests.links import unix_link

FORMS: dict[str, Callable[[dict[str, str]], str]] = {
    "url": lambda at: "postgresql://{user}:{password}@{host}:{port}/{dbname}".format(**at),
    "short scheme": lambda at: "postgres://{user}:{password}@{host}:{port}/{dbname}".format(**at),
    "driver": lambda at: "postgresql+psycopg://{user}:{password}@{host}:{port}/{dbname}".format(**at),
    "several hosts": lambda at: (
        "postgresql://{user}:{password}@127.0.0.1:1,{host}:{port}/{dbname}?target_session_attrs=read-write".format(**at)
    ),
    "hosts as options": lambda at: (
        "postgresql:///{dbname}?host=127.0.0.1,{host}&port=1,{port}&user={user}&password={password}".format(**at)
    ),
    "words": lambda at: "host={host} port={port} dbname={dbname} user={user} password={password}".format(**at),
    "a name": lambda at: "postgresql://{user}:{password}@localhost:{port}/{dbname}?connect_timeout=5".format(**at),
    "address": lambda at: "postgresql://{user}:{password}@nowhere.example:{port}/{dbname}?hostaddr={host}".format(**at),
    "settings": lambda at: (
        "postgresql://{user}:{password}@{host}:{port}/{dbname}?application_name=mine&keepalives_idle=5".format(**at)
    ),
}


@pytest.fixture(scope="module")
def at(database_url: str) -> dict[str, str]:
    return address.parse(database_url)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_every_form_of_libpq_connects_and_is_shown_without_its_password(
    at: dict[str, str], form: Callable[[dict[str, str]], str]
) -> None:
    with msgtx.connect(form(at)) as client:
        assert client.topics.list() == []
        assert at["password"] not in client.url
        assert client.secret_url == form(at)
        shown = address.parse(client.url)
    assert shown.get("password", "***") == "***"
    hidden = {"password"}
    given = address.parse(form(at))
    assert {name: value for name, value in shown.items() if name not in hidden} == {
        name: value for name, value in given.items() if name not in hidden
    }


def test_a_unix_socket_is_named_in_the_place_of_the_host_or_as_an_option(database_url: str, at: dict[str, str]) -> None:
    with unix_link(database_url) as link:
        folder = address.parse(link.url)["host"]
        login = f"{at['user']}:{at['password']}"
        for url in (
            f"postgresql://{login}@{quote(folder, safe='')}/{at['dbname']}",
            f"postgresql://{login}@/{at['dbname']}?host={folder}",
            f"host={folder} dbname={at['dbname']} user={at['user']} password={at['password']}",
        ):
            with msgtx.connect(url) as client:
                assert client.topics.list() == []
                assert at["password"] not in client.url


def test_a_service_is_looked_up(at: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "services").write_text("[orders]\n" + "".join(f"{name}={value}\n" for name, value in at.items()))
    monkeypatch.setenv("PGSERVICEFILE", str(tmp_path / "services"))
    for url in ("postgresql://?service=orders", "service=orders"):
        with Engine(url, pool_size=1) as engine, engine.connection() as connection:
            assert query(connection, "select 1") == [(1,)]


def test_what_the_url_says_counts_before_our_own_settings(at: dict[str, str]) -> None:
    with Engine(FORMS["settings"](at), pool_size=1) as engine, engine.connection() as connection:
        assert query(connection, "show application_name") == [("mine",)]


def test_the_command_line_takes_words_and_hides_the_password(at: dict[str, str]) -> None:
    done = Program(FORMS["words"](at)).run("db", "url", "--url", FORMS["words"](at))
    assert done.code == 0
    assert at["password"].encode() not in done.out
    assert done.out.startswith(b"postgresql://")


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:s3cr3t%20pass@h/d",
        "postgresql://u:s3cr3t@h:1,i:2/d",
        "postgresql://u:s3cr3t@[::1]:5432/d",
        "postgresql://h/d?user=u&password=s3cr3t",
        "postgresql://h/d?user=u&pass%77ord=s3cr3t",
        "postgresql://h/d?password=s3cr3t&sslpassword=s3cr3t",
        "host=h password=s3cr3t",
        r"host=h user=u password='s3cr3t with a \' in it'",
        "host=h user=u password = s3cr3t",
    ],
)
def test_no_form_shows_its_password(url: str) -> None:
    shown = address.public_url(url)
    assert "s3cr3t" not in shown
    assert "***" in shown


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://u:s3cr3t@h:port/d",
        "postgresql://u:s3cr3t%zz@h/d",
        "postgresql://u:s3c/r3t@h/d",
        "postgresql://u:s3c@r3t@h/d",
        "postgresql://u:s3c@r3t@h:1,i:2/d",
        "postgresql://u:s3cr3t@h:1,i:2,j/d?port=1,2",
        "host=h password=half s3cr3t",
        "host=h password='s3cr3t",
        "mysql://u:s3cr3t@h/d",
        "postgresql://u:s3cr3t@h/d?nothing=1",
        "host=h nothing=1 password=s3cr3t",
    ],
)
def test_an_address_that_is_none_is_refused_in_one_line_without_its_password(url: str) -> None:
    with pytest.raises(errors.ConfigError) as raised:
        Engine(url)
    assert "s3cr3t" not in str(raised.value)
    assert "r3t" not in str(raised.value)
    assert "\n" not in str(raised.value)
    assert raised.value.__cause__ is None
    if "nothing" in url:
        assert "'nothing'" in str(raised.value)
    if "@r3t" in url:
        assert "write it as %40" in str(raised.value)


def test_a_socket_without_a_file_has_an_at_before_its_name() -> None:
    assert address.parse("host=@msgtx dbname=d")["host"] == "@msgtx"


@pytest.mark.parametrize(
    ("url", "answered", "turned"),
    [
        ("postgresql://a:1,b:2,c:3/d", ("b", 2), {"host": "b,c,a", "port": "2,3,1"}),
        ("postgresql://a,b/d?port=7", ("b", 7), {"host": "b,a", "port": "7,7"}),
        ("postgresql://a,b/d", ("b", 5432), {"host": "b,a"}),
        ("hostaddr=127.0.0.1,127.0.0.2 dbname=d", ("127.0.0.2", 5432), {"hostaddr": "127.0.0.2,127.0.0.1"}),
        ("host=a,b hostaddr=127.0.0.1,127.0.0.2 dbname=d", ("b", 5432), {"host": "b,a", "hostaddr": "127.0.0.2,127.0.0.1"}),
        ("host=/run/a,/run/b dbname=d", ("/run/b", 5432), {"host": "/run/b,/run/a"}),
        ("postgresql://a,b/d", ("another", 5432), {"host": "a,b"}),
        ("postgresql://a/d", ("a", 5432), {"host": "a"}),
        ("dbname=d", ("/run", 5432), {}),
        ("postgresql://a,b/d?load_balance_hosts=random", ("b", 5432), {"host": "a,b"}),
        ("postgresql://a,b/d?target_session_attrs=any", ("b", 5432), {"host": "a,b"}),
    ],
)
def test_the_next_connection_begins_with_the_host_that_answered_last(
    url: str, answered: tuple[str, int], turned: dict[str, str]
) -> None:
    hosts = address.Hosts({"target_session_attrs": "read-write", **address.parse(url)})
    before = hosts.ordered()
    hosts.answered(*answered)
    assert hosts.ordered() == {**before, **turned}


def test_a_host_that_failed_comes_last_until_another_one_fails() -> None:
    hosts = address.Hosts(address.parse("postgresql://a,b,c/d?target_session_attrs=read-write"))
    for failed, order in (("a", "b,c,a"), ("a", "b,c,a"), ("b", "c,a,b"), ("c", "a,b,c")):
        hosts.failed(failed, 5432)
        assert hosts.ordered()["host"] == order


def test_an_old_primary_that_is_passed_comes_last_whoever_came_first() -> None:
    """Else a host in front of it, which takes no connection, would lead there each time."""
    hosts = address.Hosts(address.parse("postgresql://a,b,c/d?target_session_attrs=read-write"))
    hosts.failed("b", 5432)
    assert hosts.ordered()["host"] == "a,b,c"
    hosts.failed("b", 5432, is_passed=True)
    assert hosts.ordered()["host"] == "c,a,b"
