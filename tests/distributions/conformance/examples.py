"""Examples of every public class of distribution, made from what the class says about its parameters.

A new class appears here by being public: its table of parameters says which values are allowed. Mixtures, skewed
distributions, tori and natural parameters follow from the classes of which they can be made.
"""

import dataclasses
import inspect
import itertools
from collections.abc import Callable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

import jax_von_mises as jvm
from jax_von_mises import CircularDistribution, Mixture, SineSkewed, Torus, VonMises, rotations
from jax_von_mises.engine.base import Distribution, Parameter, Parametric

# For each rule about a parameter's values: those of the three distributions of a batch, and values that are invalid.
VALUES = {
    "angle": ([0.5, -2.9, 3.0], [np.nan, np.inf]),
    "real": ([0.5, -2.9, 0.8], [np.nan, -np.inf]),
    "nonnegative": ([1.5, 0.5, 8.0], [np.nan, -1.0]),
    "nonnegative and finite": ([1.0, 5.0, 2.0], [np.nan, np.inf, -1.0]),
    "finite": ([1.0, 5.0, 2.0], [np.nan, np.inf]),  # of the example with any density
    "length": ([0.3, 0.9, 0.6], [np.nan, 1.5, -0.1]),
    "half length": ([0.3, 0.1, 0.45], [np.nan, 0.6, -0.1]),
    "share": ([0.3, -0.8, 0.9], [np.nan, 1.1, -1.1]),
    # The ends of arcs, at places where the circle is divided into 64 bins; the second arc crosses pi.
    "low": (np.pi * np.array([-20, 25, -30]) / 32, [np.nan, np.inf]),
    "high": (np.pi * np.array([5, 43, 31]) / 32, [np.nan, -np.inf]),
    "direction": ([[1.0, 2.0, 2.0, -1.0], [-0.2, 0.1, 0.3, 0.5], [3.0, 0.0, -4.0, 1.0]], [np.nan, 0.0]),
    "vector": ([[1.0, 2.0, -2.0], [-0.2, 0.1, 0.3], [3.0, 0.0, -4.0]], [np.nan, np.inf]),
    "matrix": (
        [
            [[2.0, -1.0, 0.5], [0.3, 1.5, 0.0], [-0.7, 0.4, -1.0]],
            [[0.5, 0.0, 0.0], [0.0, 0.5, 0.0], [0.0, 0.0, 0.5]],
            [[0.0, 4.5, 0.0], [-2.0, 0.0, 0.5], [0.0, -0.5, 3.0]],
        ],
        [np.nan, np.inf],
    ),
    "major_axis": ([[0.0, 1.0, -1.0], [0.3, 0.3, 0.1], [0.0, 2.0, 0.0]], [np.nan, np.inf]),
    "ovalness": ([0.3, 2.4, 0.5], [np.nan, -1.0]),
    "natural": ([[0.6, -0.5, 0.3], [-0.1, 0.2, 0.1], [3.0, 4.0, -5.0]], [np.nan, np.inf]),
    "logits": ([[0.0, 1.0], [-2.0, 0.5], [3.0, 2.5]], [np.nan, np.inf]),
}
BATCH = 3


@dataclasses.dataclass(frozen=True, eq=False)
class Example:
    """A function that makes distributions of a kind, and the rules for its parameters."""

    name: str
    make: Callable[..., Distribution]
    rules: dict[str, str]
    """The rule for the values of each parameter, a name in `VALUES`."""
    dimension: int = 3
    """The number of components of vectors."""
    pairs: dict[str, int] = dataclasses.field(default_factory=dict)
    """How many further axes a parameter has, along each of which a distribution of the batch and the next one lie."""
    batched: bool = True
    """Whether one object can hold the batch."""

    def value(self, name: str, values: object, dtype: object) -> np.ndarray:
        """Return the values of a parameter for a batch, without the axis of pairs."""
        values = np.asarray(values, dtype)
        vector = self.rules[name] in ("direction", "major_axis", "vector", "natural")
        return values[..., : self.dimension] if vector and values.ndim else values

    def parameters(self, dtype: object = np.float32) -> dict[str, np.ndarray]:
        """Return the parameters of the batch of three distributions."""
        given = {name: self.value(name, VALUES[rule][0], dtype) for name, rule in self.rules.items()}
        for name, axes in self.pairs.items():
            for _ in range(axes):
                given[name] = np.stack([given[name], np.roll(given[name], -1, 0)], 1)
        return given

    def one(self, dtype: object = np.float32) -> dict[str, np.ndarray]:
        """Return the parameters of the first distribution."""
        return {name: x[0] for name, x in self.parameters(dtype).items()}

    def invalid(self, dtype: object = np.float32) -> Iterator[tuple[str, dict[str, np.ndarray]]]:
        """Yield each parameter's name, and the parameters with invalid values of it in the first two distributions."""
        for name, rule in self.rules.items():
            for bad in itertools.pairwise(VALUES[rule][1]):
                given = self.parameters(dtype)
                given[name] = given[name].copy()
                for i, value in enumerate(bad):
                    given[name][i] = value
                yield name, given

    @property
    def of_vectors(self) -> bool:
        """Whether the draws are unit vectors."""
        return not {"direction", "vector", "matrix"}.isdisjoint(self.rules.values()) or (
            "natural" in self.rules.values() and self.dimension > 2
        )


