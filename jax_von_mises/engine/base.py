"""Define what all distributions share, and the table of parameters from which most of it follows."""

import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any, ClassVar, NamedTuple, ParamSpec, Self, TypeVar

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec
from jax.typing import ArrayLike

from jax_von_mises import arguments
from jax_von_mises.compiler.sharding import sharded_by_batch
from jax_von_mises.engine import draws
from jax_von_mises.engine.pytrees import ByValue
from jax_von_mises.engine.request import Family, registered
from jax_von_mises.numerics.circle import LARGEST_LOC
from jax_von_mises.numerics.elementary import aligned

P = ParamSpec("P")
R = TypeVar("R")
# The largest element of a matrix of natural parameters.
LARGEST_ELEMENT = 1e7
# Each rule is a test of the values that are allowed, and says in words for a message which they are.
RULES: dict[str, tuple[Callable[[np.ndarray[Any, Any]], np.ndarray[Any, Any]], str]] = {
    "angle": (np.isfinite, "finite, in radians"),
    "real": (np.isfinite, "finite"),
    "vector": (np.isfinite, "finite"),
    "matrix": (lambda x: np.abs(x) <= LARGEST_ELEMENT, f"finite and at most {LARGEST_ELEMENT:g} in absolute value"),
    "nonnegative": (lambda x: x >= 0, "at least 0 (inf is allowed)"),
    "nonnegative and finite": (lambda x: (x >= 0) & np.isfinite(x), "at least 0 and finite"),
    "direction": (
        lambda x: np.isfinite(x) & (np.sum(x * x, -1, keepdims=True) > 0),
        "finite, and not the zero vector",
    ),
    "length": (lambda x: (x >= 0) & (x <= 1), "in [0, 1]"),
    "half length": (lambda x: (x >= 0) & (x <= 0.5), "in [0, 1/2]"),
    "share": (lambda x: np.abs(x) <= 1, "in [-1, 1]"),
}
# Methods of distributions of one angle alone, and why others lack them.
ORDERED = {"cdf", "sf", "log_cdf", "log_sf", "survival_function", "log_survival_function", "icdf", "isf", "quantile"}
ORDERED.add("interval")
ORDER = "points of several dimensions have no order. Use log_prob"
# Why a distribution has no method of this name. Others may be missing because they have no formula.
MISSING = {
    "kl_divergence": "it has no formula here. Average log_prob(x) - other.log_prob(x) over draws",
    "mean": "it has no formula here",
    "mode": "it has no formula here. Maximise log_prob",
    "entropy": "it has no formula here. Average -log_prob(x) over draws",
    "standard_errors": "it has no formula here. Fit bootstrap samples",
    "fit": "maximise the sum of log_prob",
    "stddev": "it is defined for one angle. See variance or entropy",
    "moment": "it is defined for one angle. Average over draws",
}
# What other libraries call these methods, or how to compute what has no method.
NAMED_ELSEWHERE = {
    "pdf": "prob",
    "pmf": "prob",
    "logpdf": "log_prob",
    "logcdf": "log_cdf",
    "logsf": "log_sf",
    "ppf": "icdf",
    "rvs": "sample",
    "rsample": "sample",
    "std": "stddev",
    "var": "variance",
    "circular_variance": "variance",
    "median": "icdf(0.5)",
    "replace": "dataclasses.replace(distribution, ...)",
    "kl": "kl_divergence",
}


def naming_arguments(function: Callable[P, R]) -> Callable[P, R]:
    """Wrap a method so that a wrong argument gives a TypeError that lists the right ones."""
    signature = inspect.signature(function)

    @functools.wraps(function)
    def named(*args: P.args, **kwargs: P.kwargs) -> R:
        try:
            return function(*args, **kwargs)
        except TypeError:
            try:
                signature.bind(*args, **kwargs)
            except TypeError as error:
                found, listed = args[0], list(signature.parameters.values())[1:]
                name = type(found).__name__ + ("" if function.__name__ == "__init__" else f".{function.__name__}")
                by_name = [x.name for x in listed if x.kind is x.KEYWORD_ONLY]
                text = ", ".join(x.name for x in listed if x.name not in by_name)
                text += f"{'; ' * bool(text)}by name: {', '.join(by_name)}" if by_name else ""
                raise TypeError(f"{name}: {error}. The arguments are {text}.") from None
            raise

    return named


class Parameter(NamedTuple):
    """A parameter of a distribution."""

    name: str
    values: str
    """Which values are allowed, a name in `RULES`; others give NaN."""
    event_rank: int = 0
    """Number of its last axes that do not belong to the batch."""


