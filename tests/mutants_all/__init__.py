"""Mutants in bulk: every statement and every condition is dropped, negated or moved by one, and some test must fail.

`tests/mutants` holds bugs that somebody thought of; these are the ones that nobody did. They are made mechanically from the
text of `msgtx/sql` and of the transactional Python, planted one at a time, and the tests that reach them run, the closest
first, until one fails. What survives is a test that is missing, or is explained in `explained.txt`.

    python -m tests.mutants_all --list --only seal
    python -m tests.mutants_all --only 'sql/*/seal*' --minutes 30

The first run notes which tests reach what, with their times, in `.mutants/` (not in git); results are kept there, too, so a
run that was ended goes on where it was. A mutant that PostgreSQL does not accept is stillborn: that catches nothing. A hang
is caught.
"""
