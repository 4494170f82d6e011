"""`python -m genmill.cli`, where the `genmill` script is not on the PATH."""

from genmill.cli import main

main()