class Distribution(ByValue):
    """Base class of all distributions: frozen pytrees with methods named as in NumPyro, TFP and SciPy.

    Subclasses define `batch_shape`, `event_shape`, `dtype`, `log_prob` and `_drawn_by`. With `_unit_means`, mixtures of
    them have a mean, and with `CLUSTERING`, an `em.Clustering`, mixtures can be fitted.
    """

    CHOOSES: ClassVar[bool] = False
    """Whether a draw contains a choice, so that its derivatives are not all that its mean has."""

    def __init_subclass__(cls, **options: Any) -> None:
        """List the arguments of the constructor when one is wrong."""
        super().__init_subclass__(**options)
        if "__init__" in vars(cls):
            cls.__init__ = naming_arguments(cls.__init__)  # type: ignore[method-assign]

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape of the batch of distributions."""
        raise NotImplementedError

    @property
    def event_shape(self) -> tuple[int, ...]:
        """Shape of one draw."""
        raise NotImplementedError

    @property
    def dtype(self) -> np.dtype:
        """The float dtype of samples and densities."""
        raise NotImplementedError

    def _drawn_by(self) -> tuple[Family, dict[str, Any]]:
        """Return the family that draws the distribution, and its parameters by name."""
        raise NotImplementedError

    @naming_arguments
    def sample(
        self,
        key: ArrayLike | None = None,
        sample_shape: int | Sequence[int] = (),
        *,
        seed: ArrayLike | None = None,
        start: ArrayLike | tuple[ArrayLike, ArrayLike] | None = None,
        method: str = "auto",
        out_sharding: NamedSharding | PartitionSpec | None = None,
    ) -> jax.Array:
        """Draw an array of shape `sample_shape` + ``batch_shape`` + ``event_shape``; angles are in [-pi, pi).

        Parameters
        ----------
        key, seed : jax.Array
            A random key, under either name; TFP and distrax call it `seed`.
        sample_shape : int or tuple of ints
            Shape of the draws, before the axes of the batch.
        start : int, traced integer scalar, or pair of them, optional
            Position of the first draw in the key's stream, as in `sample_block`, to draw a slice of a long stream; 0 by
            default.
        method : {"auto", "direct", "table"}
            As in `sample_von_mises`, for distributions that have both. For one set of parameters, "auto" uses a table
            for 2^14 draws or more (2^13 in float64), and for every slice.
        out_sharding : optional
            Sharding of the result, as in `sample_von_mises`; only `VonMises` and `VonMisesFisher` accept meshes with
            explicit axes.
        """
        caller = f"{type(self).__name__}.sample"
        key = arguments.key_or_seed(caller, key, seed)
        shape = arguments.whole_sizes(caller, "sample_shape", sample_shape) + self.batch_shape
        family, values = self._drawn_by()
        return draws.sample(caller, family, key, values, shape, self.dtype, start, method, out_sharding)

    def log_prob(self, value: ArrayLike) -> jax.Array:
        """Return the logarithm of the density at `value`."""
        raise NotImplementedError

    def prob(self, value: ArrayLike) -> jax.Array:
        """Return the density at `value`."""
        return jnp.exp(self.log_prob(value))

    @naming_arguments
    def sample_and_log_prob(
        self, key: ArrayLike | None = None, sample_shape: int | Sequence[int] = (), *, seed: ArrayLike | None = None
    ) -> tuple[jax.Array, jax.Array]:
        """Draw as `sample` does, and return the draws with the logarithms of their densities."""
        x = self.sample(key, sample_shape, seed=seed)
        return x, self.log_prob(x)

    def __getitem__(self, index: Any) -> Self:
        """Return the distributions at an index of the batch, as NumPy would."""
        if not self.batch_shape:
            raise IndexError(f"{type(self).__name__}: a distribution of batch_shape () cannot be indexed.")
        index = index if isinstance(index, tuple) else (index,)
        return self._at(index if any(each is Ellipsis for each in index) else (*index, ...))

    def _at(self, index: tuple[Any, ...]) -> Self:
        """Return the distributions at an index of the batch that contains an ellipsis."""
        raise NotImplementedError

    def __getattr__(self, name: str) -> Any:
        """Say why there is no method of a name that other distributions have."""
        if isinstance(inspect.getattr_static(type(self), name, None), property):
            return object.__getattribute__(self, name)  # raise the property's own AttributeError again
        raise self._no(name)

    def _no(self, name: str) -> AttributeError:
        """Return the error for a missing attribute, with a reason or the right name."""
        text = f"{type(self).__name__} has no {name}"
        if name in ORDERED and not of_one_angle(self):
            text += f": {ORDER}"
        elif name in MISSING:
            text += f": {MISSING[name]}"
        elif name in NAMED_ELSEWHERE:
            text += f". Use {NAMED_ELSEWHERE[name]}"
        return AttributeError(f"{text}.", name=name, obj=self)

    def broadcast(self) -> Self:
        """Return the same distribution with all parameters broadcast to ``batch_shape``.

        `jax.vmap` maps over an axis that all arrays of its argument must have. With
        ``jax.vmap(f)(distribution.broadcast())``, it maps over the first axis of the batch even if a parameter lacks
        this axis, as in ``VonMises(0.0, jnp.ones(3))``.
        """
        return self._broadcast_to(self.batch_shape)

    def _broadcast_to(self, shape: tuple[int, ...]) -> Self:
        """Return the same distribution with all parameters broadcast to a shape of the batch."""
        raise NotImplementedError

    def _aligned(self, ndim: int) -> Self:
        """Return the same distribution with axes of length 1 in front of its batch, so that it has `ndim` axes."""
        batch = self.batch_shape
        return self if len(batch) == ndim else self._broadcast_to((1,) * (ndim - len(batch)) + batch)

    def _of_vectors(self) -> bool:
        """Return whether draws are vectors, and not angles."""
        return False

    def _check_other(self, method: str, other: object, kind: type["Distribution"]) -> None:
        """Raise TypeError if `other` is not of a `kind`."""
        if not isinstance(other, kind):
            name = kind.__name__
            article = "an" if name[0] in "AEIO" else "a"
            raise TypeError(f"{name}.{method}: other={arguments.safe_repr(other)} must be {article} {name}.")


def of_one_angle(value: object) -> bool:
    """Return whether `value` is a distribution of one angle."""
    return isinstance(value, Distribution) and value.event_shape == ()


class OfAngles(Distribution):
    """Base class of distributions of one angle, which define `cdf`, `sf`, `icdf`, `variance` and means.

    Names of TFP and of SciPy stand for the same methods.
    """

    SYMMETRIC: ClassVar[bool] = True
    """Whether densities can be symmetric about the mean."""

    def log_cdf(self, value: ArrayLike, *, start: ArrayLike | None = None) -> jax.Array:
        """Return the logarithm of `cdf`."""
        return jnp.log(self.cdf(value, start=start))

    def log_sf(self, value: ArrayLike, *, start: ArrayLike | None = None) -> jax.Array:
        """Return the logarithm of `sf`."""
        return jnp.log(self.sf(value, start=start))

    def survival_function(self, value: ArrayLike, *, start: ArrayLike | None = None) -> jax.Array:
        """See `sf`."""
        result: jax.Array = self.sf(value, start=start)
        return result

    def log_survival_function(self, value: ArrayLike, *, start: ArrayLike | None = None) -> jax.Array:
        """See `log_sf`."""
        return self.log_sf(value, start=start)

    def quantile(self, value: ArrayLike, *, start: ArrayLike | None = None) -> jax.Array:
        """See `icdf`."""
        result: jax.Array = self.icdf(value, start=start)
        return result

    def stddev(self) -> jax.Array:
        """Return the circular standard deviation in radians, the square root of -2 log `mean_resultant_length`."""
        variance: jax.Array = self.variance()
        return jnp.sqrt(-2 * jnp.log1p(-variance))

    def _unit_means(self) -> tuple[jax.Array, ...]:
        """Return the mean cosine and sine.

        Distributions of several angles have the same method, and return both for each angle. Those of vectors return
        their mean alone.
        """
        mean = self.moment(1)
        return mean.real.astype(self.dtype), mean.imag.astype(self.dtype)


class Parametric(Distribution):
    """Base class of distributions whose parameters are arrays with a common batch."""

    PARAMETERS: ClassVar[tuple[Parameter, ...]]
    FAMILY: ClassVar[Family]

    def _drawn_by(self) -> tuple[Family, dict[str, Any]]:
        return self.FAMILY, self._parameters()

    def _assign(self, given: Mapping[str, Any], validate_args: bool) -> None:
        """Set the parameters, in the constructor; check shapes and, if asked to, values where they are known.

        Axes of length 1 are put in front of parameters that have fewer than the batch. A distribution that is made
        inside `jax.vmap` and returned then has its new axis in front of all parameters.
        """
        caller, leaves = type(self).__name__, {}
        for parameter in self.PARAMETERS:
            leaves[parameter.name] = as_leaf(caller, parameter.name, given[parameter.name])
            object.__setattr__(self, parameter.name, leaves[parameter.name])
        # Other objects stand for arrays in a pytree, and whole numbers alone may be the axes of `jax.vmap`.
        numbers = all(map(arguments.is_known, leaves.values()))
        axes = all(isinstance(x, int) for x in leaves.values())
        for parameter in self.PARAMETERS:
            if parameter.event_rank and (arguments.is_array(leaves[parameter.name]) or (numbers and not axes)):
                arguments.dimension(caller, parameter.name, leaves[parameter.name])
        if not (numbers or validate_args):
            return
        checked = self._parameters()
        if validate_args:
            compute = arguments.compute_dtype(arguments.float_dtype(caller, None, checked.values()))
            for parameter, value in zip(self.PARAMETERS, checked.values(), strict=True):
                check_values(caller, parameter, value, compute)
        ndim = len(self._batch_of(checked)) if numbers else 0
        for parameter in self.PARAMETERS if ndim else ():
            value, rank = checked[parameter.name], ndim + parameter.event_rank
            if np.ndim(value) < rank:
                dtype = arguments.float_dtype(caller, None, checked.values())
                object.__setattr__(self, parameter.name, arguments.with_axes(value, rank, dtype))

    def _parameters(self) -> dict[str, Any]:
        """Return the checked parameters by name."""
        caller = type(self).__name__
        return {p.name: arguments.parameter(caller, p.name, getattr(self, p.name)) for p in self.PARAMETERS}

    @property
    def batch_shape(self) -> tuple[int, ...]:
        """Shape to which the parameters broadcast, without the axes of an event."""
        return self._batch_of(self._parameters())

    def _batch_of(self, given: Mapping[str, Any]) -> tuple[int, ...]:
        """Return the shape of the batch of checked parameters."""
        whole = {p: getattr(given[p.name], "shape", ()) for p in self.PARAMETERS}
        shapes = {p.name: shape[: len(shape) - p.event_rank] for p, shape in whole.items()}
        return arguments.broadcast_shapes(type(self).__name__, shapes)

    @property
    def dtype(self) -> np.dtype:
        """The float dtype of samples and densities."""
        return arguments.float_dtype(type(self).__name__, None, self._parameters().values())

    def _compute(
        self,
        method: str,
        function: Callable[..., Any],
        names: Sequence[str],
        static: tuple[Any, ...] = (),
        values: Mapping[str, ArrayLike] = MappingProxyType({}),
        ranks: Mapping[str, int] = MappingProxyType({}),
    ) -> Any:
        """Return ``function(*static, *values, *parameters)`` for the parameters with these names.

        `ranks` says how many last axes of a value do not belong to the batch, 0 by default.
        """
        caller, own = f"{type(self).__name__}.{method}", self._parameters()
        arrays, dtype = arguments.parameters(caller, None, **values, **{name: own[name] for name in names})
        event = {parameter.name: parameter.event_rank for parameter in self.PARAMETERS} | dict(ranks)
        behind = tuple(event.get(name, 0) for name in arrays)
        shapes = {name: np.shape(x)[: np.ndim(x) - event.get(name, 0)] for name, x in arrays.items()}
        of_these = arguments.broadcast_shapes(caller, shapes)
        found = computed(function, static, tuple(arrays.values()), behind, dtype)
        shape = arguments.broadcast_shapes(caller, {"the arguments": of_these, "the batch": self._batch_of(own)})
        if shape == of_these:
            return found
        # Parameters on which the result does not depend have further axes.
        return jax.tree.map(lambda x: jnp.broadcast_to(x, shape + x.shape[len(of_these) :]), found)

    def _of_vectors(self) -> bool:
        return of_vectors(type(self))

    def _broadcast_to(self, shape: tuple[int, ...]) -> Self:
        return self._mapped(lambda value: value, shape)

    def _at(self, index: tuple[Any, ...]) -> Self:
        ndim = len(self.batch_shape)
        return self._mapped(lambda value: value[(*index, *[slice(None)] * (value.ndim - ndim))], self.batch_shape)

    def _mapped(self, function: Callable[[jax.Array], jax.Array], shape: tuple[int, ...]) -> Self:
        """Return the distribution with a function of each parameter, broadcast to a shape of the batch."""
        given = self._parameters()
        children = []
        for parameter in self.PARAMETERS:
            value = arguments.as_jax(given[parameter.name])
            event = value.shape[value.ndim - parameter.event_rank :]
            children.append(function(jnp.broadcast_to(value, shape + event)))
        mapped: Self = jax.tree.unflatten(jax.tree.structure(self), children)
        return mapped

    def _spread(self, value: ArrayLike, event_shape: tuple[int, ...] = ()) -> jax.Array:
        """Return a property of the distribution for each element of the batch, in the distribution's dtype."""
        return jnp.broadcast_to(value, self.batch_shape + event_shape).astype(self.dtype)


