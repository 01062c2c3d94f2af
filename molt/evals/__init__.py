"""Tables of how good and how dear a switch is: what ``molt eval`` prints, and what the published pages are made of.

Reading order: ``result`` (what a table is, as JSON), ``statistics`` (figures over documents), ``switch_flops``,
``setup`` (rungs, maps and documents at hand), ``gates`` (what must hold before any figure counts), ``scoring`` (one
cache on one document), ``caches`` (every cache that is judged), then one file for each table: ``handoff``, ``drift``,
``ablation``, ``switch_cost``, ``residuals``. ``text_tables`` prints, ``command`` is the command line.
"""

import molt.openmp  # noqa: F401  before torch
