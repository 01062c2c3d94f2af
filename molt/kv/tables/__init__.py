"""Tables of how good and how dear a switch is: what ``molt eval`` prints, and what the published pages are made of.

Reading order: ``result`` (what a table is, as JSON), ``summary`` (figures over documents), ``flops``, ``bench``
(rungs, maps and documents at hand), ``gates`` (what must hold before any figure counts), ``judging`` (one cache
on one document), ``caches`` (every cache that is judged), then one file for each table: ``handoff``, ``drift``,
``ablation``, ``switch_cost``, ``residuals``. ``show`` prints, ``command`` is the command line.
"""
