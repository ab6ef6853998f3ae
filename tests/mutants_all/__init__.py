"""Mutants in bulk: every statement and condition is dropped, negated or moved by one, and some test must fail.

`tests/mutants` holds bugs that a developer thought of; these are all the others. They are made mechanically from the
text of `msgtx/sql` and of the transactional Python, planted one at a time, and the tests that reach them run, the closest
first, until one fails. A survivor shows a missing test, or is explained in `explained.txt`.

    python -m tests.mutants_all --list --only seal
    python -m tests.mutants_all --only 'sql/*/seal*' --minutes 30

The first run notes what each test reaches, and its time, in `.mutants/` (not in git); results are kept there, too, so a
interrupted run continues where it stopped. A mutant that PostgreSQL refuses is stillborn, which is not caught. A hang
is caught.
"""
