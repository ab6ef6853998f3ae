"""Tests of programs that use msgtx: a pytest plugin with a real PostgreSQL, and what such tests ask.

The fixtures (`msgtx_client`, `msgtx_faults` and others) are those of `msgtx.testing.plugin`; `pip install msgtx[testing]`
has pytest find them.
"""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from msgtx.testing.boundaries import FaultNotReached
    from msgtx.testing.clock import Clock
    from msgtx.testing.faults import Faults
    from msgtx.testing.records import assert_exactly_once, committed, dead_letters, pending, published
    from msgtx.testing.roles import Roles
    from msgtx.testing.server import Postgres
    from msgtx.testing.working import NothingLeft, run_worker, run_worker_async
else:
    # pytest imports this package in each run, also of tests that do not use msgtx: what is in it comes at first use.
    _HOMES = {
        "Clock": "clock",
        "FaultNotReached": "boundaries",
        "Faults": "faults",
        "Postgres": "server",
        "Roles": "roles",
        **dict.fromkeys(("assert_exactly_once", "committed", "dead_letters", "pending", "published"), "records"),
        **dict.fromkeys(("NothingLeft", "run_worker", "run_worker_async"), "working"),
    }

    def __getattr__(name: str) -> object:
        """Import a name from its home."""
        from importlib import import_module

        if name not in _HOMES:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return globals().setdefault(name, getattr(import_module(f"msgtx.testing.{_HOMES[name]}"), name))


__all__ = [
    "Clock",
    "FaultNotReached",
    "Faults",
    "NothingLeft",
    "Postgres",
    "Roles",
    "assert_exactly_once",
    "committed",
    "dead_letters",
    "pending",
    "published",
    "run_worker",
    "run_worker_async",
]
