"""Addresses of databases: every form that libpq takes, checked at once, and shown without a secret.

A URL (`postgresql://user@host:5432,other:5432/database?target_session_attrs=read-write`, also `postgres://`, a Unix socket
as `postgresql:///database?host=/run/postgresql` or with a percent-encoded host, IPv6 in brackets, `?service=name`), or
words and values (`host=… dbname=…`).
"""

import difflib
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final
from urllib.parse import quote, urlencode

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from msgtx.errors import ConfigError

if TYPE_CHECKING:
    import sqlalchemy

FORM: Final = "postgresql://user@host:port/database"
SECRETS: Final = ("password", "sslpassword", "oauth_client_secret")
_DRIVER: Final = re.compile(r"^postgres(?:ql)?\+\w+://")  # SQLAlchemy's way to name a driver
_OTHER: Final = re.compile(r"^([A-Za-z][\w+.-]*)://")
_UNKNOWN: Final = re.compile(r'invalid (?:URI query parameter|connection option):? "(\w+)"')
_MOST_PORT: Final = 65_535


def parse(url: str) -> dict[str, str]:
    """Return libpq's parameters. Raise `ConfigError`, without any text that may be a password."""
    text = _DRIVER.sub("postgresql://", url)
    if (other := _OTHER.match(text)) is not None and other[1] not in {"postgresql", "postgres"}:
        raise ConfigError(f"msgtx needs PostgreSQL, not {other[1]}: use {FORM}", name="url")
    try:
        found = {name: str(value) for name, value in conninfo_to_dict(text).items()}
    except (psycopg.ProgrammingError, UnicodeError) as error:
        raise ConfigError(_refusal(str(error)), name="url") from None  # the cause would show the text
    _check_hosts(found)
    _check_ports(found)
    return found


def _refusal(said: str) -> str:
    unknown = _UNKNOWN.search(said)
    if unknown is None:
        return f"the database URL does not read {FORM}, nor like libpq's host=… dbname=…"
    known = [option.keyword.decode() for option in psycopg.pq.Conninfo.get_defaults()]
    near = difflib.get_close_matches(unknown[1], known, n=1, cutoff=0.0)[0]
    return f"the database URL has an unknown option {unknown[1]!r}; the nearest known one is {near!r} ({FORM}?option=value)"


def _check_hosts(found: dict[str, str]) -> None:
    """Refuse a password with a bare `@`: libpq would look up the text after it as a host, and show it."""
    if any("@" in host.removeprefix("@") for host in found.get("host", "").split(",") if not host.startswith("/")):
        raise ConfigError(
            f"the database URL has an @ in a host: in a user or a password write it as %40 ({FORM})", name="url"
        )


def _check_ports(found: dict[str, str]) -> None:
    """Refuse an address that libpq would refuse with each attempt to connect."""
    ports = found["port"].split(",") if found.get("port") else []
    hosts = (found.get("hostaddr") or found.get("host") or "").split(",")
    if any(port and not (port.isdigit() and 0 < int(port) <= _MOST_PORT) for port in ports):
        raise ConfigError(f"the database URL has a port that is none: {FORM} has numbers from 1 to {_MOST_PORT}", name="url")
    if len(ports) > 1 and len(ports) != len(hosts):
        raise ConfigError(
            f"the database URL has {len(hosts)} hosts and {len(ports)} ports: one for each, or one for all", name="url"
        )


def conninfo(parameters: dict[str, str]) -> str:
    """Return parameters as one text for libpq."""
    return make_conninfo("", **parameters)


