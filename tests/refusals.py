"""Call all public functions with invalid arguments from a table, and report how each call ends.

``python -m tests.refusals FOLDER`` calls every function with one invalid argument at a time. It prints a line of JSON
for each call: function, argument, value, and outcome. A call that takes longer than `PATIENCE` ends the program with a
traceback.
"""

import faulthandler
import inspect
import json
import operator
import os
import sys
import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec
from scipy.spatial.transform import Rotation

import jax_von_mises as jvm
import jax_von_mises.numpyro
from jax_von_mises import rotations, runtime, statistics
from jax_von_mises.engine.base import Distribution, Parametric
from tests.distributions.conformance.examples import takes_samples

# Longest time of a call in seconds; a call compiles at most a small program.
PATIENCE = 30
KEY = jax.random.key(3)
DEEP: list = [1.0]
for _ in range(5_000):
    DEEP = [DEEP]
# Python can print neither this integer nor the list above, so a message that shows them would fail.
HUGE = 10**5_000
WORDS = ["text", object(), DEEP, HUGE]
NOTHING = [None, *WORDS]
# Larger than any memory, disk, or 64-bit counter.
ABSURD = 10**30
NAN, INF = float("nan"), float("inf")
COUNTS = [*NOTHING, -1, 1.5, NAN, True, np.zeros(2, int)]

# Invalid values for each kind of argument, one for each kind of mistake; None is invalid unless it is the default.
BAD = {
    "key": [*WORDS, 0, NAN, np.zeros(3), np.zeros(2, np.int32), np.zeros((3, 2), np.uint32), jax.random.split(KEY, 3)],
    "numbers": [*NOTHING, 1j, True, [[1.0], [1.0, 2.0]], np.array(["a"]), np.ma.masked_array([1.0], [True]), KEY],
    "vector": [*WORDS, 1j, True, [[1.0], [1.0, 2.0]], np.array(["a"]), np.ma.masked_array([1.0], [True]), KEY],
    "shape": [*WORDS, -1, NAN, True, (2, 1.5), ((2,),), np.array([[2]]), ABSURD, (2**31, 2**31), (2, HUGE), (1,) * 65],
    "dtype": [*WORDS, "int32", complex, "float64", 7],
    "choice": [*WORDS, 3, ""],
    "count": COUNTS,
    "limit": COUNTS[1:],
    "size": [*COUNTS, ABSURD],
    "place": [*COUNTS, ABSURD],  # a position or a count in a stream of 2^64 angles
    "start": [*NOTHING, (0, HUGE), -1, 2**64, NAN, (1, 2, 3), (0, 2**32), np.zeros(2)],
    "sharding": [*WORDS, 3, PartitionSpec("data")],
    "flag": [*WORDS, 1, np.zeros(2, bool), NAN],
    "seconds": [*NOTHING, 1e10, -1.0, NAN, INF, True, np.zeros(2)],
    "path": [object(), 3, DEEP, HUGE, "a\0.npy", "\ud800.npy", "file:///tmp/a.npy"],
    "function": [3, "text", DEEP, HUGE],
    "fit": [*NOTHING, 3, Distribution],
    "iterable": [None, 3, HUGE],
    "name": [object(), None, -1, 2**64, NAN, b"bytes", DEEP, HUGE, "\ud800", "x\udcff" * 999],
    "axis": ["text", 1.5, 9, -9, (0, 0), NAN, DEEP, HUGE],
    "mapped axis": [*NOTHING, 0, "data", ()],
    "devices": [DEEP, HUGE, 3, "cpu", [], [None], [jax.devices()[0]] * 2],
    "device": [DEEP, HUGE, 3, "cpu", jax.devices()],
    "share": [*WORDS, 0, -1, 1.5, NAN, True, [0.5]],
    "flags": [DEEP, HUGE, {"--xla_x": HUGE}, 3, "no flags", [1]],
    "distribution": [*NOTHING, 3],
    "family": [*NOTHING, 3],
    "tolerance": [*NOTHING, NAN, np.zeros(2)],
    "rows": [*WORDS, 3.0, {"x": np.zeros(3), "y": np.zeros(2)}, np.zeros(())],
}


def written(value):
    """Return the text of a value, or its type if it cannot be printed."""
    try:
        return repr(value)[:60]
    except (ValueError, RecursionError):
        return f"of type {type(value).__name__}"


