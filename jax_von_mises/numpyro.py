"""Provide the distributions of the package as NumPyro distributions, for MCMC and SVI.

Each public class whose parameters are arrays has a class of the same name here. It takes the same arguments, and has
those methods that NumPyro knows. Draws are differentiable with respect to all parameters, so that every class can be
used in a guide. `VonMises` is a drop-in replacement for ``numpyro.distributions.VonMises``, which adds `cdf`, `icdf`,
`entropy` and `kl_divergence`, and allows a concentration of 0. ``kl_divergence(p, q)`` also compares different
distributions of one angle, and takes ``Uniform(-pi, pi)`` as `q`. `OfDistribution` serves all other distributions, such
as mixtures.

This module requires NumPyro: ``pip install "jax_von_mises[numpyro]"``.

>>> import jax, numpyro
>>> from jax_von_mises.numpyro import SineBivariateVonMises, VonMises
>>> with numpyro.handlers.seed(rng_seed=0):
...     direction = numpyro.sample("direction", VonMises(0.5, 4.0))
...     pair = numpyro.sample("pair", SineBivariateVonMises(-1.1, 2.4, 5.0, 6.0, weighted_correlation=0.5))
"""

import inspect
import itertools
import re
import textwrap
import types
import typing
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.typing import ArrayLike

from jax_von_mises import arguments
from jax_von_mises.engine import base
from jax_von_mises.numerics.circle import with_derivative_of
from jax_von_mises.numerics.elementary import clip

try:
    # These absolute imports refer to the library NumPyro, not to this module.
    from numpyro import distributions
    from numpyro.distributions import Distribution, constraints, kl_divergence
    from numpyro.distributions.util import validate_sample
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "numpyro":
        raise
    raise ImportError(
        'jax_von_mises.numpyro needs NumPyro, which is not installed: pip install "jax_von_mises[numpyro]".'
    ) from error

__all__ = ["OfDistribution"]  # and the classes that are made below

# NumPyro's name for the values that each rule of `base.RULES` allows.
CONSTRAINTS = {
    "angle": constraints.real,
    "real": constraints.real,
    "vector": constraints.real_vector,
    "matrix": constraints.independent(constraints.interval(-base.LARGEST_ELEMENT, base.LARGEST_ELEMENT), 2),
    "nonnegative": constraints.nonnegative,
    "nonnegative and finite": constraints.nonnegative,
    "direction": constraints.sphere,
    "length": constraints.unit_interval,
    "half length": constraints.interval(0.0, 0.5),
    "share": constraints.interval(-1.0, 1.0),
}
# The constraints of NumPyro's bivariate class, where the package allows more.
NARROWER = {"phi_loc": constraints.circular, "psi_loc": constraints.circular}


class Space(NamedTuple):
    """Where the draws lie."""

    support: Any
    advice: str
    """What a docstring says about it."""


ANGLE = Space(
    constraints.circular,
    "The support is [-pi, pi], and `cdf` counts from -pi. For a latent variable with HMC or NUTS, use "
    "``numpyro.infer.reparam.CircularReparam``, as for every distribution on the circle.",
)
ANGLES = Space(
    constraints.independent(constraints.circular, 1),
    "The support is [-pi, pi] for each angle along a last axis. With `validate_args`, the locations must lie there, "
    "too.",
)
VECTOR = Space(
    constraints.sphere,
    "The support is the unit sphere. With `validate_args`, vectors among the parameters must have the length 1; "
    "otherwise, they are normalised. Use the class as a likelihood or in a guide. HMC and NUTS need a flat space. For "
    "a latent variable, use ``numpyro.distributions.ProjectedNormal``, or a vector of normal components that the model "
    "divides by its length.",
)
REPARAMETERISED = "Its draws are reparameterised in all parameters."
VALIDATION = """validate_args : bool, optional
    Raise ValueError for parameters outside `arg_constraints`. Warn about values outside the support, and return a
    density of 0 for them. Without validation, invalid parameters give NaN. The default is NumPyro's setting.
"""


