"""Ladders and the models of their rungs: where they come from, what they weigh, and how they are loaded.

``ladder_file``, ``predict`` and the files they read with need no tensor library; ``loader`` and ``int8`` do.
"""
