"""Test the dtypes of results: arrays determine them, and Python numbers and JAX's weakly typed arrays adapt."""

import inspect
import itertools
import warnings

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jax_von_mises as jvm
from jax_von_mises import rotations, runtime
from tests.marks import more, slow

DENSITIES = ("log_prob", "prob", "cdf", "sf", "log_cdf", "log_sf", "icdf", "isf")
MOMENTS = ("entropy", "mean", "mode", "variance", "stddev", "kl_divergence")
KEY = jax.random.key(19)


def numpyro_von_mises(loc, concentration):
    numpyro = pytest.importorskip("jax_von_mises.numpyro", reason="NumPyro is not installed")
    return numpyro.VonMises(loc, concentration, validate_args=False)


def mixture(loc, concentration):
    """Return a mixture of one component with these parameters."""
    components = jvm.VonMises(loc, concentration).broadcast()
    return jvm.Mixture(logits=[0.0], components=jax.tree.map(lambda leaf: leaf[None], components))


# Functions of numbers; the dtypes of their results are tested.
CALLS = {
    **{name: getattr(jvm, name) for name in (*DENSITIES, *MOMENTS)},
    "sample_von_mises": lambda loc, k: jvm.sample_von_mises(KEY, loc, k, 2),
    "sample_block": lambda loc, k: jvm.sample_block(KEY, loc, k, 3, 2),
    "sample_pmap": lambda loc, k: jvm.sample_pmap(KEY, loc, k, (jax.local_device_count(), 2)),
    "sample_antithetic": lambda loc, k: jvm.sample_antithetic(KEY, loc, k, (2, 1)),
    "sample_stratified": lambda loc, k: jvm.sample_stratified(KEY, loc, k, (2, 1)),
    "sample_truncated": lambda loc, k, low, high: jvm.sample_truncated(KEY, loc, k, low, high, 2),
    "fit": lambda samples, weights: jvm.fit(samples, weights).loc,
    "standard_errors": lambda k, size: jvm.standard_errors(k, size).loc,
    "VonMises.dtype": lambda loc, k: jnp.zeros(0, jvm.VonMises(loc, k).dtype),
    "VonMises.sample": lambda loc, k: jvm.VonMises(loc, k).sample(KEY, 2),
    "VonMises.entropy": lambda loc, k: jvm.VonMises(loc, k).entropy(),
    "VonMises.broadcast": lambda loc, k: jnp.zeros(0, jvm.VonMises(loc, k).broadcast().dtype),
    "VonMises.log_prob": lambda x, loc, k: jvm.VonMises(loc, k).log_prob(x),
    "Mixture.log_prob": lambda x, loc, k: mixture(loc, k).log_prob(x),
    "Mixture.sample": lambda loc, k: mixture(loc, k).sample(KEY),
    "Mixture.mean": lambda loc, k: mixture(loc, k).mean(),
    "numpyro.sample": lambda loc, k: numpyro_von_mises(loc, k).sample(KEY, (2,)),
    "numpyro.cdf": lambda x, loc, k: numpyro_von_mises(loc, k).cdf(x),
    "numpyro.icdf": lambda q, loc, k: numpyro_von_mises(loc, k).icdf(q),
}
KINDS = {
    "array without axes": np.array,
    "array with an axis": lambda value, dtype: np.full(1, value, dtype),
    "NumPy scalar": lambda value, dtype: np.dtype(dtype).type(value),
    "JAX array": jnp.asarray,
}


def count(call):
    """Return the number of arguments of a call by position."""
    return sum(x.kind is not x.KEYWORD_ONLY for x in inspect.signature(call).parameters.values())


def dtype_of(call, *values):
    """Return the dtype of the result without computing it."""
    return jax.eval_shape(lambda: call(*values)).dtype


def numbers(call):
    """Return values for a call that ascend even after rounding, as the ends of an arc must."""
    return [0.25 + i for i in range(count(call))]


QUICK = ("log_prob", "sample_von_mises", "fit", "VonMises.entropy", "Mixture.log_prob", "numpyro.cdf")


@pytest.mark.parametrize("name", [*QUICK, *more(*(name for name in CALLS if name not in QUICK))])
def test_arrays_without_axes(name):
    call = CALLS[name]
    first, *others = numbers(call)
    if name == "VonMises.entropy":  # computed from the second argument alone, and then rounded
        others, first = [first], *others
    assert dtype_of(call, *(np.array(value, np.float16) for value in numbers(call))) == "float16"
    with jax.enable_x64(True):
        assert dtype_of(call, np.array(first, np.float32), *others) == "float32"