class Hosts:
    """The hosts of an address, in the order in which the next connection tries them: first the one that answered last.

    Otherwise each connection would first wait for a host that is silent. For any thread: a race costs such a wait.
    """

    def __init__(self, parameters: Mapping[str, str]) -> None:
        self._parameters = dict(parameters)
        columns = {name: parameters[name].split(",") for name in ("host", "hostaddr", "port") if parameters.get(name)}
        # Without target_session_attrs a standby is taken, too, and would stay first. With load_balance_hosts libpq draws.
        is_fixed = parameters.get("target_session_attrs", "any") == "any"
        is_balanced = parameters.get("load_balance_hosts", "disable") != "disable"
        self.count = 1 if is_fixed or is_balanced else max(map(len, columns.values()), default=1)
        self._columns = {name: texts * (self.count if len(texts) == 1 else 1) for name, texts in columns.items()}
        self._first = 0

    def ordered(self) -> dict[str, str]:
        """Return the parameters for the next connection."""
        first = self._first
        if not first:
            return self._parameters
        turned = {name: ",".join([*texts[first:], *texts[:first]]) for name, texts in self._columns.items()}
        return {**self._parameters, **turned}

    def answered(self, host: str, port: int) -> None:
        """Begin with this host."""
        at = self._place_of(host, port)
        self._first = self._first if at is None else at

    def failed(self, host: str, port: int, *, is_passed: bool = False) -> None:
        """Begin with the host after this one, if it would be this one; with `is_passed` in any case."""
        at = self._place_of(host, port)
        if at is not None and (is_passed or at == self._first):
            self._first = (at + 1) % self.count

    def _place_of(self, host: str, port: int) -> int | None:
        if self.count == 1:
            return None
        hosts = self._columns.get("host") or self._columns["hostaddr"]
        ports = self._columns.get("port", [""] * self.count)
        places = zip(hosts, ports, strict=True)
        return next((at for at, place in enumerate(places) if place[0] == host and place[1] in {"", str(port)}), None)


def sqlalchemy_url(parameters: Mapping[str, str]) -> "tuple[sqlalchemy.URL, dict[str, str]]":
    """Return the address for SQLAlchemy, which hides the password, and the parameters of libpq that it does not hold."""
    import sqlalchemy

    rest = dict(parameters)
    user, password, host, database = (rest.pop(name, None) for name in ("user", "password", "host", "dbname"))
    port = int(rest.pop("port")) if rest.get("port", "").isdigit() else None  # several stay with libpq
    return sqlalchemy.URL.create("postgresql+psycopg", user, password, host, port, database), rest


def environment_of(url: str) -> tuple[dict[str, str], str]:
    """Return an address as variables for libpq's programs, and the rest, which has no variable, as words and values.

    A secret without a variable is left out: such a program would ask for it.
    """
    variables = {option.keyword.decode(): option.envvar for option in psycopg.pq.Conninfo.get_defaults()}
    found = parse(url)
    environment = {variable.decode(): found[name] for name, variable in variables.items() if variable and name in found}
    rest = {name: value for name, value in found.items() if not variables.get(name) and name not in SECRETS}
    return environment, conninfo(rest)


def public_url(url: str) -> str:
    """Return a database's address as a URL, without passwords."""
    found = parse(url)
    hidden = {name: "***" if name in SECRETS else value for name, value in found.items()}
    hosts, ports = hidden.pop("host", ""), hidden.pop("port", "")
    names = hosts.split(",")
    numbers = ports.split(",") * (len(names) if "," not in ports else 1)
    return _as_url(",".join(_place(host, port) for host, port in zip(names, numbers, strict=True)), hidden)


def whole_url(parameters: Mapping[str, str]) -> str:
    """Return parameters as a URL, with passwords. A socket or several hosts stand behind `?`, as SQLAlchemy wants them."""
    rest, place = dict(parameters), ""
    if not re.search("[/,]", rest.get("host", "")):
        place = _place(rest.pop("host", ""), rest.pop("port", ""))
    return _as_url(place, rest)


def _as_url(places: str, rest: dict[str, str]) -> str:
    user, password = rest.pop("user", None), rest.pop("password", None)
    login = "" if user is None else quote(user, safe="")
    if password is not None and user is not None:
        login += f":{quote(password, safe='*')}"
    elif password is not None:
        rest["password"] = password
    database = quote(rest.pop("dbname", ""), safe="")
    more = "?" + urlencode(rest, quote_via=quote, safe="*") if rest else ""
    return f"postgresql://{login}{'@' if login else ''}{places}{'/' if database or more else ''}{database}{more}"


def _place(host: str, port: str) -> str:
    shown = f"[{host}]" if ":" in host else quote(host, safe="")
    return f"{shown}:{port}" if port else shown
