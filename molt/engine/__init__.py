"""How one generation is stepped: a real engine and a modelled one behind one protocol.

Importing this package decides how OpenMP threads wait, so it must come before the first ``import torch``. By
default libgomp spins between parallel regions; a decode step is hundreds of short regions, and on a machine
whose cores are shared (the case this project is about) the spinning of one process is stolen from the others
and from its own main thread. (A step of pico's tier0 beside a busy neighbour on two cores: 5.7 ms, spinning
12.8 ms.) Whoever sets ``OMP_WAIT_POLICY`` keeps what they set.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
