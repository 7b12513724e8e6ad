"""Draw from densities without a closed quantile function, and compute their log densities."""

import numpy as np

from benchmarks import peers
from benchmarks.competitors import of_arrays, of_keys
from benchmarks.results import OURS
from benchmarks.runner import Case

__all__ = ["cases"]

ANGLES = "sample_von_mises"


def three_modes(x, k):
    """Return an unnormalised log density with three modes."""
    import jax.numpy as jnp

    return jnp.log(sum(jnp.exp(k * (jnp.cos(x - centre) - 1)) for centre in (-2.0, 0.2, 2.0)))


def cases():
    """Return the cases."""
    import jax.numpy as jnp

    import jax_von_mises as jvm

    weights, places = (np.array(values, np.float32) for values in ((0.2, 0.3, 0.5), (-2.0, 0.2, 2.0)))
    made = {
        "`CircularDistribution`, three modes": (lambda k: jvm.CircularDistribution(three_modes, k), 30.0),
        "`CircularDistribution`, von Mises": (lambda k: jvm.CircularDistribution(lambda x, k: k * jnp.cos(x), k), 5.0),
        "`SineSkewed` von Mises": (lambda k: jvm.SineSkewed(jvm.VonMises(0.0, k), 0.7), 5.0),
        "`WrappedCauchy`": (lambda rho: jvm.WrappedCauchy(0.0, rho), 0.9),
        "`WrappedNormal`": (lambda scale: jvm.WrappedNormal(0.0, scale), 0.5),
        "`Mixture` of three": (
            lambda k: jvm.Mixture(probs=weights, components=jvm.VonMises(places, k)),
            5.0,
        ),
    }

    def draws(of_parameter, parameter):
        return {
            OURS: lambda count: of_keys(lambda key, k: of_parameter(k).sample(key, (count,)), parameter),
            ANGLES: lambda count: of_keys(lambda key, k: jvm.sample_von_mises(key, 0.0, k, (count,)), parameter),
        }

    def densities(of_parameter, parameter):
        def of(function):
            return lambda n: of_arrays(function, peers.angles(n, "float32"), "float32", parameter)

        return {
            OURS: of(lambda x, k: of_parameter(k).log_prob(x)),
            "the von Mises density": of(lambda x, k: jvm.log_prob(x, 0.0, k)),
        }

    return [
        *(Case(name, 2**18, draws(*how), gpu=2**6) for name, how in made.items()),
        *(
            Case(f"{name}, `log_prob`", 2**18, densities(*how), "points", gpu=2**6)
            for name, how in list(made.items())[:3]
        ),
    ]
