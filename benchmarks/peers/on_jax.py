"""Define the peers that JAX compiles, including this package."""

import os
from typing import ClassVar
from unittest import mock

import numpy as np

from benchmarks.cases import ARC, LOCS, TASKS, WEIGHTS
from benchmarks.peers.common import BENCH, NO_DERIVATIVE, OURS, SEED, Peer, Ready, Unavailable, lacks, rotating
from benchmarks.timing import Competitor

__all__ = ["TFP", "JaxNormal", "JaxScipy", "NumPyro", "Ours", "OursByKernels", "OursEager"]


def parameters(case):
    """Return `loc` and `concentration` on the device, to be passed as arguments, since constants could be folded."""
    import jax
    import jax.numpy as jnp

    if case.dtype == "float64" and not jax.config.jax_enable_x64:
        raise Unavailable("float64 needs JAX_ENABLE_X64=1")
    return jnp.zeros((), case.dtype), jnp.asarray(case.concentrations, case.dtype)


def of_keys(case, function, read=np.asarray):
    """Compile ``function(key, loc, concentration)`` and give every call a new key."""
    import jax

    arguments = parameters(case)
    try:
        key = jax.random.key(SEED, impl=case.key_impl)
    except ValueError as error:
        raise Unavailable(f"this JAX has no {case.key_impl}") from error
    compiled = jax.jit(function)
    competitor = Competitor(
        draw=lambda key: compiled(key, *arguments),
        fresh=lambda i: jax.block_until_ready(jax.random.fold_in(key, i)),
        wait=jax.block_until_ready,
    )
    return Ready(
        competitor,
        read,
        device=jax.default_backend(),
    )


def gradient_of(case, sample):
    """Compile the derivative of the sum of the draws with respect to the concentration."""
    import jax

    return of_keys(case, jax.grad(lambda key, loc, concentration: sample(key, loc, concentration).sum(), argnums=2))


def of_arrays(case, function):
    """Compile ``function(x, loc, concentration)``; its calls cycle through a few arrays."""
    import jax
    import jax.numpy as jnp

    arguments = parameters(case)
    compiled = jax.jit(function)

    def give(array):
        return jax.block_until_ready(jnp.asarray(array, case.dtype))

    fresh = rotating(case, give)
    return Ready(
        Competitor(lambda x: compiled(x, *arguments), fresh, jax.block_until_ready),
        give=give,
        device=jax.default_backend(),
    )


class Ours(Peer):
    """The package as a user calls it, with the default `method`."""

    name, label = OURS, "jax_von_mises"

    def package(self):
        """Import the package."""
        try:
            import jax_von_mises
        except ImportError as error:
            raise Unavailable(f"jax_von_mises does not import: {error}") from error
        return jax_von_mises

    def sampler(self, case):
        """Return the sampler with the shape and the dtype of `case`."""
        sample = self.package().sample_von_mises
        return lambda key, loc, concentration: sample(key, loc, concentration, (case.count,), case.dtype)

    def sample(self, case):
        """Prepare draws."""
        return of_keys(case, self.sampler(case))

    def gradient(self, case):
        """Prepare the derivative of draws."""
        return gradient_of(case, self.sampler(case))

    def truncated(self, case):
        """Prepare draws from an arc."""
        sample = self.package().sample_truncated
        return of_keys(case, lambda key, loc, k: sample(key, loc, k, *ARC, (case.count,), case.dtype))

    def icdf(self, case):
        """Prepare quantiles."""
        return of_arrays(case, self.package().icdf)

    def cdf(self, case):
        """Prepare probabilities."""
        return of_arrays(case, self.package().cdf)

    def log_prob(self, case):
        """Prepare log densities."""
        return of_arrays(case, self.package().log_prob)

    def mixture(self, case):
        """Prepare log densities of a mixture."""
        package = self.package()

        def log_prob(x, loc, concentration):
            parts = package.VonMises(loc + np.array(LOCS, case.dtype), concentration)
            return package.Mixture(probs=np.array(WEIGHTS, case.dtype), components=parts).log_prob(x)

        return of_arrays(case, log_prob)

    def fit(self, case):
        """Prepare estimates for a batch of data sets."""
        fit = self.package().fit
        return of_arrays(case, lambda x, loc, concentration: fit(x, axis=1))


