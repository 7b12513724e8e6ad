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
`VonMisesFisher`          directions in any dimension; also `sample_von_mises_fisher`
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

from jax_von_mises import runtime as runtime
from jax_von_mises.distributions.any_density import CircularDistribution as CircularDistribution
from jax_von_mises.distributions.mixture import Mixture as Mixture
from jax_von_mises.distributions.pairs import CosineBivariateVonMises as CosineBivariateVonMises
from jax_von_mises.distributions.pairs import SineBivariateVonMises as SineBivariateVonMises
from jax_von_mises.distributions.skewed import SineSkewed as SineSkewed
from jax_von_mises.distributions.sphere import VonMisesFisher as VonMisesFisher
from jax_von_mises.distributions.symmetric import Cardioid as Cardioid
from jax_von_mises.distributions.symmetric import WrappedCauchy as WrappedCauchy
from jax_von_mises.distributions.symmetric import WrappedNormal as WrappedNormal
from jax_von_mises.distributions.torus import Torus as Torus
from jax_von_mises.distributions.von_mises import VonMises as VonMises
from jax_von_mises.functions.fitting import fit as fit
from jax_von_mises.functions.fitting import standard_errors as standard_errors
from jax_von_mises.functions.von_mises import cdf as cdf
from jax_von_mises.functions.von_mises import entropy as entropy
from jax_von_mises.functions.von_mises import icdf as icdf
from jax_von_mises.functions.von_mises import isf as isf
from jax_von_mises.functions.von_mises import kl_divergence as kl_divergence
from jax_von_mises.functions.von_mises import log_cdf as log_cdf
from jax_von_mises.functions.von_mises import log_prob as log_prob
from jax_von_mises.functions.von_mises import log_sf as log_sf
from jax_von_mises.functions.von_mises import mean as mean
from jax_von_mises.functions.von_mises import mode as mode
from jax_von_mises.functions.von_mises import prob as prob
from jax_von_mises.functions.von_mises import sf as sf
from jax_von_mises.functions.von_mises import stddev as stddev
from jax_von_mises.functions.von_mises import variance as variance
from jax_von_mises.runtime import initialize_compilation_cache as initialize_compilation_cache
from jax_von_mises.sampling.sampler import sample_block as sample_block
from jax_von_mises.sampling.sampler import sample_von_mises as sample_von_mises
from jax_von_mises.sampling.sharded import sample_pmap as sample_pmap
from jax_von_mises.sampling.sharded import sample_shard as sample_shard
from jax_von_mises.sampling.sphere import sample_von_mises_fisher as sample_von_mises_fisher
from jax_von_mises.sampling.truncated import sample_truncated as sample_truncated
from jax_von_mises.sampling.variance_reduction import sample_antithetic as sample_antithetic
from jax_von_mises.sampling.variance_reduction import sample_stratified as sample_stratified
from jax_von_mises.streams.batches import batched_apply as batched_apply
from jax_von_mises.streams.batches import prefetch_to_host as prefetch_to_host
from jax_von_mises.streams.batches import sample_batches as sample_batches
from jax_von_mises.streams.keys import derive_key as derive_key
from jax_von_mises.streams.writer import verify_samples as verify_samples
from jax_von_mises.streams.writer import write_samples as write_samples
from jax_von_mises.version import __version__ as __version__

__all__ = [
    "Cardioid",
    "CircularDistribution",
    "CosineBivariateVonMises",
    "Mixture",
    "SineBivariateVonMises",
    "SineSkewed",
    "Torus",
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
    "stddev",
    "variance",
    "verify_samples",
    "write_samples",
]


def __dir__() -> list[str]:
    """Return the public names, `numpyro` if it was imported, and the names that start with two underscores."""
    return [name for name in globals() if name in __all__ or name == "numpyro" or name.startswith("__")]
