"""The streaming server: one live world behind an OpenAI-compatible API, with every lever visible on the wire.

Reading order: ``limits``, ``wire`` (what may be asked), ``prompts`` (text to tokens), ``answer`` (records of a world to
the parts of one answer), ``chunks`` (those parts as the API's objects), ``hub`` (joins the world's thread and the event
loop), ``door`` (who is let in), ``app`` (routes), ``run`` (sockets, signals) and ``command``. No tensor library is
imported: the engine is a child process of the world's.
"""
