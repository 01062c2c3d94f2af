"""The streaming server: one live world behind an OpenAI-compatible API, which reports every lever to the client.

Reading order: ``limits``, ``request_bodies`` (what a request may contain), ``prompts`` (text to tokens),
``templates`` (the model's own layout of a chat), ``answer`` (records of a world to the parts of one answer),
``chunks`` (those parts as objects of the API), ``bridge`` (joins the world's thread and the event loop), ``access``
(who may use the server), ``answering`` and ``admin`` (the handlers), ``app`` (routes), ``listen`` (sockets, signals)
and ``command``. No tensor library is imported: the engine is a child process of the world's.
"""
