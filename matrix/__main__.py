"""`megatrix` and `python -m matrix`."""

import signal
import sys

# While the command line is imported, Ctrl-C ends the process without a traceback. Where it is ignored it stays so.
if heeded := signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)

from matrix.cli.main import main


def start() -> int:
    """Run the command line; return its exit status."""
    if heeded:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return main()


if __name__ == "__main__":
    sys.exit(start())
