"""``python -m molt.kv.fit LADDER``: the same as ``molt fit``."""

from molt.fitting.fit import command
from molt.program import run_command

if __name__ == "__main__":
    run_command(command)
