"""The address of a database for Java's driver."""

import pytest
import sqlalchemy

from msgtx.database import jdbc
from msgtx.database.pool import Engine
from msgtx.errors import ConfigError
from tests.databases import Connection

SETTINGS = "?ApplicationName=msgtx%20spark&tcpKeepAlive=true&socketTimeout=600&prepareThreshold=-1"


@pytest.mark.parametrize(
    ("parameters", "url"),
    [
        ({"host": "h", "dbname": "d"}, "//h:5432/d"),
        ({"host": "h", "port": "6000", "user": "u"}, "//h:6000/u"),
        ({"host": "a,b", "port": "1,2", "dbname": "d"}, "//a:1,b:2/d"),
        ({"host": "a,b", "port": "7", "dbname": "d"}, "//a:7,b:7/d"),
        ({"hostaddr": "::1", "dbname": "d/ä"}, "//[::1]:5432/d%2F%C3%A4"),
    ],
)
def test_hosts_and_database_are_in_the_url(parameters: dict[str, str], url: str) -> None:
    assert jdbc.address(parameters).url == f"jdbc:postgresql:{url}{SETTINGS}"


def test_settings_keep_their_meaning() -> None:
    address = jdbc.address(
        {
            "host": "a,b", "dbname": "d", "sslmode": "verify-full", "sslrootcert": "/ca.pem", "options": "-c geqo=off",
            "target_session_attrs": "prefer-standby", "load_balance_hosts": "random", "connect_timeout": "3",
        }
    )  # fmt: skip
    assert address.url.removeprefix(f"jdbc:postgresql://a:5432,b:5432/d{SETTINGS}&") == (
        "sslmode=verify-full&sslrootcert=%2Fca.pem&connectTimeout=3&options=-c%20geqo%3Doff"
        "&targetServerType=preferSecondary&loadBalanceHosts=true"
    )


def test_who_connects_is_no_part_of_the_url_nor_of_any_text() -> None:
    address = jdbc.address({"host": "h", "user": "somebody", "password": "hidden", "sslpassword": "hidden, too"})
    assert {name: address.properties[name] for name in ("user", "password", "sslpassword")} == {
        "user": "somebody", "password": "hidden", "sslpassword": "hidden, too",
    }  # fmt: skip
    assert "hidden" not in repr(address)


@pytest.mark.parametrize("host", ["/var/run/postgresql", "@abstract", "h,/tmp", ""])
def test_a_unix_socket_is_refused(host: str) -> None:
    with pytest.raises(ConfigError, match="name a host in the URL"):
        jdbc.address({"host": host, "dbname": "d"})


def test_the_address_is_the_one_that_libpq_has_found(engine: Engine, database_url: str) -> None:
    url = sqlalchemy.make_url(database_url)
    with engine.connection() as connection:
        address = jdbc.address_of(connection)
    assert address.url.startswith(f"jdbc:postgresql://{url.host}:{url.port}/{url.database}?")
    assert (address.properties["user"], address.properties["password"]) == (url.username, url.password)


def test_rows_are_fetched_from_ranges_near_and_far(connection: Connection) -> None:
    """A list of Python numbers would be sent with the type of its first one."""
    assert jdbc.fetch_rows(connection, [(1, 0), (2, 34_899), (40_000, 1 << 40)]) == jdbc.MOST_ROWS


def test_all_hosts_of_a_url_are_handed_on(database_url: str) -> None:
    """The connection itself knows only the host that answered."""
    url = sqlalchemy.make_url(database_url)
    several = url.set(host=None, port=None, query={"host": f"127.0.0.1,{url.host}", "port": f"1,{url.port}"})
    with Engine(several.render_as_string(hide_password=False), pool_size=1) as engine, engine.connection() as connection:
        address = jdbc.address_of(connection, engine.parameters)
    assert address.url.startswith(f"jdbc:postgresql://127.0.0.1:1,{url.host}:{url.port}/{url.database}?")