def declared() -> list[type[Parametric]]:
    """Return the classes of the package whose parameters are arrays, by which their draws are described in files."""
    found: dict[type[Parametric], None] = {}
    left, ours = [Parametric], set(registered().values())
    while left:
        kind = left.pop()
        left += kind.__subclasses__()
        if vars(kind).get("FAMILY") in ours and kind.__module__.startswith("jax_von_mises."):
            found[kind] = None  # a class may be reached from several of its bases
    return list(found)


def of_vectors(kind: type[Parametric]) -> bool:
    """Return whether the draws of a class are vectors, and not angles: a parameter is then a vector, too."""
    return any(parameter.event_rank for parameter in kind.PARAMETERS)


@functools.partial(jax.jit, static_argnums=(0, 1, 3, 4))
def computed(
    function: Callable[..., Any],
    static: tuple[Any, ...],
    values: tuple[Any, ...],
    ranks: tuple[int, ...],
    dtype: np.dtype,
) -> Any:
    """Compute ``function(*static, *values)``, and round it to a dtype once.

    The batches of all values but scalars get the same number of axes; `ranks` counts the axes after the batch.
    """
    arrays = [jnp.asarray(x, arguments.compute_dtype(dtype)) for x in values]
    most = max(x.ndim - rank for x, rank in zip(arrays, ranks, strict=True))

    arrays = [aligned(x, most + rank) if x.ndim else x for x, rank in zip(arrays, ranks, strict=True)]
    found = sharded_by_batch(functools.partial(function, *static), arrays, ranks)
    return jax.tree.map(lambda x: x.astype(dtype), found)