BAD["path of utf-8"] = [*BAD["path"], "\udcff"]


class Refusal(NamedTuple):
    """A public function, valid arguments for it, and the kind of each argument to make invalid."""

    function: object
    good: dict
    kinds: dict
    reported_as: str | None = None
    """The function name in messages if it differs, for example because a method calls another function."""
    renamed: str | None = None
    """Another name that messages may use for the argument."""


def arrays(names):
    """Return valid numbers for arguments with these names."""
    return {name: np.full(3, 0.5, np.float32) for name in names}


def of_numbers(function):
    """Return the row for a function of arrays that broadcast."""
    names = list(inspect.signature(function).parameters)
    return Refusal(function, arrays(names), dict.fromkeys(names, "numbers"))


def in_shards(axis_name="rows", **given):
    """Call `sample_shard` where there is the axis `rows`."""
    mesh = jax.make_mesh((1,), ("rows",), devices=jax.devices()[:1])
    draw = jax.shard_map(
        lambda: jvm.sample_shard(axis_name=axis_name, **given), mesh=mesh, in_specs=(), out_specs=PartitionSpec("rows")
    )
    return draw()


PARAMETERS = arrays(("loc", "concentration"))
TWO = jvm.Mixture(probs=[0.5, 0.5], components=jvm.VonMises([0.0, 1.0], [1.0, 2.0]))
DRAWN = {"key": KEY, **PARAMETERS}
DRAW = {"key": "key", "loc": "numbers", "concentration": "numbers", "dtype": "dtype"}
ONE = jvm.VonMises(0.5, np.full(3, 2.0, np.float32))
MEAN = np.float32([0.0, 0.0, 1.0])
THEIR_FISHER = jax_von_mises.numpyro.VonMisesFisher(MEAN, 2.0, validate_args=False)
THEIR_PAIR = jax_von_mises.numpyro.SineBivariateVonMises(0.5, 1.0, 2.0, 3.0, 1.0, validate_args=False)
THEIRS = jax_von_mises.numpyro.VonMises(0.5, np.full(3, 2.0, np.float32), validate_args=False)
LOGITS = np.zeros(3, np.float32)
COSINE = lambda x, k: k * jnp.cos(x)  # noqa: E731


