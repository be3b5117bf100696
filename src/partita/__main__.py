"""`python -m partita`: the command line, also for launchers such as `torchrun -m partita`."""

import sys

from partita.cli import main

if __name__ == "__main__":
    sys.exit(main())
