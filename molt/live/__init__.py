"""The real world: real time, real memory, an engine in a process of its own. The parent imports no tensor library."""
