"""`python -m msgtx.cli` is `msgtx`."""

from msgtx.cli.main import main

if __name__ == "__main__":  # a process that measures starts this module again, under another name
    main()