class OursByKernels(Peer):
    """The package with its CUDA kernels turned on."""

    name, label = "kernels", "jax_von_mises, CUDA kernels"
    lacks: ClassVar = lacks("the kernels only draw", *(task for task in TASKS if task not in ("sample", "gradient")))

    def sample(self, case):
        """Prepare draws."""
        return of_keys(case, self.sampler(case))

    def gradient(self, case):
        """Prepare the derivative of draws."""
        return gradient_of(case, self.sampler(case))

    def sampler(self, case):
        """Return the sampler by the kernels, with the shape and the dtype of `case`."""
        import jax

        if jax.default_backend() != "gpu":
            raise Unavailable("JAX does not run on a GPU")
        sample = Ours().package().sample_von_mises
        from jax_von_mises import environment
        from jax_von_mises.sampling import cuda

        if not case.per_draw or case.count < cuda.SMALLEST or case.dtype not in cuda.KERNEL_DTYPES:
            raise Unavailable("the kernels do not draw this case")
        if why := cuda.fault("threefry2x32"):
            raise Unavailable(f"the kernels are not used: {why}")

        def drawn(key, loc, concentration):
            with mock.patch.dict(os.environ, {environment.CUDA_KERNELS: "1"}):
                return sample(key, loc, concentration, (case.count,), case.dtype)

        return drawn


class OursEager(Peer):
    """The package's sampler outside `jax.jit`, where the package chooses how to compile its program."""

    name, label = "eager", "jax_von_mises, no `jit`"
    lacks: ClassVar = lacks("only draws are timed", *(task for task in TASKS if task != "sample"))

    def sample(self, case):
        """Prepare draws."""
        ready = of_keys(case, lambda key, loc, concentration: key)
        arguments, sample = parameters(case), Ours().sampler(case)
        return ready._replace(competitor=ready.competitor._replace(draw=lambda key: sample(key, *arguments)))


class JaxNormal(Peer):
    """JAX's normal sampler, which every JAX user knows; it draws from another distribution."""

    name, label = "normal", "jax.random.normal"
    lacks: ClassVar = lacks("only its draws are compared", "icdf", "cdf", "log_prob", "mixture", "fit", "gradient")

    def sample(self, case):
        """Prepare draws."""
        import jax

        # A normal distribution with standard deviation 1 / sqrt(concentration) approximates the von Mises distribution.
        scale = np.sqrt(case.concentrations)
        return of_keys(
            case,
            lambda key, loc, concentration: jax.random.normal(key, (case.count,), case.dtype),
            lambda result: np.asarray(result) / scale,
        )

    def truncated(self, case):
        """Prepare draws of `jax.random.truncated_normal` between the same bounds, scaled to standard deviations."""
        import jax

        def draw(key, loc, concentration):
            low, high = (x * jax.numpy.sqrt(concentration) for x in ARC)
            return jax.random.truncated_normal(key, low, high, (case.count,), case.dtype)

        return of_keys(case, draw)


class JaxScipy(Peer):
    """``jax.scipy.stats.vonmises``, which has only a density; the mixture is written by hand."""

    name, label = "jax_scipy", "jax.scipy.stats"
    lacks: ClassVar = lacks("has only the density", "sample", "truncated", "icdf", "cdf", "fit", "gradient")

    def log_prob(self, case):
        """Prepare log densities."""
        from jax.scipy.stats import vonmises

        return of_arrays(case, lambda x, loc, concentration: vonmises.logpdf(x - loc, concentration))

    def mixture(self, case):
        """Prepare log densities of a mixture."""
        import jax.numpy as jnp
        from jax.scipy.stats import vonmises

        def log_prob(x, loc, concentration):
            first, second = (
                np.log(weight) + vonmises.logpdf(x - loc - place, concentration)
                for weight, place in zip(WEIGHTS, LOCS, strict=True)
            )
            return jnp.logaddexp(first, second)

        return of_arrays(case, log_prob)


