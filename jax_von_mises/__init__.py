"""Von Mises angles for JAX: exact, without rejection, as fast as the hardware allows.

>>> import jax
>>> from jax_von_mises import sample_von_mises
>>> angles = sample_von_mises(jax.random.key(0), loc=0.5, concentration=4.0, shape=(1_000,))

========================  =====================================================================
`sample_von_mises`        angles of any shape and dtype, under any transformation of JAX
`sample_block`            any slice of a key's endless stream of angles
========================  =====================================================================
"""

from jax_von_mises.sampler import sample_block as sample_block
from jax_von_mises.sampler import sample_von_mises as sample_von_mises

__all__ = ["sample_block", "sample_von_mises"]
__version__ = "0.1.0"