def public_classes() -> list[type[Parametric]]:
    """Return the public classes whose parameters are arrays."""
    names = dict.fromkeys(jvm.__all__, jvm) | dict.fromkeys(rotations.__all__, rotations)
    found = (getattr(module, name) for name, module in names.items())
    return [kind for kind in found if isinstance(kind, type) and issubclass(kind, Parametric)]


def plain(kind: type[Parametric]) -> Example:
    """Return the example of a class."""
    listed: tuple[Parameter, ...] = kind.PARAMETERS
    rules = {each.name: each.name if each.name in VALUES else each.values for each in listed}
    dimension = 4 if "mean_rotation" in rules else 3
    return Example(kind.__name__, kind, rules, dimension)


def natural(kind: type[Parametric]) -> Example:
    """Return the example of a class with its natural parameter."""
    dimension = 3 if plain(kind).of_vectors else 2
    return Example(f"{kind.__name__}.from_natural", kind.from_natural, {"natural": "natural"}, dimension)


def skewed(of: Example) -> Example:
    """Return the example of skewed distributions."""

    def make(skewness, **given):
        return SineSkewed(of.make(**given), skewness)

    return dataclasses.replace(
        of,
        name=f"SineSkewed {of.name}",
        make=make,
        rules=of.rules | {"skewness": "share"},
    )


def paired(of: Example, name: str, make: Callable[..., Distribution], own: dict[str, str]) -> Example:
    """Return the example of distributions that are made of two others each, and have parameters of their own."""
    pairs = {parameter: of.pairs.get(parameter, 0) + 1 for parameter in of.rules}
    return dataclasses.replace(of, name=name, make=make, rules=of.rules | own, pairs=pairs)


def mixed(of: Example) -> Example:
    """Return the example of mixtures of two."""

    def make(logits, **given):
        return Mixture(logits=logits, components=of.make(**given))

    return paired(of, f"Mixture {of.name}", make, {"logits": "logits"})


def bimodal(x, k, m):
    """Return the logarithm of a density up to a constant, which is symmetric about 1."""
    return k * jnp.cos(2 * x - 2) + m * jnp.cos(x - 1)


def examples() -> dict[str, Example]:
    """Return all examples by name."""
    classes = list(map(plain, public_classes()))
    density = Example(
        "CircularDistribution",
        lambda k, m: CircularDistribution(bimodal, k, m),
        {"k": "finite", "m": "real"},
        batched=False,
    )
    symmetric = [each for each in classes if getattr(each.make, "SYMMETRIC", False)]
    listed = classes + [natural(kind) for kind in public_classes() if hasattr(kind, "from_natural")] + [density]
    listed += map(skewed, [*symmetric, density])
    torus = paired(plain(VonMises), "Torus", lambda **given: Torus(VonMises(**given)), {})
    # Mixtures of the others differ from those of `WrappedCauchy` only in the formulas of the components.
    # Densities that jump have no differences and no quadrature to be compared with.
    others = "Cardioid", "WrappedNormal", "TruncatedVonMises"
    mixtures = [mixed(each) for each in classes if each.name not in others]
    listed += [torus, mixed(torus), *mixtures, skewed(mixed(plain(VonMises)))]
    return {each.name: each for each in listed}


EXAMPLES = examples()
# Those of which the other ones are made.
PLAIN = {kind.__name__ for kind in public_classes()} | {"Torus", "CircularDistribution"}

# Methods of a value of the event's shape, and of a number.
OF_POINTS = {"log_prob", "prob", "responsibilities", "score"}
OF_NUMBERS = {"cdf", "sf", "log_cdf", "log_sf", "survival_function", "log_survival_function", "icdf", "isf", "quantile"}
OF_NUMBERS |= {"interval", "standard_errors", "cosine_cdf", "cosine_icdf", "conditional", "marginal_log_prob"}
OF_ANOTHER = {"kl_divergence", "cross_entropy", "multiply", "convolve"}
# Those that make distributions, or that take samples.
OTHERS = {"fit", "from_natural", "broadcast", "marginal", "tabulate", "predict", "log_likelihood", "bic", "aic"}


def takes_samples(kind):
    """Return whether standard errors follow from the samples, and not from their number."""
    method = getattr(kind, "standard_errors", None)
    return method is not None and "samples" in inspect.signature(method).parameters


def methods(one):
    """Return the names of the public methods."""
    kind = type(one)
    others = OTHERS | {name for name in dir(kind) if isinstance(inspect.getattr_static(kind, name), classmethod)}
    others |= {"standard_errors"} if takes_samples(kind) else set()
    public = (name for name in dir(kind) if not name.startswith("_") and name not in others and not name.isupper())
    return [name for name in public if callable(getattr(kind, name)) and hasattr(one, name)]


def called(one, name, shape):
    """Return what a method returns, as arrays, for values of a shape."""
    method = getattr(one, name)
    if name in ("sample", "sample_and_log_prob"):
        found = method(jax.random.key(0), shape)
    elif name in OF_POINTS:
        found = method(jnp.full(shape + one.event_shape, 0.3, one.dtype))
    elif name in OF_NUMBERS:
        found = method(jnp.full(shape, 0.3, one.dtype))
    elif name in OF_ANOTHER:
        found = method(one)
    else:
        found = method(2) if name == "moment" else method()
    return jnp.zeros(found.batch_shape, found.dtype) if isinstance(found, Parametric) else found
