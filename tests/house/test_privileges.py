"""Rights: every call of the library belongs to a verb at least, and each function granted by a verb checks its topics."""

import re

from msgtx.database.schema import privileges
from msgtx.database.schema.functions import files
from msgtx.database.schema.privileges import ANY, EVERYWHERE, OWNER, Right, given_by, managed
from tests.admin.test_rights_of_roles import BY_HAND
from tests.calls import CALLED
from tests.house.test_sql import FILES, parts

CODE = {path.stem: parts(path)[1] for path in FILES}
MANAGED = managed()
OWNERS = given_by(OWNER)
VIEWS = {name for name, code in CODE.items() if code.lstrip().startswith("create view")}
# They read no table of msgtx with their owner's rights; what they call does, and checks.
OF_THE_CALLER = {
    "commit_in_session", "hold_commit", "release_commit",
    "last_stable_offset", "describe_server", "describe_sessions", "lock_holders", "snapshot_holders",
    "describe_notifications", "describe_standbys",
    "table_statistics", "read", "value_json", "value_text", "acknowledge", "adopt_outbox", "release_outbox",
}  # fmt: skip
# Functions that users call in their own SQL.
OF_USERS = {
    "find", "publish", "read", "take", "receive", "acknowledge", "acknowledge_all", "wait_for_records", "listen",
    "adopt_outbox", "release_outbox", "value_json", "value_text", "note_place",
    "cut", "ranges", "position", "begin_batch", "write_batch", "commit_batch",
}  # fmt: skip
# They name partitions or topics of a group's own rows: they neither read nor write a topic.
OF_A_GROUP = {"join_group", "ensure_dead_letters", "assign_partitions", "release_partitions"}
# The outcome of a row whose name the caller knows: like `transaction_outcome`, it belongs to no topic.
OF_A_TRANSACTION = {"is_committed"}
# A number that says that some topic has changed.
OF_ALL_TOPICS = {"topics_version"}
# Its argument was signed by `seal`; only the caller who wrote there knows it.
SIGNED = {"decide_sealed"}


def test_a_header_names_rights_that_are_there() -> None:
    said = {word for file in files() for word in file.rights}
    assert said <= {*Right, ANY, *EVERYWHERE.values(), OWNER}


def test_what_is_given_is_called_or_read() -> None:
    within = {name for name in MANAGED if any(f"msgtx.{name}(" in CODE[other] for other in VIEWS | OF_USERS | OF_THE_CALLER)}
    assert sorted(MANAGED - CALLED - VIEWS - OF_USERS - within) == []


def test_nothing_of_the_owner_is_given() -> None:
    assert sorted(OWNERS & privileges.needed((right, "*") for right in Right)) == []
    looks = given_by(ANY, Right.OBSERVE)
    assert privileges.needed([(Right.OBSERVE, "orders*")]) == looks
    assert privileges.needed([(Right.OBSERVE, "*")]) == looks | given_by(EVERYWHERE[Right.OBSERVE])
    assert privileges.needed([(Right.ADMIN, "orders*")]) == looks | given_by(Right.ADMIN)
    assert privileges.needed([(Right.ADMIN, "*")]) == looks | given_by(Right.ADMIN, *EVERYWHERE.values())


def test_what_is_given_runs_with_its_owners_rights() -> None:
    for name in MANAGED & CODE.keys() - VIEWS - OF_THE_CALLER:
        assert "security definer" in CODE[name], name


def test_what_names_topics_or_partitions_checks_the_callers_rights_there() -> None:
    given = given_by(ANY, *Right) & CODE.keys()
    for name in given - VIEWS - OF_THE_CALLER - OF_A_GROUP - OF_A_TRANSACTION - OF_ALL_TOPICS - SIGNED:
        arguments = CODE[name].split("returns ")[0].split(" out ")[0]
        if re.search(r"partition|topic|batches|\bnames\b", arguments):
            assert re.search(
                r"msgtx\.(require_(right|sight)\w*|(topics|patterns)_of_caller|(check|commit_batch)_offsets|append_or_raise)\(",
                CODE[name],
            ), name


def test_whatever_checks_rights_is_called_by_hand_without_them() -> None:
    asking = {name for name, code in CODE.items() if re.search(r":= msgtx\.require_right(s|_on_topic)\(", code)}
    assert sorted(name for name in asking if not any(call.startswith(name) for call in BY_HAND)) == []


def test_what_names_groups_or_transactional_ids_checks_whether_the_caller_may_use_them() -> None:
    """This includes functions that act under a producer id: that is a name, too."""
    given = given_by(ANY, *Right) & CODE.keys()
    asks = {
        r"\bgroup_names?\b|\bin_group_name\b": (
            r"msgtx\.(require_names\('group'|require_sight_of_groups|decide_batch|(check|commit|commit_batch)_offsets)"
        ),
        r"transactional_id|\bin_app_id\b": r"msgtx\.require_names\('transactional_id'",
        r"\bin_producer_id\b|\bexpected_producer_id\b|msgtx\.batch\b": (
            r"msgtx\.(require_producers|decide|append|append_or_raise)\("
        ),
    }
    # They report what has become of a name, as a view does; abort what is overdue; look at what the caller has read. Or they
    # are the administrator's own.
    looks = {
        "describe_transaction",
        "show_transaction",
        "show_partitions",
        "show_offsets",
        "show_acknowledgements",
        "blocking_partitions",
        "waiting_groups",
        "producer_epochs",
        "producer_sequences",
        "transaction_outcome",
        "undecided_prepared",
        "is_committed",
        "is_batch_committed",
        "offset_counts",
        "last_batch",
        "commit_in_session",  # what it stages is checked in the COMMIT, by commit_offsets and append
        "hold_commit",
    }
    for name in given - VIEWS - SIGNED - looks:
        arguments = CODE[name].split("returns ")[0].split(" out ")[0]
        for names, check in asks.items():
            if re.search(names, arguments):
                assert re.search(check, CODE[name]), name


def test_every_view_for_roles_shows_what_the_caller_may_see_and_is_a_barrier() -> None:
    given = given_by(ANY, *Right) & VIEWS
    assert given == VIEWS - {"stored_records"}
    for name in given:
        assert "with (security_barrier)" in CODE[name], name
        called = re.findall(r"from msgtx\.(\w+)\(", CODE[name])
        assert any("msgtx.topics_of_caller(" in CODE[each] for each in (name, *called)), name


def test_who_acts_for_the_owner_is_asked_with_the_owners_rights_only() -> None:
    """Elsewhere the current user is the caller, so every caller would act for the owner."""
    asking = {name for name, code in CODE.items() if "msgtx.acts_for_owner()" in code} - {"acts_for_owner"}
    inner = {
        "append_plain",
        "check_offsets",
        "next_producer_id",
        "try_lock_transaction",
    }  # called by functions that run with their owner's rights, and granted to no role
    assert not inner & MANAGED
    for name in asking - inner:
        assert "security definer" in CODE[name], name
