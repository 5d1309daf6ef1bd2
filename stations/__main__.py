"""`python -m stations VERB …`: the commands that need station code, run as children of the host's.

A verb is a module of `stations.verbs` with `main(argv) -> exit code`; only the one asked for is imported.
"""

from __future__ import annotations

import importlib
import sys

# verb → module of stations.verbs
VERBS = {
    "station": "station",
    "import": "import_model",
    "models": "models",
    "card": "card",
    "warm": "warm",
    "early": "early",
    "seeded": "seeded",
}


def main(argv: list[str]) -> int:
    """Run the verb named first; returns its exit code, 2 when there is no such verb."""
    if not argv or argv[0] not in VERBS:
        print(f"usage: python -m stations {{{','.join(VERBS)}}} …", file=sys.stderr)
        return 2
    module = importlib.import_module(f"stations.verbs.{VERBS[argv[0]]}")
    code: int = module.main(argv[1:])
    return code


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except KeyboardInterrupt:  # while modules are still imported
        sys.exit(130)