# Functions and methods, grouped by part of the package.
FUNCTIONS = {
    "distributions": {
        **{
            name: of_numbers(getattr(jvm, name))
            for name in (
                *("log_prob", "prob", "cdf", "sf", "log_cdf", "log_sf", "icdf", "isf"),
                *("entropy", "mean", "mode", "variance", "stddev", "kl_divergence", "standard_errors"),
            )
        },
        "fit": Refusal(
            jvm.fit,
            {"samples": np.ones(3, np.float32)},
            {
                **{"samples": "numbers", "weights": "numbers", "axis": "axis", "loc": "vector"},
                **{"bias_correction": "flag", "size": "vector"},
            },
        ),
        **{
            f"numpyro.VonMises.{name}": Refusal(
                getattr(THEIRS, name), {argument: 0.5}, {argument: "numbers"}, name, renamed
            )
            for name, argument, renamed in (("log_prob", "value", "x"), ("cdf", "value", "x"), ("icdf", "q", None))
        },
        "Bingham.fit": Refusal(
            jvm.Bingham.fit,
            {"samples": np.eye(3, dtype=np.float32)},
            {"samples": "numbers", "weights": "numbers", "axis": "axis"},
        ),
        "Bingham.from_axes": Refusal(
            jvm.Bingham.from_axes,
            {"axes": np.eye(3), "concentrations": np.ones(3)},
            {"axes": "vector", "concentrations": "vector"},
        ),
        "Bingham.watson": Refusal(
            jvm.Bingham.watson,
            {"axis": np.ones(3), "concentration": 1.0},
            {"axis": "vector", "concentration": "numbers"},
        ),
        "Kent.fit": Refusal(
            jvm.Kent.fit,
            {"samples": np.eye(3, dtype=np.float32)},
            {"samples": "numbers", "weights": "numbers", "axis": "axis"},
        ),
        **{
            f"{cls.__name__}.fit": Refusal(cls.fit, {"samples": samples}, kinds)
            for cls, samples in (
                *((cls, np.arange(3, dtype=np.float32)) for cls in (jvm.WrappedCauchy, jvm.Cardioid)),
                (jvm.WrappedNormal, np.arange(3, dtype=np.float32)),
                *((cls, np.eye(3, dtype=np.float32)) for cls in (jvm.ProjectedNormal, jvm.Torus)),
            )
            for kinds in ({"samples": "numbers", "weights": "numbers", "axis": "axis"},)
        },
        "TruncatedVonMises.fit": Refusal(
            jvm.TruncatedVonMises.fit,
            {"samples": np.ones(3, np.float32), "low": 0.0, "high": 2.0},
            {"samples": "numbers", "low": "numbers", "high": "numbers", "weights": "numbers", "axis": "axis"},
        ),
        "SineSkewed.fit": Refusal(
            jvm.SineSkewed.fit,
            {"samples": np.arange(3, dtype=np.float32), "distribution": jvm.VonMises},
            {"samples": "numbers", "distribution": "distribution", "weights": "numbers", "axis": "axis"},
        ),
        "CircularDistribution.fit": Refusal(
            jvm.CircularDistribution.fit,
            {"log_density": COSINE, "samples": np.arange(3, dtype=np.float32), "start": [1.0]},
            {
                **{"log_density": "function", "samples": "numbers", "start": "iterable", "weights": "numbers"},
                **{"nodes": "count", "wide": "flag", "points": "vector"},
            },
            "CircularDistribution",
        ),
        "MatrixFisher.fit": Refusal(
            rotations.MatrixFisher.fit,
            {"samples": np.eye(4, dtype=np.float32)},
            {"samples": "numbers", "weights": "numbers", "axis": "axis"},
        ),
        "IsotropicGaussianSO3.fit": Refusal(
            rotations.IsotropicGaussianSO3.fit,
            {"samples": np.eye(4, dtype=np.float32)},
            {"samples": "numbers", "weights": "numbers", "axis": "axis"},
        ),
        "MatrixFisher.from_mode": Refusal(
            rotations.MatrixFisher.from_mode,
            {"mode": np.ones(4), "axes": np.eye(3), "concentrations": np.ones(3)},
            {"mode": "vector", "axes": "vector", "concentrations": "vector"},
        ),
        "MatrixFisher.from_mean": Refusal(
            rotations.MatrixFisher.from_mean, {"mean": 0.5 * np.eye(3)}, {"mean": "numbers"}
        ),
        "MatrixFisher.isotropic": Refusal(
            rotations.MatrixFisher.isotropic,
            {"mode": np.ones(4), "concentration": 1.0},
            {"mode": "vector", "concentration": "numbers"},
        ),
        **{
            name: Refusal(
                getattr(rotations, name),
                {each: np.ones(4 if each in "pq" else (3, 3) if each == "matrix" else 3) for each in given},
                dict.fromkeys(given, "numbers"),
                f"rotations.{name}",
            )
            for name, given in {
                **{
                    "multiply": "pq",
                    "inverse": "q",
                    "to_matrix": "q",
                    "to_scipy": "q",
                    "angle_between": "pq",
                    "log": "q",
                },
                **{"apply": ("q", "vector"), "exp": ("vector",), "from_matrix": ("matrix",)},
            }.items()
        },
        "slerp": Refusal(
            rotations.slerp,
            {"p": np.ones(4), "q": np.ones(4), "t": 0.5},
            {"p": "numbers", "q": "numbers", "t": "numbers"},
            "rotations.slerp",
        ),
        "from_scipy": Refusal(
            rotations.from_scipy,
            {"rotation": Rotation.identity()},
            {"rotation": "distribution"},
            "rotations.from_scipy",
        ),
        "VonMisesFisher.fit": Refusal(
            jvm.VonMisesFisher.fit,
            {"samples": np.eye(3, dtype=np.float32)},
            {
                **{"samples": "numbers", "weights": "numbers", "axis": "axis"},
                **{"mean_direction": "vector", "bias_correction": "flag", "size": "vector"},
            },
        ),
        **{
            f"{cls.__name__}.{name}": Refusal(function, good, kinds)
            for cls in (jvm.SineBivariateVonMises, jvm.CosineBivariateVonMises)
            for name, function, good, kinds in (
                ("marginal", cls(0.5, 1.0, 2.0, 3.0, 1.0).marginal, {"axis": 0}, {"axis": "axis"}),
                (
                    *("fit", cls.fit, {"samples": np.eye(2, dtype=np.float32)}),
                    {"samples": "numbers", "weights": "numbers", "axis": "axis"},
                ),
            )
        },
        "Mixture.fit": Refusal(
            jvm.Mixture.fit,
            {"samples": np.arange(3, dtype=np.float32), "components": jvm.VonMises, "number": 2},
            {
                **{
                    "samples": "numbers",
                    "components": "distribution",
                    "weights": "numbers",
                    "axis": "axis",
                    "number": "count",
                },
                **{"key": "key", "starts": "count", "steps": "count", "progress": "flag"},
                **{"tolerance": "tolerance", "largest_concentration": "tolerance", "tied": "flag", "fixed": "fit"},
            },
        ),
        **{
            f"Mixture.{name}": Refusal(
                getattr(TWO, name),
                {"samples": np.arange(3, dtype=np.float32)},
                {"samples": "numbers", **kinds},
                renamed="value" if name == "predict" else None,
            )
            for name, kinds in {
                "predict": {},
                "log_likelihood": {"weights": "numbers", "axis": "axis"},
                "bic": {"weights": "numbers", "axis": "axis", "parameters": "count"},
                "aic": {"weights": "numbers", "axis": "axis", "parameters": "count"},
                "standard_errors": {"weights": "numbers"},
            }.items()
        },
        **{
            f"{type(one).__name__}.standard_errors": Refusal(
                one.standard_errors,
                {"samples": np.ones((3, *one.event_shape), np.float32)},
                {"samples": "numbers", "weights": "numbers"},
            )
            for one in (
                jvm.SineSkewed(jvm.VonMises(0.0, 1.0), 0.5),
                jvm.TruncatedVonMises(0.0, 1.0, -1.0, 2.0),
                jvm.CircularDistribution(COSINE, 1.0),
                jvm.ProjectedNormal(np.ones(3, np.float32)),
            )
        },
        "numpyro.SineBivariateVonMises.sample": Refusal(THEIR_PAIR.sample, {"key": KEY}, {"key": "key"}, "sample"),
        "numpyro.SineBivariateVonMises.log_prob": Refusal(
            THEIR_PAIR.log_prob, {"value": np.ones(2, np.float32)}, {"value": "numbers"}, "log_prob"
        ),
        "numpyro.VonMisesFisher.sample": Refusal(THEIR_FISHER.sample, {"key": KEY}, {"key": "key"}, "sample"),
        "numpyro.VonMisesFisher.log_prob": Refusal(
            THEIR_FISHER.log_prob, {"value": MEAN}, {"value": "numbers"}, "VonMisesFisher.log_prob"
        ),
        "CircularDistribution": Refusal(
            lambda log_density, parameters, **given: jvm.CircularDistribution(log_density, parameters, **given),
            {"log_density": COSINE, "parameters": 1.0},
            {
                **{"log_density": "function", "parameters": "numbers", "nodes": "count", "wide": "flag"},
                "points": "vector",
            },
        ),
        "SineSkewed": Refusal(
            jvm.SineSkewed,
            {"distribution": ONE, "skewness": 0.5, "validate_args": True},
            {"distribution": "distribution", "skewness": "numbers"},
        ),
        "VonMises.fit": Refusal(
            jvm.VonMises.fit,
            {"samples": np.ones(3, np.float32)},
            {
                **{"samples": "numbers", "weights": "numbers", "axis": "axis", "loc": "vector"},
                **{"bias_correction": "flag", "size": "vector"},
            },
            "fit",
        ),
        "Torus": Refusal(
            lambda components: jvm.Torus(components).mean(), {"components": ONE}, {"components": "distribution"}
        ),
        "Mixture": Refusal(
            # Either of them is given; the default is valid logits.
            lambda probs=None, logits=LOGITS, **given: jvm.Mixture(
                **given | ({"logits": logits} if probs is None else {"probs": probs})
            ).log_weights(),
            {"components": ONE},
            {"logits": "numbers", "probs": "vector", "components": "distribution"},
        ),
        "numpyro.VonMises.sample": Refusal(THEIRS.sample, {"key": KEY}, {"key": "key"}, "VonMises.sample"),
    },
    "statistics": {
        **{
            name: Refusal(
                getattr(statistics, name),
                {each: np.arange(3, dtype=np.float32) for each in kinds if each in ("samples", "x", "y")},
                {**kinds, "axis": "axis"},
                f"statistics.{name}",
            )
            for name, kinds in {
                "rayleigh_test": {"samples": "numbers", "weights": "numbers"},
                "watson_test": {"samples": "numbers", "distribution": "distribution"},
                "kuiper_test": {"samples": "numbers", "distribution": "distribution"},
                "circular_correlation": {"x": "numbers", "y": "numbers", "weights": "numbers"},
                "confidence_interval": {"samples": "numbers", "level": "share", "weights": "numbers"},
            }.items()
        },
        "goodness_of_fit": Refusal(
            statistics.goodness_of_fit,
            {"key": KEY, "samples": np.arange(3, dtype=np.float32), "fit": jvm.VonMises, "number": 2},
            {"key": "key", "samples": "numbers", "fit": "fit", "number": "count", "axis": "axis"},
            "statistics.goodness_of_fit",
        ),
    },
    "samplers": {
        "sample_von_mises": Refusal(
            jvm.sample_von_mises, DRAWN, {**DRAW, "shape": "shape", "method": "choice", "out_sharding": "sharding"}
        ),
        "sample_von_mises_fisher": Refusal(
            jvm.sample_von_mises_fisher,
            {"key": KEY, "mean_direction": MEAN, "concentration": 1.0, "shape": (2,)},
            {
                **{"key": "key", "mean_direction": "vector", "concentration": "vector", "shape": "shape"},
                **{"dtype": "dtype", "start": "start", "method": "choice", "out_sharding": "sharding"},
            },
        ),
        "sample_block": Refusal(
            jvm.sample_block,
            {**DRAWN, "start": 0, "shape": (3,)},
            {**DRAW, "start": "start", "shape": "shape", "method": "choice", "distribution": "family"},
        ),
        "sample_pmap": Refusal(
            jvm.sample_pmap,
            {**DRAWN, "shape": (jax.local_device_count(), 3)},
            {**DRAW, "shape": "shape", "method": "choice", "devices": "devices"},
        ),
        "sample_shard": Refusal(
            in_shards,
            {**DRAWN, "shape": (3,), "axis_name": "rows"},
            {**DRAW, "shape": "shape", "axis_name": "mapped axis", "method": "choice"},
        ),
        "sample_antithetic": Refusal(jvm.sample_antithetic, {**DRAWN, "shape": (2, 3)}, {**DRAW, "shape": "shape"}),
        "sample_stratified": Refusal(jvm.sample_stratified, {**DRAWN, "shape": (2, 3)}, {**DRAW, "shape": "shape"}),
        "sample_truncated": Refusal(
            jvm.sample_truncated,
            {**DRAWN, "low": 0.0, "high": 1.0},
            {**DRAW, "low": "numbers", "high": "numbers", "shape": "shape"},
        ),
        "derive_key": Refusal(
            lambda key, path: jvm.derive_key(key, path), {"key": KEY, "path": "x"}, {"key": "key", "path": "name"}
        ),
    },
    "streams": {
        "sample_batches": Refusal(
            jvm.sample_batches,
            {**DRAWN, "total": 10, "batch_size": 3},
            {
                **DRAW,
                **dict.fromkeys(("total", "batch_size", "start"), "place"),
                "method": "choice",
                "donate": "flag",
                "out_sharding": "sharding",
                "distribution": "family",
            },
        ),
        "batched_apply": Refusal(
            jvm.batched_apply,
            {"f": jnp.sin, "arrays": np.ones(4, np.float32), "batch_size": 2},
            {"f": "function", "arrays": "rows", "batch_size": "count", "out": "flag"},
        ),
        "prefetch_to_host": Refusal(
            jvm.prefetch_to_host, {"iterator": (), "depth": 1}, {"iterator": "iterable", "depth": "count"}
        ),
        "write_samples": Refusal(
            jvm.write_samples,
            {"out": "a.npy", **DRAWN, "total": 10},
            {
                **DRAW,
                "out": "path",
                "total": "size",
                "method": "choice",
                "block_rows": "count",
                **dict.fromkeys(("resume", "force", "repair"), "flag"),
                **dict.fromkeys(("part", "parts"), "count"),
                **dict.fromkeys(("executor", "progress"), "function"),
                "distribution": "family",
            },
        ),
        "verify_samples": Refusal(jvm.verify_samples, {"out": "a.npy"}, {"out": "path", "executor": "function"}),
    },
    "runtime": {
        "initialize_compilation_cache": Refusal(
            jvm.initialize_compilation_cache,
            {"path": "cache"},
            {"path": "path of utf-8", "max_size": "limit", "allow_shared": "flag"},
        ),
        "warmup": Refusal(
            runtime.warmup,
            {"shapes": (3,)},
            {
                "shapes": "shape",
                "dtypes": "dtype",
                **dict.fromkeys(("loc", "concentration"), "numbers"),
                "key": "key",
                "method": "choice",
                "out_sharding": "sharding",
                "block": "flag",
            },
        ),
        "suggest_batch_size": Refusal(
            runtime.suggest_batch_size,
            {},
            {
                **dict.fromkeys(("loc", "concentration"), "numbers"),
                "shape": "shape",
                "dtype": "dtype",
                "method": "choice",
                "key": "key",
                "device": "device",
                "in_flight": "count",
                "share": "share",
            },
        ),
        "diagnose": Refusal(runtime.diagnose, {}, {"expect": "choice", "timeout": "seconds"}),
        "configure": Refusal(
            runtime.configure,
            {},
            {
                **dict.fromkeys(("x64", "preallocate", "cuda_kernels"), "flag"),
                "platform": "choice",
                "threads": "count",
                "memory_fraction": "share",
                "xla_flags": "flags",
            },
        ),
    },
}


