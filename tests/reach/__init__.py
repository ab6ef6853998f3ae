"""Which tests reach a line of Python or a function of SQL, and which of them a change concerns.

`python -m tests.reach --record` runs the tests that stay in one process and writes what each of them reaches into
`build/reach`: the lines of Python that it runs; the functions and views of SQL that its statements name and what those call.
They take about twice as long as otherwise. The next time it records only the files of tests that are new or have changed.
Code may change meanwhile: a function whose text is another one is reached by the tests that have run it.

What runs in another process (programs, servers, Spark) is not followed.
"""
