"""How a step of a job ends, and what it says about it.

Exit status, the same for every step:

  0   done
  1   the work itself failed: a build script, a test
  2   what was asked for cannot be done as written: a recipe that does not render, an output that does not exist, a
      bad argument; asking again gives the same answer
  70  the engine or this step broke; that is never the fault of the package

The last line on standard error of a step that did not end with 0 names the step, the object and the reason. What the
engine said in full stands above it. There is never a traceback for 1 and 2.

Steps leave with `os._exit`: the engine's threads may still hold the interpreter, and its own shutdown can abort.
"""

import os
import sys
import traceback

FAILED = 1
REFUSED = 2
BROKEN = 70


class Failed(Exception):
    """The work failed."""


class Refused(Exception):
    """The work cannot be done as asked."""


def one_line(text, limit=400):
    """The text without line breaks and terminal colours, cut to `limit` characters."""
    import re

    plain = re.sub(r"\x1b\[[0-9;]*[A-Za-z]", "", str(text))
    plain = " ".join(plain.split())
    return plain if len(plain) <= limit else plain[: limit - 1] + "…"


def leave(step, main):
    """Runs `main` and ends the process with the status that fits."""
    try:
        main()
        status = 0
    except Refused as error:
        print(f"{step}: refused: {one_line(error)}", file=sys.stderr)
        status = REFUSED
    except Failed as error:
        print(f"{step}: failed: {one_line(error)}", file=sys.stderr)
        status = FAILED
    except SystemExit as error:  # argparse has said what is wrong
        status = error.code if isinstance(error.code, int) else REFUSED
    except BaseException as error:  # noqa: BLE001 - the last resort of the process
        traceback.print_exc()
        print(f"{step}: broken: {type(error).__name__}: {one_line(error)}", file=sys.stderr)
        status = BROKEN
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)
