"""`python -m tests.postgres` prints each PostgreSQL of the extra `embedded` but the version that `make test-all` runs on."""

import sys

from msgtx.database.embedded import binaries


def main() -> None:
    usual = next(binaries._candidates("auto"))
    for found in binaries._wheel():
        if found.major != usual.major:
            sys.stdout.write(f"{found.folder.parent}\n")


if __name__ == "__main__":
    main()