class OfClass(Distribution):
    """Base class of the classes that are made from the class `OF` of the package, whose methods theirs call."""

    OF: ClassVar[type[base.Parametric]]

    def _take(self, own: base.Parametric, validate_args: bool | None) -> None:
        """Take the parameters of a distribution, in the constructor."""
        # NumPyro checks the values as given. Under jit, they are unknown as soon as JAX has converted them.
        for parameter in own.PARAMETERS:
            setattr(self, parameter.name, getattr(own, parameter.name))
        super().__init__(batch_shape=own.batch_shape, event_shape=own.event_shape, validate_args=validate_args)

    def _own(self) -> Any:
        return with_parameters_of(self, self.OF)

    def sample(self, key: ArrayLike, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        """Return draws, those of the method of the class of the same name in `jax_von_mises`."""
        draws: jax.Array = self._own().sample(key, sample_shape)
        return draws

    def log_prob(self, value: ArrayLike) -> jax.Array:
        """Return the logarithm of the density."""
        caller = f"{type(self).__name__}.log_prob"
        shape = np.shape(arguments.parameter(caller, "value", value))
        # Rows of a rotation matrix would be in the support of quaternions, too.
        if self.event_shape and shape[-1:] != self.event_shape:
            raise ValueError(
                f"{caller}: value has shape {shape}, but its last axis must have the length {self.event_shape[0]}."
            )
        density: jax.Array = self._log_prob(value)
        return density

    @validate_sample
    def _log_prob(self, value: ArrayLike) -> jax.Array:
        density: jax.Array = self._own().log_prob(value)
        return density


class Members:
    """What the classes have besides, where `OF` has a method of the name."""

    _own: Any
    batch_shape: tuple[int, ...]
    event_shape: tuple[int, ...]

    @property
    def mean(self) -> jax.Array:
        """The mean direction of each angle in [-pi, pi), the mean vector, inside the sphere, or the mean rotation."""
        found: jax.Array = self._own().mean()
        # Inside `vmap`, NumPyro keeps the batch shape from outside.
        if found.shape[found.ndim - len(self.event_shape) :] != self.event_shape:
            raise NotImplementedError(f"{type(self).__name__}: the mean has not the shape of a draw.")
        return found

    @property
    def mode(self) -> jax.Array:
        """The most likely angle, in [-pi, pi), or unit vector."""
        found: jax.Array = self._own().mode()
        return found

    @property
    def variance(self) -> jax.Array:
        """The circular variance, 1 minus the mean resultant length, as in NumPyro's class."""
        found: jax.Array = self._own().variance()
        return found

    def entropy(self) -> jax.Array:
        """Return the differential entropy in nats."""
        found: jax.Array = self._own().entropy()
        return found

    def cdf(self, value: ArrayLike) -> jax.Array:
        """Return the probability of an angle between -pi and `value`: 0 at -pi and below, 1 at pi and above.

        This counts over the support, as NumPyro does. The class in `jax_von_mises` counts from loc - pi.
        """
        own, value = self._own(), arguments.parameter(f"{type(self).__name__}.cdf", "value", value)
        dtype = arguments.float_dtype("cdf", None, [value, *jax.tree.leaves(own)])
        # The half precision numbers next to pi are too far from it to stand for the ends.
        value = clip(arguments.as_jax(value, arguments.compute_dtype(dtype)), -np.pi, np.pi)
        found = own.cdf(value, start=-np.pi)
        return with_derivative_of(found, clip(found, 0, 1)).astype(dtype)

    def icdf(self, q: ArrayLike) -> jax.Array:
        """Return the angle in [-pi, pi] with probability `q` below it, the inverse of `cdf`; NaN for invalid `q`."""
        found: jax.Array = self._own().icdf(q, start=-np.pi)
        return found


class OfDistribution(Members, Distribution):
    """Any distribution of `jax_von_mises` for NumPyro models, such as a `Mixture` or a `CircularDistribution`.

    Draws are reparameterised in all parameters, except for mixtures and skewed distributions, whose draws contain a
    choice: use these as likelihoods. There are no constraints of parameters. For classes whose parameters are arrays,
    the class of the same name in this module has them.

    Parameters
    ----------
    distribution : distribution
        The distribution, made of the model's values. Properties and methods such as `mean` and `cdf` exist if it has
        the method.
    validate_args : bool, optional
        Warn about values outside the support, and return a density of 0 for them. The default is NumPyro's setting.

    Raises
    ------
    TypeError
        For what is no distribution of `jax_von_mises`.

    Examples
    --------
    >>> import numpyro
    >>> from jax_von_mises import SineSkewed, VonMises
    >>> from jax_von_mises.numpyro import OfDistribution
    >>> with numpyro.handlers.seed(rng_seed=0):
    ...     angle = numpyro.sample("angle", OfDistribution(SineSkewed(VonMises(0.5, 4.0), 0.7)))
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    pytree_data_fields = ("distribution",)

    def __init__(self, distribution: base.Distribution, *, validate_args: bool | None = None) -> None:
        if not isinstance(distribution, base.Distribution):
            raise TypeError(
                f"OfDistribution: distribution={arguments.safe_repr(distribution)} must be a distribution of "
                "jax_von_mises, such as Mixture(...)."
            )
        self.distribution = distribution
        super().__init__(distribution.batch_shape, distribution.event_shape, validate_args=validate_args)

    def _own(self) -> Any:
        return self.distribution

    @property
    def support(self) -> Any:
        """The support of draws."""
        own = self.distribution
        if isinstance(own, base.OfAngles) and not own.event_shape:
            return ANGLE.support
        return (VECTOR if own._of_vectors() else ANGLES).support

    @property
    def has_rsample(self) -> bool:
        """Whether draws are reparameterised in all parameters."""
        return not self.distribution.CHOOSES

    def sample(self, key: ArrayLike, sample_shape: tuple[int, ...] = ()) -> jax.Array:
        """Return draws, those of the method of the distribution."""
        draws: jax.Array = self.distribution.sample(key, sample_shape)
        return draws

    @validate_sample
    def log_prob(self, value: ArrayLike) -> jax.Array:
        """Return the logarithm of the density."""
        density: jax.Array = self.distribution.log_prob(value)
        return density


def with_parameters_of(distribution: Any, of: type[base.Parametric]) -> Any:
    """Return the distribution of the package with the parameters of one of NumPyro."""
    own = of(*(getattr(distribution, parameter.name) for parameter in of.PARAMETERS))
    return own if own.batch_shape == distribution.batch_shape else own.broadcast()


def space_of(of: type[base.Parametric]) -> Space:
    """Return where draws lie."""
    if issubclass(of, base.OfAngles):
        return ANGLE
    return VECTOR if base.of_vectors(of) else ANGLES


def counterpart_of(of: type[base.Parametric]) -> Any:
    """Return NumPyro's class of the same name and arguments, or None."""
    theirs = getattr(distributions, of.__name__, None)
    same = theirs is not None and [*inspect.signature(theirs).parameters] == [*inspect.signature(of).parameters]
    return theirs if same else None


def docstring_of(of: type[base.Parametric]) -> str:
    """Return the docstring, from that of the class of the package."""
    summary, *sections = re.split(r"^(\w+)\n-+\n", inspect.getdoc(of) or of.__name__, flags=re.MULTILINE)
    parameters = dict(zip(sections[::2], sections[1::2], strict=True)).get("Parameters", "")
    origin = "For NumPyro models. The class of this name in `jax_von_mises` says more about the distribution. "
    if counterpart_of(of):
        origin += f"A drop-in replacement for ``numpyro.distributions.{of.__name__}``. "
    text = [summary.partition("\n\n")[0].strip()]
    text += [textwrap.fill(each, 112) for each in (origin + REPARAMETERISED, space_of(of).advice)]
    text += ["Parameters\n----------\n" + parameters.partition("validate_args : ")[0] + VALIDATION]
    return "\n\n".join(text)


def constructor_of(of: type[base.Parametric]) -> Callable[..., None]:
    """Return the constructor, with the arguments of the class of the package."""
    own = inspect.signature(of.__init__)
    # NumPyro marks missing arguments with None, and the package marks them with `...`.
    missing = {parameter.name for parameter in own.parameters.values() if parameter.default is ...}
    optional = dict.fromkeys(missing, ArrayLike | None) | {"validate_args": bool | None}
    signature = own.replace(
        parameters=[
            each.replace(default=None, annotation=optional[each.name]) if each.name in optional else each
            for each in own.parameters.values()
        ]
    )

    def __init__(self: OfClass, *args: Any, **named: Any) -> None:
        given = signature.bind(self, *args, **named).arguments
        del given["self"]
        validate_args = given.pop("validate_args", None)
        given = {name: value for name, value in given.items() if value is not None or name not in missing}
        self._take(self.OF(**given), validate_args)

    __init__.__signature__ = signature  # type: ignore[attr-defined]
    return base.naming_arguments(__init__)


def made_from(of: type[base.Parametric]) -> type[OfClass]:
    """Return the class for NumPyro that is made from a class of the package."""
    allowed = {each.name: NARROWER.get(each.name, CONSTRAINTS[each.values]) for each in of.PARAMETERS}
    members = {name: member for name, member in vars(Members).items() if not name.startswith("__")}
    body = {name: member for name, member in members.items() if hasattr(of, name)} | {
        "__module__": __name__,
        "__doc__": docstring_of(of),
        "__init__": constructor_of(of),
        "OF": of,
        "arg_constraints": allowed,
        "reparametrized_params": list(allowed),
        "support": space_of(of).support,
    }
    return types.new_class(of.__name__, (OfClass,), exec_body=lambda space: space.update(body))


def register_divergence(p: Any, of: type[base.Parametric], q: Any, other: type[base.Parametric]) -> None:
    """Register the divergence of two classes for NumPyro, if those of the package with their parameters have one."""
    function = getattr(of, "kl_divergence", None)
    if function is None or not issubclass(other, typing.get_type_hints(function)["other"]):
        return

    @kl_divergence.register(p, q)
    def kl_divergence_of(p: Distribution, q: Distribution) -> jax.Array:
        """Return the mean of log(p / q) under `p`, in nats."""
        divergence: jax.Array = with_parameters_of(p, of).kl_divergence(with_parameters_of(q, other))
        return divergence


MADE = {each.__name__: made_from(each) for each in sorted(base.declared(), key=lambda of: of.__name__)}
globals().update(MADE)
__all__ += list(MADE)
COMPARED = [(cls, cls.OF) for cls in MADE.values()]
COMPARED += [(theirs, of) for _, of in COMPARED if (theirs := counterpart_of(of))]
for one, another in itertools.product(COMPARED, repeat=2):
    if issubclass(one[0], OfClass) or issubclass(another[0], OfClass):
        register_divergence(*one, *another)


def register_divergence_from_uniform(p: Any) -> None:
    """Register the divergence of NumPyro's uniform distribution from a class of one angle."""

    @kl_divergence.register(p, distributions.Uniform)
    def divergence_from_uniform(p: Any, q: Any) -> jax.Array:
        """Return the mean of log(p / q) under `p`, in nats; inf if `q` does not reach from -pi to pi."""
        entropy = p.entropy()
        around = (q.low <= np.float32(-np.pi)) & (q.high >= np.float32(np.pi))
        return jnp.where(around, jnp.log(q.high - q.low).astype(entropy.dtype) - entropy, jnp.inf)


@kl_divergence.register(OfDistribution, OfDistribution)
def divergence_of_any(p: OfDistribution, q: OfDistribution) -> jax.Array:
    """Return the mean of log(p / q) under `p`, in nats, if the class of its distribution has it for that of `q`."""
    divergence: jax.Array = p.distribution.kl_divergence(q.distribution)
    return divergence


for made in (OfDistribution, *(cls for cls in MADE.values() if issubclass(cls.OF, base.OfAngles))):
    if hasattr(made, "entropy"):
        register_divergence_from_uniform(made)

if TYPE_CHECKING:

    def __getattr__(name: str) -> Any:
        """Tell type checkers that the classes exist. NumPyro has no annotations, so that they have no types either."""


def __dir__() -> list[str]:
    """Return the public names and the names that start with two underscores."""
    return [name for name in globals() if name in __all__ or name.startswith("__")]
