"""Ladders and the models of their rungs: where they come from, what they weigh, and how they are loaded.

``ladder_file``, ``predict``, ``image`` and the files they read with need no tensor library. ``loader`` fills an
``arena`` with a rung's weights and gives a ``decoder`` of ``matrix`` objects over it. ``fetching`` brings weights to
this machine; ``pico`` is the ladder that ships inside.
"""

import molt.openmp  # noqa: F401  before torch
