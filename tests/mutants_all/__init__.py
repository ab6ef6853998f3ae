"""Mutants in bulk: every statement and condition is dropped or negated, and some test must fail.

`tests/mutants` holds bugs that a developer thought of; these are all the others. They are made mechanically from the
text of `msgtx/sql` and of the transactional Python, and the tests that reach them run, the closest first, until one fails:
the first ones with each mutant alone, the others with all survivors of a function at once. What survives these, too, shows
a missing test, or is explained in `explained.txt`; or another mutant hid it, one that switches off the branch it is in: once
that one is explained, `--again` shows it.

    python -m tests.mutants_all --report --only seal
    python -m tests.mutants_all --only 'sql/*/seal*' --minutes 30
    python -m tests.mutants_all --only seal --again --seconds 60

How each mutant ended is written into `ledger.txt`, which is in git: a run continues in any clone where the last one stopped,
and takes up a function whose text has changed. What a survivor has met are the closest tests, `--seconds` of them; `--again`
runs survivors once more. Other rules (`--rule '*'`) move bounds and attributes; they are not in the ledger.

The first run in a clone notes what each test reaches, and its time, in `.mutants/` (not in git), where results with all
their details are kept, too. A mutant that PostgreSQL refuses is stillborn, which is not caught. A hang is caught.
"""
