"""What a session commits has the rights of its role, at every isolation level: also what is written beside it."""

from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy
from sqlalchemy import text
from sqlalchemy.orm import Session

import msgtx
from msgtx import TopicPartition, errors, orm
from tests.databases import Server
from tests.roles import Roles, open_roles
from tests.sessions.conftest import Shop

LEVELS = ("READ COMMITTED", "SERIALIZABLE")
WAYS = {
    "SET ROLE": "set role {}",
    "SET LOCAL ROLE": "set local role {}",
    "SET SESSION AUTHORIZATION": "set session authorization {}",
    "SET LOCAL SESSION AUTHORIZATION": "set local session authorization {}",
}


@pytest.fixture
def roles(shop: Shop, server: Server) -> Iterator[Roles]:
    with open_roles(server, shop.url) as opened:
        yield opened


def publish(_: object, session: Session, topic: str) -> None:
    orm.publish(session, topic, b"a record", partition=0)


def commit(member: Any, session: Session, _: str) -> None:
    member.commit(session=session)


def refusal(session: Session) -> errors.AuthorizationFailed | None:
    """Commit. Returns why that is refused; None: it is done."""
    try:
        session.commit()
    except errors.AuthorizationFailed as error:
        return error
    return None


def joined(words: str) -> str:
    """Return words as a part of a test's name."""
    return words.replace(" ", "-")


def login_for(roles: Roles, way: str, team: str) -> str:
    """Make a login that may become the team, and has no right of its own through it."""
    login = roles.make(options="login superuser" if "AUTHORIZATION" in way else "login noinherit")
    roles.sql(f"grant {team} to {login}")
    return login


@pytest.mark.parametrize("level", LEVELS, ids=joined)
@pytest.mark.parametrize("way", WAYS, ids=joined)
@pytest.mark.parametrize("may", [True, False])
def test_the_role_that_was_set_has_the_right_or_not(shop: Shop, roles: Roles, level: str, way: str, may: bool) -> None:
    """Whatever its login may."""
    team = roles.make(f"produce:{shop.topic}" if may else f"consume:{shop.topic}", options="nologin")
    login = login_for(roles, way, team)
    if not may and "AUTHORIZATION" not in way:
        roles.grant(login, f"produce:{shop.topic}")
    engine = shop.engine(roles.url_of(login), isolation_level=level)
    for _ in range(2):  # the second time ids are there
        with Session(engine) as session:
            session.execute(text(WAYS[way].format(team)))
            publish(None, session, shop.topic)
            assert (refusal(session) is None) == may
    if not may and "AUTHORIZATION" not in way:
        with Session(engine) as session:
            session.execute(text("reset role"))
            publish(None, session, shop.topic)
            session.commit()
    assert len(shop.seen()[0]) == (2 if may else 1 if "AUTHORIZATION" not in way else 0)
    assert shop.nothing_is_open()


def test_the_advice_does_not_take_the_login_for_the_role_that_was_set(shop: Shop, roles: Roles) -> None:
    """PostgreSQL's own refusal names a function, not whom it refuses."""
    team = roles.make(f"consume:{shop.topic}", options="nologin")
    login = login_for(roles, "SET ROLE", team)
    engine = shop.engine(roles.url_of(login), isolation_level="SERIALIZABLE")
    with Session(engine) as session:
        session.execute(text(f"set role {team}"))
        publish(None, session, shop.topic)
        with pytest.raises(errors.AuthorizationFailed, match=f"--role {login} .*, or to the role that the session has set"):
            session.commit()


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("what", ["offsets", "answers"])
@pytest.mark.parametrize("may", [True, False])
def test_offsets_and_answers_need_the_right_of_the_role_that_was_set(
    shop: Shop, roles: Roles, level: str, what: str, may: bool
) -> None:
    # Above READ COMMITTED they go with a producer id.
    team = roles.make(f"consume:{shop.topic}" if may else "consume:others", "produce:others", options="nologin")
    login = roles.make(f"consume:{shop.topic}", "produce:others", options="login noinherit")
    roles.sql(f"grant {team} to {login}")
    with shop.client.producer() as producer:
        producer.send(shop.topic, b"a record", partition=0).result(30)
    shop.client.admin.shares.configure(f"{shop.topic}-share", {"auto_offset_reset": "earliest"})
    engine = shop.engine(roles.url_of(login), isolation_level=level)
    with msgtx.connect(roles.url_of(login)) as other, Session(engine) as session:
        session.execute(text(f"set local role {team}"))
        member: Any
        if what == "offsets":
            member = other.consumer(shop.topic, group=shop.topic, auto_offset_reset="earliest", enable_auto_commit=False)
        else:
            member = other.share_consumer(shop.topic, group=f"{shop.topic}-share", acknowledgement_mode="explicit")
        records = member.poll(30)
        if what == "answers":
            member.acknowledge(records[0])
        commit(member, session, shop.topic)
        if may:
            session.commit()
        else:
            with pytest.raises(errors.AuthorizationFailed):
                session.commit()
            session.rollback()
        if what == "answers":
            assert shop.client.admin.shares.describe(f"{shop.topic}-share").lag == (0 if may else 1)
        else:
            found = member.committed([TopicPartition(shop.topic, 0)])[TopicPartition(shop.topic, 0)]
            assert (found is not None and found.offset == 1) is may


@pytest.mark.parametrize("level", LEVELS[1:])
def test_what_is_rolled_back_is_aborted_as_the_role_that_was_set(shop: Shop, roles: Roles, level: str) -> None:
    team = roles.make(f"produce:{shop.topic}", options="nologin")
    login = login_for(roles, "SET ROLE", team)
    engine = shop.engine(roles.url_of(login), isolation_level=level)

    def refuse(_: object) -> None:
        raise ZeroDivisionError

    with Session(engine) as session:
        session.execute(text(f"set local role {team}"))
        publish(None, session, shop.topic)
        sqlalchemy.event.listen(engine, "commit", refuse)
        with pytest.raises(ZeroDivisionError):
            session.commit()
        sqlalchemy.event.remove(engine, "commit", refuse)
    assert shop.seen()[0] == []
    assert shop.nothing_is_open()
