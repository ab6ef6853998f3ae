"""Mutants in bulk: every statement is dropped, every condition dropped or negated, and some test must fail.

`tests/mutants` holds bugs that a developer thought of; these are all the others. They are made from the texts of `msgtx/sql`
and of the transactional Python. The tests that reach one run, the likeliest first, until one fails. A mutant that survives
shows a missing test, or stands in `explained.txt`. `tests.reach` knows which tests reach what, and records it first.

    python -m tools.mutate --report --only seal
    python -m tools.mutate --only 'sql/*/seal*' --minutes 30
    python -m tools.mutate --only seal --again --seconds 60

The outcomes are kept in `build/mutants.jsonl`: a run continues where the last one stopped, and takes up a function that has
changed. A mutant that PostgreSQL or Python refuses is stillborn, which is not caught. A hang is caught.
"""
