"""T8, mutants: planted bugs, each with the tests that must fail on it.

`table.txt` has them by file and name. A mutant is

- a sentence that says what is planted, and in brackets the promises and pitfalls that it breaks;
- edits: the old text behind `-`, which occurs once in the file, and the new text behind `+`. Without a `+`, the lines of the
  old text go. Another pair is another edit of the file, or of the file that `in FILE` names;
- the tests that must catch it, as pytest writes them.

`python -m tests.mutants` plants one after the other in a copy of the tree and runs its tests.
"""
