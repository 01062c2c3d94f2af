"""Fitting maps, offline: from documents to the map files that carry a cache between two rungs.

Reading order: ``documents`` (texts to fit on), ``collect`` (every rung prefills the same windows), ``sums`` and
``checkpoint`` (what is kept of that), ``ridge`` (the solve), ``holdout`` (what a map leaves unexplained), ``fit``
(all of it, for a ladder: ``molt fit``).
"""

import molt.openmp  # noqa: F401  before torch
