"""The everyday run takes a part of the long tests: `--sample SEED` says which, and the same seed takes the same part.

Sweeps, interleavings, bad days, histories and the model try one thing repeatedly, and each of their tests takes
seconds: `make test` draws a few of a module, `make test-all` runs all of them. Everything else runs in both.
"""

import random
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import pytest

HERE: Final = Path(__file__).parent
# How much of a module the everyday run takes; of all others it takes everything.
SHARES: Final = {
    "admin/test_doctor.py": 0.4,
    "admin/test_doctor_shares.py": 0.2,
    "admin/test_redrive.py": 0.2,
    "admin/test_rights.py": 0.4,
    "admin/test_rights_of_names.py": 0.4,
    "admin/test_rights_of_roles.py": 0.04,
    "admin/test_shares.py": 0.25,
    "admin/test_verify.py": 0.3,
    "admin/test_verify_rules.py": 0.1,
    "aio/test_consumer.py": 0.25,
    "aio/test_sessions.py": 0.2,
    "aio/test_shares.py": 0.15,
    "aio/test_workers.py": 0.25,
    "cli/test_commands.py": 0.3,
    "cli/test_groups.py": 0.25,
    "cli/test_interruption.py": 0.1,
    "cli/test_process.py": 0.25,
    "cli/test_produce.py": 0.25,
    "cli/test_shares.py": 0.1,
    "client/test_both_kinds.py": 0.08,
    "client/test_commits.py": 0.4,
    "client/test_commits_that_fail.py": 0.34,
    "client/test_consumer.py": 0.4,
    "client/test_deadlines.py": 0.08,
    "client/test_dedup.py": 0.4,
    "client/test_groups.py": 0.18,
    "client/test_listener.py": 0.4,
    "client/test_metrics.py": 0.5,
    "client/test_otel.py": 0.4,
    "client/test_planted_exceptions.py": 0.04,
    "client/test_prepared.py": 0.4,
    "client/test_producer_callbacks.py": 0.4,
    "client/test_process.py": 0.4,
    "client/test_recovery.py": 0.3,
    "client/test_share_members.py": 0.3,
    "client/test_share_processing.py": 0.15,
    "client/test_share_records.py": 0.3,
    "client/test_share_rewinds.py": 0.2,
    "client/test_shares.py": 0.15,
    "client/test_shares_in_transactions.py": 0.12,
    "client/test_stable_offsets.py": 0.15,
    "client/test_wakeup.py": 0.4,
    "client/test_wrong_arguments.py": 0.25,
    "database/test_migrate.py": 0.3,
    "docs/test_snippets.py": 0.05,
    "docs/test_tutorial.py": 0.05,
    "examples/test_orders.py": 0.15,
    "histories/test_history.py": 0.2,
    "histories/test_long_run.py": 0.5,
    "histories/test_storm.py": 0.2,
    "house/test_sampling.py": 0.4,
    "house/test_typed_settings.py": 0.4,
    "model/test_model.py": 0.2,
    "orm/test_models.py": 0.1,
    "orm/test_read.py": 0.4,
    "sessions/test_batches.py": 0.15,
    "sessions/test_ends.py": 0.2,
    "sessions/test_enlistment.py": 0.5,
    "sessions/test_offsets.py": 0.25,
    "sessions/test_process_into.py": 0.2,
    "sessions/test_publish.py": 0.12,
    "sessions/test_seats.py": 0.5,
    "sessions/test_share_workers.py": 0.12,
    "sessions/test_shares.py": 0.2,
    "sessions/test_transactions.py": 0.12,
    "store/test_cleaned_histories.py": 0.12,
    "store/test_clocks.py": 0.12,
    "store/test_compaction.py": 0.15,
    "store/test_decide.py": 0.4,
    "store/test_durable.py": 0.12,
    "store/test_growth.py": 0.15,
    "store/test_heartbeats.py": 0.25,
    "store/test_histories.py": 0.12,
    "store/test_history.py": 0.2,
    "store/test_leases.py": 0.2,
    "store/test_moves.py": 0.4,
    "store/test_namesakes.py": 0.15,
    "store/test_neighbouring_groups.py": 0.2,
    "store/test_publish.py": 0.4,
    "store/test_seal.py": 0.3,
    "store/test_shares.py": 0.25,
    "store/test_shares_parked.py": 0.12,
    "store/test_small_steps.py": 0.1,
    "store/test_usual_acquisition.py": 0.1,
    "store/test_usual_case.py": 0.1,
    "store/test_views_of_neighbours.py": 0.1,
    "system/test_bad_days_clock.py": 0.15,
    "system/test_bad_days_disk.py": 0.2,
    "system/test_bad_days_pooler.py": 0.15,
    "system/test_bad_days_sessions.py": 0.15,
    "system/test_bad_days_settings.py": 0.2,
    "system/test_bad_days_terminations.py": 0.15,
    "system/test_bad_days_versions.py": 0.15,
    "system/test_clocks_under_verbs.py": 0.1,
    "system/test_crash_sweep.py": 0.02,
    "system/test_crash_sweep_of_batches.py": 0.1,
    "system/test_crash_sweep_of_sessions.py": 0.03,
    "system/test_daemon.py": 0.15,
    "system/test_demo.py": 0.2,
    "system/test_doors.py": 0.15,
    "system/test_interleavings.py": 0.05,
    "system/test_interleavings_of_cleaning.py": 0.1,
    "system/test_interleavings_of_groups.py": 0.05,
    "system/test_interleavings_of_keys.py": 0.15,
    "system/test_interleavings_of_sessions.py": 0.08,
    "system/test_interleavings_of_shares.py": 0.05,
    "system/test_interleavings_of_sql.py": 0.1,
    "system/test_interleavings_of_sweeps.py": 0.15,
    "system/test_links.py": 0.1,
    "system/test_metrics_endpoint.py": 0.3,
    "system/test_mutate.py": 0.05,
    "system/test_new_postgresql.py": 0.5,
    "system/test_rebalances.py": 0.2,
    "system/test_onlookers.py": 0.3,
    "system/test_server_crash.py": 0.15,
    "system/test_shares_under_kills.py": 0.05,
    "system/test_standby.py": 0.3,
    "system/test_topology.py": 0.3,
}


def add_option(parser: pytest.Parser) -> None:
    parser.addoption("--sample", type=int, metavar="SEED", help="of the long modules, take a part that this seed draws")


def header(config: pytest.Config) -> str | None:
    """Say which part it is, and how to repeat it."""
    seed = config.getoption("sample")
    return None if seed is None else f"a sample of the long tests: the same one again by TEST_SEED={seed}"


def deselect(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep what is drawn. pytest reports how many tests were left out."""
    seed = config.getoption("sample")
    if seed is None:
        return
    modules: dict[str, list[pytest.Item]] = {}
    for item in items:
        modules.setdefault(item.path.relative_to(HERE).as_posix() if item.path.is_relative_to(HERE) else "", []).append(item)
    left = {item for name, found in modules.items() if name in SHARES for item in _left_out(found, seed, SHARES[name])}
    config.hook.pytest_deselected(items=[item for item in items if item in left])
    items[:] = [item for item in items if item not in left]


def _left_out(items: Sequence[pytest.Item], seed: int, share: float) -> Sequence[pytest.Item]:
    """Draw what is left out. If the share is not a whole number, some seeds take one test more than others."""
    chance = random.Random(f"{seed} {items[0].path.name}")
    taken = int(share * len(items) + chance.random())
    return chance.sample(items, len(items) - taken)
