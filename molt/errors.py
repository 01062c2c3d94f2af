"""What is raised when something the user handed us is wrong.

The message is one line that names the file, the place and the value; commands print it and exit with
status 2.
"""

from __future__ import annotations


class InputError(ValueError):
    """A file, an option or a value from outside cannot be used."""


class LadderError(InputError):
    """A ladder, or the weights of one of its rungs, cannot be used."""


class NotFetchedError(LadderError):
    """The weights of a rung are known, but not on this machine, or not whole."""
