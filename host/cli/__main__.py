"""`python -m host.cli`, the same as `aeonflow`."""

from . import main

main()
