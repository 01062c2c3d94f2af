"""Molt: change the model between two tokens and take the attention state along."""

__version__ = "0.1.0"