class WithClass(Peer):
    """A library with a class `VonMises`; the shape of its samples includes that of the parameters."""

    def library(self):
        """Import the library's distributions."""
        raise NotImplementedError

    def distribution(self):
        """Return the library's von Mises class."""
        return self.library().VonMises

    def sampler(self, case):
        """Return ``sample(key, loc, concentration)`` with the shape of `case`."""
        distribution = self.distribution()
        shape = () if case.per_draw else (case.count,)
        return lambda key, loc, concentration: distribution(loc, concentration).sample(key, shape)

    def sample(self, case):
        """Prepare draws."""
        return of_keys(case, self.sampler(case))

    def log_prob(self, case):
        """Prepare log densities."""
        distribution = self.distribution()
        return of_arrays(case, lambda x, loc, concentration: distribution(loc, concentration).log_prob(x))

    def mixture(self, case):
        """Prepare log densities of a mixture."""
        module = self.library()

        def log_prob(x, loc, concentration):
            parts = module.VonMises(loc + np.array(LOCS, case.dtype), concentration)
            return module.MixtureSameFamily(module.Categorical(probs=np.array(WEIGHTS, case.dtype)), parts).log_prob(x)

        return of_arrays(case, log_prob)


class NumPyro(WithClass):
    """NumPyro's ``VonMises``: rejection in a loop over the complete array."""

    name, label = "numpyro", "NumPyro"
    lacks: ClassVar = {
        **lacks("not implemented for this distribution", "truncated", "icdf", "cdf"),
        **lacks("does not fit this distribution", "fit"),
        **lacks(NO_DERIVATIVE, "gradient"),
    }
    # The rate does not depend on the number of draws. Each draw needs as much memory as eleven float32 numbers.
    most: ClassVar = {"sample": 2**22}
    most_ever: ClassVar = {"sample": 2**26}

    def library(self):
        """Import the library's distributions."""
        try:
            from numpyro import distributions
        except ImportError as error:
            raise Unavailable(f"not installed: {BENCH}") from error
        return distributions


class TFP(WithClass):
    """TensorFlow Probability on JAX, which draws as NumPyro does and differentiates draws implicitly."""

    name, label = "tfp", "TensorFlow Probability"
    lacks: ClassVar = {
        **lacks("not implemented for this distribution", "truncated", "icdf"),
        **lacks("does not fit this distribution", "fit"),
    }
    most: ClassVar = {"sample": 2**22}
    most_ever: ClassVar = {"sample": 2**26}

    def library(self):
        """Import the library's distributions."""
        try:
            from tensorflow_probability.substrates.jax import distributions
        except Exception as error:  # a release incompatible with the installed JAX fails in many ways on import
            reason = "not installed" if isinstance(error, ModuleNotFoundError) else f"broken: {type(error).__name__}"
            raise Unavailable(f"{reason}: pip install tfp-nightly") from error
        return distributions

    def sampler(self, case):
        """Return the sampler; its seed is an array of words."""
        import jax

        if case.key_impl != "threefry2x32":
            raise Unavailable("turns every seed into a threefry2x32 key")
        distribution = self.distribution()
        shape = () if case.per_draw else (case.count,)
        return lambda key, loc, concentration: distribution(loc, concentration).sample(
            shape, seed=jax.random.key_data(key)
        )

    def gradient(self, case):
        """Prepare the derivative of draws."""
        return gradient_of(case, self.sampler(case))

    def cdf(self, case):
        """Prepare probabilities."""
        distribution = self.distribution()
        return of_arrays(case, lambda x, loc, concentration: distribution(loc, concentration).cdf(x))