@pytest.mark.parametrize("kind", KINDS)
def test_arrays_have_a_dtype(kind):
    make = KINDS[kind]
    for x64, dtypes in ((False, ("float16", "bfloat16", "float32")), (True, ("float16", "float32", "float64"))):
        with jax.enable_x64(x64):
            for dtype in dtypes:
                array = make(0.25, dtype)
                assert dtype_of(jvm.mean, array, array) == dtype
                assert jvm.VonMises(array, array).dtype == dtype
                # Combine Python floats and integers, and JAX's weakly typed arrays, with an array in either place.
                for weak in (2.0, 2, jnp.asarray(2.0), jnp.asarray(2)):
                    assert dtype_of(jvm.mean, array, weak) == dtype_of(jvm.mean, weak, array) == dtype
            assert dtype_of(jvm.mean, 0, 2.0) == dtypes[-1]


@pytest.mark.more
def test_numbers_next_to_an_array_with_axes():
    """A Python number takes the dtype of an array of any shape."""
    for half in (jnp.ones(3, jnp.bfloat16), np.ones((2, 1), np.float16)):
        for distribution in (jvm.VonMises(0.5, half), numpyro_von_mises(0.5, half), numpyro_von_mises(half, 2)):
            assert jax.eval_shape(lambda distribution=distribution: distribution.log_prob(0.25)).dtype == half.dtype
            assert jax.eval_shape(lambda distribution=distribution: distribution.sample(KEY)).dtype == half.dtype


def test_streams_and_files(tmp_path):
    half = np.array(0.25, "float16"), np.float16(4)
    (batch,) = jvm.sample_batches(KEY, *half, 3, 3)
    assert batch.dtype == "float16"
    assert jvm.write_samples(tmp_path / "angles.npy", KEY, *half, 3).dtype == "float16"


def test_programs_compiled_in_advance(compiled):
    """After `warmup` with arguments described by `jax.ShapeDtypeStruct`, a call finds its program compiled."""
    weak = jax.ShapeDtypeStruct((), np.float32, weak_type=True)
    calls = [
        (jax.ShapeDtypeStruct((), jnp.bfloat16), jnp.bfloat16(3), "bfloat16"),
        (weak, jnp.asarray(3.0), "float32"),
    ]
    for described, argument, dtype in calls:
        shape = (5, *described.shape)
        (program,) = runtime.warmup(shape, loc=described, concentration=described, key=KEY)
        assert program.dtype == dtype
        compiled.clear()
        assert jvm.sample_von_mises(KEY, argument, argument, shape).dtype == dtype
        assert not compiled, dtype
    half = jax.ShapeDtypeStruct((), jnp.float16)
    assert runtime.warmup((7,), loc=weak, concentration=half, key=KEY)[0].dtype == "float16"


FAR = 1e300


COMPUTED = ("sample_von_mises", "log_prob", "mean", "standard_errors")


@pytest.mark.parametrize("name", [*COMPUTED, *more(*(name for name in CALLS if name not in COMPUTED))])
def test_numbers_beyond_float32(name):
    """Numbers beyond the range of float32 become infinite without a warning, in each argument that may be infinite."""
    call = CALLS[name]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for place in range(2 if name == "sample_truncated" else count(call)):
            for far in (FAR, np.array(-FAR)):
                values, infinite = numbers(call), numbers(call)
                values[place], infinite[place] = far, np.float32(np.copysign(np.inf, far))
                assert dtype_of(call, *values) == "float32"
                if name in COMPUTED:
                    np.testing.assert_array_equal(call(*values), call(*infinite))


@pytest.mark.parametrize("dtype", ["bfloat16", *more("float16")])
def test_numbers_beyond_float32_next_to_short_floats(dtype):
    near = jnp.asarray(0.5, dtype)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        x = jvm.sample_von_mises(KEY, near, FAR)
        assert (float(x), x.dtype) == (0.5, dtype)
        assert float(jvm.VonMises(near, FAR).variance()) == 0
        assert np.isnan(jvm.mean(FAR, near))


