"""T8, mutants: planted bugs, each a patch of a few lines that names the tests that must fail on it.

A patch begins with one sentence: what is planted, and in brackets the promises and pitfalls that it breaks. Then a line for
each test that must catch it: its tier, and its file, folder or name as pytest writes it. Then the diff, against the
current tree. `python -m tests.mutants` plants one after the other in a copy of the tree and runs the tests named.
"""