# Functions without an argument.
WITHOUT_ARGUMENTS = {"cache_info", "memory_report"}


def public():
    """Return the names of all public functions and class methods, and of the classes that are made of others.

    The tests of conformance call the other methods and classes.
    """
    modules = dict.fromkeys(jvm.__all__, jvm) | dict.fromkeys(rotations.__all__, rotations)
    modules |= dict.fromkeys(runtime.__all__, runtime) | dict.fromkeys(statistics.__all__, statistics)
    found = set()
    for name, module in modules.items():
        value = getattr(module, name)
        if inspect.isfunction(value) or hasattr(value, "lower"):
            found.add(name)
        elif inspect.isclass(value) and issubclass(value, Distribution):
            found |= {name} - ({name} if issubclass(value, Parametric) else set())
            made_by = {each for each in dir(value) if isinstance(inspect.getattr_static(value, each), classmethod)}
            # Those from natural parameters are classes of their own, which take objects as pytrees do.
            made_by = {each for each in made_by if each[0] != "_"} - {"from_natural"}
            others = {"marginal", "predict", "log_likelihood", "bic", "aic"}
            others |= {"standard_errors"} if takes_samples(value) else set()  # the tests of conformance call the others
            found |= {f"{name}.{each}" for each in made_by | (others & set(dir(value)))}
    return found


