"""What the kernel offers: control groups, pressure and its signals, what a machine is, and ceilings for a run."""
