# SPDX-License-Identifier: Apache-2.0
"""Print, for each host unit of a compilation database, the command that has the compiler check it and make no code."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from source import ROOT

OURS = (f"{ROOT}/cpp/", f"{ROOT}/python/")


def main() -> None:
    for unit in json.loads(Path(sys.argv[1]).read_text(encoding="utf-8")):
        if unit["file"].startswith(OURS):
            print(f"cd {unit['directory']} && {unit['command']} -fsyntax-only -Werror -O0")


if __name__ == "__main__":
    main()