@pytest.mark.more
def test_streams_of_a_point_mass(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for x64, far in ((False, FAR), (True, np.array(FAR))):
            with jax.enable_x64(x64):
                (batch,) = jvm.sample_batches(KEY, 0.5, far, 3, 3, "float32")
                np.testing.assert_array_equal(batch, np.float32(0.5))
                out = tmp_path / "angles.npy"
                jvm.write_samples(out, KEY, 0.5, far, 3, "float32", force=True)
                np.testing.assert_array_equal(np.load(out), np.float32(0.5))


def test_integers_of_64_bits():
    """64-bit integers keep their values; JAX would take their lower half, here 0, and draw uniform angles."""
    far = np.array([2**40, 2**41])
    np.testing.assert_array_equal(jvm.variance(far), jvm.variance(far.astype(np.float32)))
    np.testing.assert_array_equal(jvm.variance(far[0]), jvm.variance(2.0**40))
    assert np.abs(jvm.sample_von_mises(KEY, 0.0, far)).max() < 1e-4


def narrow(dtype):
    """Return distributions of each class with parameters of one dtype, by name."""
    of = lambda *values: np.asarray(values if len(values) > 1 else values[0], dtype)  # noqa: E731
    angles = {
        "VonMises": jvm.VonMises(of(0.3), of(4)),
        "from_natural": jvm.VonMises.from_natural(of(1, 2)),
        "WrappedCauchy": jvm.WrappedCauchy(of(0.3), of(0.5)),
        "Cardioid": jvm.Cardioid(of(0.3), of(0.3)),
        "WrappedNormal": jvm.WrappedNormal(of(0.3), of(0.7)),
        "TruncatedVonMises": jvm.TruncatedVonMises(*map(of, (0.3, 4, 0.2, 1.5))),
        "SineSkewed": jvm.SineSkewed(jvm.WrappedNormal(of(0.3), of(0.7)), of(0.5)),
        "CircularDistribution": jvm.CircularDistribution(lambda x, k: k * jnp.cos(x), of(2)),
    }
    directions = {f"{d} dimensions": jvm.VonMisesFisher(of(*np.eye(d)[0]), of(4)) for d in (2, 3, 4, 10)}
    mixed = {
        "mixture of angles": jvm.VonMises(of(0.3, 1), of(0.7, 1)),
        "mixture of directions": jvm.VonMisesFisher(of(*np.eye(4)[:2]), of(4, 9)),
        "mixture of pairs": jvm.SineBivariateVonMises(*(of(i, i) for i in range(4)), of(0.5, 0.5)),
    }
    return {
        **angles,
        **directions,
        **{name: jvm.Mixture(probs=of(0.4, 0.6), components=components) for name, components in mixed.items()},
        "natural directions": jvm.VonMisesFisher.from_natural(of(1, 2, 2, 4)),
        "SineBivariateVonMises": jvm.SineBivariateVonMises(*map(of, (0.1, 0.2, 2, 3, 0.5))),
        "CosineBivariateVonMises": jvm.CosineBivariateVonMises(*map(of, (0.1, 0.2, 2, 3, 0.5))),
        "Torus": jvm.Torus(jvm.VonMises(of(0.1, 0.2), of(2, 3))),
        "IsotropicGaussianSO3": rotations.IsotropicGaussianSO3(of(1, 0, 0, 0), of(0.5)),
        "MatrixFisher": rotations.MatrixFisher(of([3, 1, 0], [-1, 2, 0], [0, 0.5, 1])),
    }


def direct(distribution):
    return distribution.sample(KEY, (50,), method="direct")


def tabulated(distribution):
    return distribution.sample(KEY, (50,), method="table")


# Methods, and the argument of those that have one: a value, or a number.
METHODS = {
    **dict.fromkeys(("log_prob", "cdf", "score", "cosine_cdf"), "value"),
    **dict.fromkeys(("icdf", "cosine_icdf", "marginal_log_prob", "standard_errors"), "number"),
    **dict.fromkeys(("entropy", "variance", "expected_score_norm"), None),
}


# Each class has one of the dtypes, in turn.
NARROW = list(zip(narrow("float32"), itertools.cycle(("float32", "bfloat16", "float16")), strict=False))
CHEAP = ("VonMises", "WrappedCauchy", "3 dimensions", "Torus")


@pytest.mark.parametrize(
    ("name", "dtype"),
    [*(case for case in NARROW if case[0] in CHEAP), *slow(*(case for case in NARROW if case[0] not in CHEAP))],
)
def test_narrow_parameters_in_64_bits(name, dtype):
    """JAX's 64-bit mode changes no dtype on the way to a result; the tests refuse implicit promotion."""
    with jax.enable_x64(True):
        distribution = narrow(dtype)[name]
        value = np.full(distribution.event_shape, 0.5, dtype)
        calls = [lambda x: jax.jvp(lambda x: x.sample(KEY, (50,)), (x,), (x,))]
        calls += [tabulated] if "table" in distribution._drawn_by()[0].methods else []
        for method, argument in METHODS.items():
            given = {"value": (value,), "number": (np.asarray(0.3, dtype),)}.get(argument, ())
            if hasattr(distribution, method) and not (name.startswith("mixture") and method != "log_prob"):
                calls.append(lambda x, method=method, given=given: getattr(x, method)(*given))
        for call in calls:
            shapes = jax.tree.leaves(jax.eval_shape(call, jax.tree.map(jnp.asarray, distribution)))
            assert all(shape.dtype in (dtype, jnp.complex64) for shape in shapes), call


@pytest.mark.parametrize("name", ["WrappedCauchy", *slow("4 dimensions", "WrappedNormal", "IsotropicGaussianSO3")])
def test_draws_in_64_bits(name):
    """Draws of float32 parameters are the same in 64-bit mode; those of rotations by the table, up to rounding."""
    call = tabulated if name == "IsotropicGaussianSO3" else direct
    drawn = []
    for wide in (False, True):
        with jax.enable_x64(wide):
            drawn.append(np.asarray(call(narrow(np.float32)[name])))
    assert drawn[0].dtype == drawn[1].dtype == np.float32
    np.testing.assert_allclose(*drawn, atol=4e-7)
