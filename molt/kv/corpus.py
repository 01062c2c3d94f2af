"""``python -m molt.kv.corpus FOLDER``: the documented name of ``molt.fitting.documents``."""

from molt.fitting.documents import command
from molt.program import run_command

if __name__ == "__main__":
    run_command(command)