def public_rows():
    """Return the name and the row of everything in the table, besides methods of the classes for NumPyro."""
    rows = [row for group in FUNCTIONS.values() for row in group.items()]
    return [(name, row) for name, row in rows if not name.startswith("numpyro.")]


def public_function(name):
    """Return the function or class of a row, which may call it through another function."""
    module = next(module for module in (jvm, rotations, runtime, statistics) if hasattr(module, name.split(".")[0]))
    return operator.attrgetter(name)(module)


def stands_for_default(function, argument):
    """Return whether the default of an argument is None."""
    parameters = inspect.signature(function).parameters
    return argument in parameters and parameters[argument].default is None


def refuse():
    """Make all calls; for each, yield the function, argument, value, error (None if it returned) and message."""
    for name, (function, good, kinds, reported_as, renamed) in {
        k: v for each in FUNCTIONS.values() for k, v in each.items()
    }.items():
        for argument, kind in kinds.items():
            for value in BAD[kind]:
                if value is None and stands_for_default(function, argument):
                    continue
                faulthandler.dump_traceback_later(PATIENCE, exit=True)
                error, text = None, ""
                try:
                    with warnings.catch_warnings():
                        warnings.simplefilter("ignore")
                        result = function(**(good | {argument: value}))
                    text = repr(result)[:80]
                except Exception as raised:
                    error, text = [cls.__name__ for cls in type(raised).__mro__], str(raised)
                yield {
                    "function": name,
                    "argument": argument,
                    "value": written(value),
                    "error": error,
                    "text": text,
                    "names": (reported_as or name, argument, renamed or argument),
                }


def main(folder):
    """Print a line of JSON for each call."""
    os.chdir(folder)
    for call in refuse():
        print(json.dumps(call), flush=True)
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    main(*sys.argv[1:])
