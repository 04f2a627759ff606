"""The `autotune` command: one thin module per subcommand; every subcommand's help has an example.

Exit codes: 0 done, 1 done but something the user should look at, 2 wrong or unavailable input (one sentence
on stderr, never a traceback), 130 interrupted.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from importlib import import_module

from autotune import __version__, settings
from autotune.errors import AutotuneError

COMMANDS = (
    "hw", "suites", "algorithms", "compile", "sweep", "lookup", "enqueue", "train", "evaluate", "cluster", "db",
    "import",
)  # fmt: skip

MODULES = {"import": "importing"}
"""Of commands that cannot be a module's name."""


def parser() -> argparse.ArgumentParser:
    """The whole command line, for `main`, the documentation and its test."""
    top = argparse.ArgumentParser(
        prog="autotune",
        description="Finds, keeps and looks up the fastest correct implementation of each operator on this machine.",
        epilog="start with:\n  autotune sweep --suite bert-base --budget 2m\n"
        "  autotune lookup 'linear m=16 n=3072 k=768 bias=1 activation=gelu'\n\nenvironment:\n"
        + "\n".join(f"  {name:<16} {meaning}" for name, meaning in settings.VARIABLES.items()),
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    top.add_argument("--version", action="version", version=f"autotune {__version__}")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name in COMMANDS:
        import_module(f"autotune.cli.{MODULES.get(name, name)}").add(commands)
    return top


def main(argv: Sequence[str] | None = None) -> int:
    """Runs one command and returns its exit code."""
    try:
        args = parser().parse_args(argv)
        code: int = args.run(args)
        sys.stdout.flush()
        return code
    except AutotuneError as error:
        print(f"autotune: {error}", file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        print("autotune: interrupted; what was measured is kept, run the same command again to go on", file=sys.stderr)
        return 130
    except BrokenPipeError:  # the reader, such as `head`, has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
