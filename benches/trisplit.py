"""One cell of trisplit, or the grid of ways and delays: `aeonflow bench trisplit` with the same options (METHOD.md)."""

from __future__ import annotations

import sys

from host.cli import main

if __name__ == "__main__":
    sys.argv[1:1] = ["bench", "trisplit"]
    if "--json" not in sys.argv:
        sys.argv.append("--json")
    main()
