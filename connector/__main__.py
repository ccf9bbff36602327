"""`python -m connector` is the command `connector`."""

from connector.cli import main

main()
