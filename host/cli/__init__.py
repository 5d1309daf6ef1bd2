"""The command line: `aeonflow COMMAND`. Thin: each command parses, calls the host or a station verb, and prints.

Answers go to stdout and nothing else does; progress, summaries and errors go to stderr. Modules of this package import
what is heavy inside the command that needs it, so that `aeonflow --help` answers at once.
"""

from __future__ import annotations

import sys


def main() -> None:
    """Entry point of `aeonflow`; ends the process with the command's exit code."""
    try:
        from .failure import run_app

        code = run_app(sys.argv[1:])
    except KeyboardInterrupt:  # while modules are still imported, or on the way out
        print("interrupted", file=sys.stderr)
        code = 130
    sys.exit(code)
