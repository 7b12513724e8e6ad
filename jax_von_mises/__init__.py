"""Fast, accurate von Mises distributions for JAX, with rejection-free, differentiable sampling.

>>> import jax
>>> from jax_von_mises import sample_von_mises
>>> angles = sample_von_mises(jax.random.key(0), loc=0.5, concentration=4.0, shape=(1_000,))

========================  =====================================================================
`sample_von_mises`        angles of any shape and dtype, under any JAX transformation
`sample_block`            any slice of a key's stream of 2^64 angles
`sample_pmap`             one draw on several devices, with `jax.pmap`
`sample_shard`            this device's part of a draw, inside `jax.shard_map` or `jax.pmap`
`VonMises`                the distribution as an object, with the method names of NumPyro and TFP
`log_prob` `prob`         the log density and the density
`cdf` `sf` `icdf` `isf`   probabilities and quantiles; `log_cdf` and `log_sf` deep in the tails
`mean` `mode`             also `variance`, `stddev`, `entropy` and `kl_divergence`
`fit` `standard_errors`   maximum likelihood estimates and their standard errors
`statistics`              tests of uniformity, fit and correlation; interval of the mean direction
`VonMisesFisher`          directions in any dimension; also `sample_von_mises_fisher`
`Bingham` `Kent`          axes; directions with elliptic contours; rotations in `rotations`
`CircularDistribution`    any density on the circle; also `SineSkewed`
`Mixture` `Torus`         mixtures; several independent angles
`SineBivariateVonMises`   pairs of dependent angles; also `CosineBivariateVonMises`
`sample_antithetic`       angles in mirrored pairs
`sample_stratified`       one angle in each stratum of equal probability
`sample_truncated`        angles of the distribution restricted to an arc
`sample_batches`          a long stream batch by batch; `batched_apply` for functions of long arrays
`prefetch_to_host`        copies to NumPy in the background
`write_samples`           a stream in a .npy file or a Zarr store; interrupted runs can be resumed
`verify_samples`          comparison of such a file or store with its checksums
`derive_key`              keys from names and numbers
`runtime`                 JAX settings, compilation cache, warm-up, memory, diagnosis
========================  =====================================================================
"""

import importlib
from typing import TYPE_CHECKING, Any

from jax_von_mises.version import __version__ as __version__

__all__ = [
    "Bingham",
    "Cardioid",
    "CircularDistribution",
    "CosineBivariateVonMises",
    "Kent",
    "Mixture",
    "ProjectedNormal",
    "SineBivariateVonMises",
    "SineSkewed",
    "Torus",
    "TruncatedVonMises",
    "VonMises",
    "VonMisesFisher",
    "WrappedCauchy",
    "WrappedNormal",
    "batched_apply",
    "cdf",
    "derive_key",
    "entropy",
    "fit",
    "icdf",
    "initialize_compilation_cache",
    "isf",
    "kl_divergence",
    "log_cdf",
    "log_prob",
    "log_sf",
    "mean",
    "mode",
    "prefetch_to_host",
    "prob",
    "runtime",
    "sample_antithetic",
    "sample_batches",
    "sample_block",
    "sample_pmap",
    "sample_shard",
    "sample_stratified",
    "sample_truncated",
    "sample_von_mises",
    "sample_von_mises_fisher",
    "sf",
    "standard_errors",
    "statistics",
    "stddev",
    "variance",
    "verify_samples",
    "write_samples",
]

if TYPE_CHECKING:
    from jax_von_mises.public import *
else:

    def __getattr__(name: str) -> Any:
        """Import all public names at the first use of one, so that ``jax-von-mises --help`` does not wait for JAX."""
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        public = importlib.import_module("jax_von_mises.public")
        globals().update((each, getattr(public, each)) for each in __all__)
        return globals()[name]


def __dir__() -> list[str]:
    """Return the public names, `numpyro` if it was imported, and the names that start with two underscores."""
    others = [name for name in globals() if name == "numpyro" or (name.startswith("__") and name != "__getattr__")]
    return [*__all__, *others]
