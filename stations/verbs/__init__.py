"""The verbs of `python -m stations`, one module each: `main(argv) -> exit code`."""
