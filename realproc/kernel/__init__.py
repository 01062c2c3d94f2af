"""What the kernel offers: control groups, memory pressure and its signals, the machine, limits of a run."""
