"""How OpenMP threads wait. Import this before the first ``import torch``; every package of Molt that uses torch does.

By default libgomp spins between parallel regions; a decode step is hundreds of short regions, and on a machine whose
cores are shared (the case this project is about) the spinning of one process is stolen from the others and from its
own main thread. (A step of pico's tier0 beside a busy neighbour on two cores: 5.7 ms, spinning 12.8 ms.) Where
``OMP_WAIT_POLICY`` is set already, it stays as it is.
"""

import os

os.environ.setdefault("OMP_WAIT_POLICY", "passive")
