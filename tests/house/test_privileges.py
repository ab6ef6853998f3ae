"""Rights: every call of the library is in one verb at least, and what a verb lets through checks its topics."""

import re

from msgtx.database import privileges
from msgtx.database.privileges import EVERYWHERE, MANAGED, NEEDS, OWNERS, Right
from tests import interface
from tests.house.test_sql import FILES, parts

CODE = {path.stem: parts(path)[1] for path in FILES}
CALLED = {function.name for function in interface.functions()}
VIEWS = {name for name, code in CODE.items() if code.lstrip().startswith("create view")}
# They look at no table of msgtx's with their owner's rights; what they call does, and checks.
OF_THE_CALLER = {
    "commit_in_session",
    "lock_producer", "last_stable_offset", "describe_server", "describe_sessions", "lock_holders", "snapshot_holders",
    "table_statistics", "read", "value_json",
}  # fmt: skip
# What users call in their own SQL.
OF_USERS = {"publish", "read", "value_json"}
# They name partitions or topics of a group's own rows: nothing of a topic is read or written.
OF_A_GROUP = {"join_group", "assign_partitions", "release_partitions"}
# The outcome of a row whose name the caller knows: as `transaction_outcome`, it is no topic's.
OF_A_TRANSACTION = {"is_committed"}
# What it is given was signed by `seal`, which only the caller who wrote there has heard of.
SIGNED = {"decide_sealed"}


def test_every_call_of_the_library_needs_a_right_or_is_the_owners() -> None:
    assert sorted(CALLED - MANAGED) == []


def test_what_a_right_needs_is_there() -> None:
    assert sorted(MANAGED - CODE.keys()) == []


def test_what_is_given_is_called_or_read() -> None:
    within = {name for name in MANAGED if any(f"msgtx.{name}(" in CODE[other] for other in VIEWS | OF_USERS)}
    assert sorted(MANAGED - CALLED - VIEWS - OF_USERS - within) == []


def test_nothing_of_the_owner_is_given() -> None:
    assert sorted(OWNERS & privileges.needed((right, "*") for right in Right)) == []
    assert privileges.needed([(Right.ADMIN, "orders*")]) == NEEDS[Right.ADMIN]
    assert privileges.needed([(Right.ADMIN, "*")]) == NEEDS[Right.ADMIN] | EVERYWHERE


def test_what_is_given_runs_with_its_owners_rights() -> None:
    for name in MANAGED & CODE.keys() - VIEWS - OF_THE_CALLER:
        assert "security definer" in CODE[name], name


def test_what_names_topics_or_partitions_checks_the_callers_rights_there() -> None:
    given = frozenset().union(*NEEDS.values()) & CODE.keys()
    for name in given - VIEWS - OF_THE_CALLER - OF_A_GROUP - OF_A_TRANSACTION - SIGNED:
        arguments = CODE[name].split("returns ")[0].split(" out ")[0]
        if re.search(r"partition|topic|batches|\bnames\b", arguments):
            assert re.search(r"msgtx\.(require_right\w*|topics_of_caller|check_offsets)\(", CODE[name]), name


def test_every_view_for_roles_shows_what_the_caller_may_see_and_is_a_barrier() -> None:
    given = frozenset().union(*NEEDS.values()) & VIEWS
    assert given == VIEWS - {"stored_records"}
    for name in given:
        assert "with (security_barrier)" in CODE[name], name
        assert "msgtx.topics_of_caller(" in CODE[name], name


def test_who_acts_for_the_owner_is_asked_with_the_owners_rights_only() -> None:
    """Elsewhere the current user is the caller, and so everybody would."""
    asking = {name for name, code in CODE.items() if "msgtx.acts_for_owner()" in code} - {"acts_for_owner"}
    inner = {"append_plain", "check_offsets"}  # called by functions that run with their owner's rights, and given to nobody
    assert not inner & MANAGED
    for name in asking - inner:
        assert "security definer" in CODE[name], name
