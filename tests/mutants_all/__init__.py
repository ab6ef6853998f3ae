"""Mutants in bulk: every statement and condition is dropped, negated or moved by one, and some test must fail.

`tests/mutants` holds bugs that a developer thought of; these are all the others. They are made mechanically from the
text of `msgtx/sql` and of the transactional Python, and the tests that reach them run, the closest first, until one fails:
the first ones with each mutant alone, the others with all survivors of a function at once. What survives these, too, shows
a missing test, or is explained in `explained.txt`; or another mutant hid it, one that switches off the branch it is in: once
that one is explained, `--again` shows it.

    python -m tests.mutants_all --list --only seal
    python -m tests.mutants_all --only 'sql/*/seal*' --minutes 30

The first run notes what each test reaches, and its time, in `.mutants/` (not in git); results are kept there, too, so an
interrupted run continues where it stopped. A mutant that PostgreSQL refuses is stillborn, which is not caught. A hang
is caught.
"""
