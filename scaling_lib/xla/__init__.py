"""Everything that imports JAX: simulated devices, the TPU compiler, measurements. Import the module you need.

Importing this package loads nothing. Where the machine has no TPU it sets environment variables that keep libtpu, the TPU
compiler, quiet, and let several processes use it at once. What you set yourself stays, and no accelerator is hidden.
"""

from scaling_lib.xla import libtpu

libtpu.prepare()