def check_values(caller: str, parameter: Parameter, value: Any, compute: type | np.dtype[Any] = np.float64) -> None:
    """Raise ValueError for a value that is not allowed; that of a traced parameter is unknown.

    `compute` is the dtype of computations with it.
    """
    if isinstance(value, jax.core.Tracer):
        return
    value = np.asarray(value, np.float64)
    allowed, words = RULES[parameter.values]
    dtype = np.dtype(compute)
    largest = LARGEST_LOC[dtype.name] if parameter.values == "angle" else np.finfo(dtype).max
    finite = np.isfinite(value)
    for good, must in (
        (allowed(value), f"must be {words}"),
        (~finite | (np.abs(value) <= largest), f"can be at most {largest:.9g} in {dtype.name}"),
    ):
        if not np.all(good):
            where = "" if value.ndim == 0 else f" at index {tuple(int(i) for i in np.argwhere(~good)[0])}"
            raise ValueError(f"{caller}: {parameter.name} is {value[~good].flat[0]:g}{where}, but {must}.")


def as_leaf(caller: str, name: str, value: Any) -> Any:
    """Return a parameter as a leaf of a pytree: numbers in a list or tuple as an array, other values unchanged.

    Text, complex numbers and arrays of unsupported dtypes give TypeError. Other objects may stand for arrays.
    """
    arguments.refuse_units(caller, name, value)
    if hasattr(value, "as_quat"):  # a rotation of SciPy
        raise TypeError(
            f"{caller}: {name} is a {type(value).__name__}. Give its quaternion, in the order (w, x, y, z): "
            "rotation.as_quat(scalar_first=True)."
        )
    if isinstance(value, list) or is_numbers(value):  # a list would itself be a pytree
        return np.asarray(arguments.parameter(caller, name, value))
    if isinstance(value, str | bytes | complex) or arguments.is_array(value):
        arguments.parameter(caller, name, value)
    return value


def is_numbers(value: object) -> bool:
    """Return whether `value` is a tuple of numbers, not of objects that stand for arrays in a pytree."""
    try:
        return isinstance(value, tuple) and len(value) > 0 and np.asarray(value).dtype.kind in "fiu"
    except (TypeError, ValueError):  # for traced numbers, and for arrays of several shapes
        return False
