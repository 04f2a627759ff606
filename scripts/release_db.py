"""Makes the database that is shipped, and its page, out of those of the project's own sweeps.

Keeps what was measured (not imported), undisturbed, by kernels as they are now; checks it; the same measurements
give the same bytes. The file is replaced only by one that passes every check.

    python scripts/release_db.py --source linears.sqlite --source convolutions.sqlite
    python scripts/release_db.py --source all.sqlite --out /tmp/tuning.sqlite --page /tmp/README.md
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile

from autotune import paths
from autotune.cli.common import size
from autotune.errors import AutotuneError
from autotune.report.schema_page import schema_page
from autotune.report.verify import verify
from autotune.store.release import release
from autotune.store.sql import open_store

LARGEST_BYTES = 30 << 20
HOW = "python scripts/release_db.py --source DATABASE [--source DATABASE …]"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", action="append", required=True, metavar="DATABASE", help="may be repeated")
    parser.add_argument("--out", default=paths.shipped_database(), help="default: db/tuning.sqlite")
    parser.add_argument("--page", help="default: README.md beside it")
    args = parser.parse_args()
    folder = os.path.dirname(os.path.abspath(args.out))
    os.makedirs(folder, exist_ok=True)
    try:
        with tempfile.TemporaryDirectory(prefix=".release-", dir=folder) as temporary:
            made = os.path.join(temporary, "tuning.sqlite")
            released = release(args.source, made)
            with open_store(made, create=False) as store:
                wrong = [finding for finding in verify(store) if finding.is_error and finding.count]
                page = schema_page(store, HOW)
            for finding in wrong:
                print(f"{finding.check}: {finding.count:,}, such as {'; '.join(finding.examples)}", file=sys.stderr)
            large = os.path.getsize(made)
            if wrong or large > LARGEST_BYTES:
                print(f"not written: {size(large)}, {len(wrong)} checks failed", file=sys.stderr)
                return 1
            os.chmod(made, 0o644)  # git keeps no other mode, and equal files should be equal
            os.replace(made, args.out)
        with open(args.page or os.path.join(folder, "README.md"), "w", encoding="utf-8") as file:
            file.write(page)
    except (AutotuneError, OSError) as error:
        print(f"release_db.py: {error}", file=sys.stderr)
        return 2
    for reason, count in released.left_out.items():
        print(f"{count:,} left out: {reason}")
    print(f"{args.out}: {released.measurements:,} measurements, {released.decided:,} decided, {size(large)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
