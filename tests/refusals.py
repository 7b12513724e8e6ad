"""Call all public functions with invalid arguments from a table, and report how each call ends.

``python -m tests.refusals FOLDER`` calls every function with one invalid argument at a time. It prints a line of JSON
for each call: function, argument, value, and outcome. A call that takes longer than `PATIENCE` ends the program with a
traceback.
"""

import faulthandler
import inspect
import json
import os
import sys
import warnings
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

import jax_von_mises as jvm
import jax_von_mises.numpyro
from jax_von_mises import rotations, runtime

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
    "iterable": [None, 3, HUGE],
    "name": [object(), None, -1, 2**64, NAN, b"bytes", DEEP, HUGE, "\ud800", "x\udcff" * 999],
    "axis": ["text", 1.5, 9, -9, (0, 0), NAN, DEEP, HUGE],
    "mapped axis": [*NOTHING, 0, "data", ()],
    "devices": [DEEP, HUGE, 3, "cpu", [], [None], [jax.devices()[0]] * 2],
    "device": [DEEP, HUGE, 3, "cpu", jax.devices()],
    "share": [*WORDS, 0, -1, 1.5, NAN, True, [0.5]],
    "flags": [DEEP, HUGE, {"--xla_x": HUGE}, 3, "no flags", [1]],
    "distribution": [*NOTHING, 3],
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


PARAMETERS = arrays(("loc", "concentration"))
DRAWN = {"key": KEY, **PARAMETERS}
DRAW = {"key": "key", "loc": "numbers", "concentration": "numbers", "dtype": "dtype"}
ONE = jvm.VonMises(0.5, np.full(3, 2.0, np.float32))
TORUS, MIXTURE = jvm.Torus(ONE), jvm.Mixture(logits=np.zeros(3, np.float32), components=ONE)
MEAN = np.float32([0.0, 0.0, 1.0])
FISHER = jvm.VonMisesFisher(MEAN, np.full(3, 2.0, np.float32))
THEIR_FISHER = jax_von_mises.numpyro.VonMisesFisher(MEAN, 2.0, validate_args=False)
ROTATION = rotations.IsotropicGaussianSO3(np.eye(1, 4, dtype=np.float32)[0], 0.5)
PAIR = jvm.SineBivariateVonMises(0.5, 1.0, np.full(2, 2.0, np.float32), 3.0, 1.0)
THEIR_PAIR = jax_von_mises.numpyro.SineBivariateVonMises(0.5, 1.0, 2.0, 3.0, 1.0, validate_args=False)
PAIR_NAMES = "phi_loc", "psi_loc", "phi_concentration", "psi_concentration", "correlation"
THEIRS = jax_von_mises.numpyro.VonMises(0.5, np.full(3, 2.0, np.float32), validate_args=False)
COSINE = lambda x, k: k * jnp.cos(x)  # noqa: E731
CIRCULAR, SKEWED = jvm.CircularDistribution(COSINE, 1.0), jvm.SineSkewed(jvm.VonMises(0.5, 2.0), 0.3)
SAMPLE = {"key": KEY, "sample_shape": (2,)}
SAMPLED = {
    **{"key": "key", "sample_shape": "shape"},
    **{"start": "start", "method": "choice", "out_sharding": "sharding"},
}
# Methods that call another one, which the message names.
ALIASES = {
    **{"log_cdf": "cdf", "log_sf": "sf", "survival_function": "sf", "log_survival_function": "sf"},
    **{"quantile": "icdf", "prob": "log_prob"},
}
VALUE = {"value": np.full(3, 0.5, np.float32)}


def methods(distribution, name, **functions):
    """Return rows for methods that take numbers; `functions` maps each method to the function that it calls."""
    rows = {}
    for method, called in functions.items():
        call = getattr(distribution, method)
        argument = next(iter(inspect.signature(call).parameters))
        function = getattr(jvm, called)
        renamed = None if inspect.isclass(function) else next(iter(inspect.signature(function).parameters))
        rows[f"{name}.{method}"] = Refusal(call, arrays([argument]), {argument: "numbers"}, called, renamed)
    return rows


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
        "VonMises": Refusal(
            lambda **given: jvm.VonMises(**given, validate_args=True), PARAMETERS, dict.fromkeys(PARAMETERS, "numbers")
        ),
        **methods(
            ONE,
            "VonMises",
            **{name: name for name in ("log_prob", "prob", "cdf", "log_cdf", "sf", "log_sf", "icdf", "isf")},
            **{
                "standard_errors": "standard_errors",
                "survival_function": "sf",
                "log_survival_function": "log_sf",
                "quantile": "icdf",
            },
        ),
        **methods(TORUS, "Torus", log_prob="log_prob", prob="prob"),
        **methods(
            MIXTURE,
            "Mixture",
            **dict.fromkeys(("log_prob", "prob", "responsibilities", "cdf", "sf", "log_cdf", "log_sf"), "Mixture"),
            **dict.fromkeys(("survival_function", "log_survival_function", "icdf"), "Mixture"),
        ),
        "Mixture.quantile": Refusal(MIXTURE.quantile, VALUE, {"value": "numbers"}, "Mixture.icdf", "q"),
        **methods(ONE, "VonMises", interval="VonMises"),
        "VonMises.moment": Refusal(ONE.moment, {"order": 1}, {"order": "count"}),
        **{
            f"{cls}.sample_and_log_prob": Refusal(
                one.sample_and_log_prob, {"seed": KEY}, {"seed": "key", "sample_shape": "shape"}, "sample", "key"
            )
            for cls, one in (("Torus", TORUS), ("Mixture", MIXTURE))
        },
        **methods(THEIRS, "numpyro.VonMises", log_prob="log_prob", cdf="cdf", icdf="icdf"),
        "VonMises.sample": Refusal(ONE.sample, SAMPLE, SAMPLED, "sample"),
        "VonMises.sample_and_log_prob": Refusal(
            ONE.sample_and_log_prob, {"seed": KEY}, {"seed": "key", "sample_shape": "shape"}, "VonMises.sample", "key"
        ),
        **{
            f"{cls}.{name}": Refusal(getattr(one, name), {"other": one}, {"other": "distribution"})
            for cls, one, names in (
                ("VonMises", ONE, ("kl_divergence", "cross_entropy", "multiply", "convolve")),
                ("VonMisesFisher", FISHER, ("kl_divergence", "multiply", "convolve")),
                ("Torus", TORUS, ("kl_divergence",)),
            )
            for name in names
        },
        **{
            f"{cls.__name__}.from_natural": Refusal(
                lambda cls=cls, **given: cls.from_natural(**given, validate_args=True),
                {"natural": np.ones(2, np.float32)},
                {"natural": "numbers"},
            )
            for cls in (jvm.VonMises, jvm.VonMisesFisher)
        },
        "VonMisesFisher": Refusal(
            lambda **given: jvm.VonMisesFisher(**given, validate_args=True),
            {"mean_direction": MEAN, "concentration": 1.0},
            dict.fromkeys(("mean_direction", "concentration"), "vector"),
        ),
        **{
            f"VonMisesFisher.{name}": Refusal(getattr(FISHER, name), {argument: MEAN}, {argument: "numbers"}, called)
            for name, argument, called in (
                ("log_prob", "value", None),
                ("prob", "value", "log_prob"),
                ("cosine_cdf", "value", None),
                ("cosine_icdf", "q", None),
                ("standard_errors", "size", None),
            )
        },
        "VonMisesFisher.sample": Refusal(FISHER.sample, SAMPLE, SAMPLED, "sample"),
        "VonMisesFisher.sample_and_log_prob": Refusal(
            FISHER.sample_and_log_prob, {"seed": KEY}, {"seed": "key", "sample_shape": "shape"}, "sample", "key"
        ),
        "VonMisesFisher.fit": Refusal(
            jvm.VonMisesFisher.fit,
            {"samples": np.eye(3, dtype=np.float32)},
            {
                **{"samples": "numbers", "weights": "numbers", "axis": "axis"},
                **{"mean_direction": "vector", "bias_correction": "flag", "size": "vector"},
            },
        ),
        "IsotropicGaussianSO3": Refusal(
            lambda **given: rotations.IsotropicGaussianSO3(**given, validate_args=True),
            {"mean_rotation": ROTATION.mean_rotation, "scale": 1.0},
            dict.fromkeys(("mean_rotation", "scale"), "vector"),
        ),
        **{
            f"IsotropicGaussianSO3.{name}": Refusal(
                getattr(ROTATION, name), {"value": ROTATION.mean_rotation}, {"value": "numbers"}, called
            )
            for name, called in (("log_prob", None), ("prob", "log_prob"), ("score", None))
        },
        "IsotropicGaussianSO3.sample": Refusal(ROTATION.sample, SAMPLE, SAMPLED, "sample"),
        "IsotropicGaussianSO3.sample_and_log_prob": Refusal(
            ROTATION.sample_and_log_prob, {"seed": KEY}, {"seed": "key", "sample_shape": "shape"}, "sample", "key"
        ),
        **{
            cls.__name__: Refusal(
                lambda cls=cls, **given: cls(**given, validate_args=True),
                arrays(PAIR_NAMES),
                dict.fromkeys(PAIR_NAMES, "numbers"),
            )
            for cls in (jvm.SineBivariateVonMises, jvm.CosineBivariateVonMises)
        },
        **{
            f"SineBivariateVonMises.{name}": Refusal(
                getattr(PAIR, name), {argument: value}, {argument: "numbers"}, called
            )
            for name, argument, value, called in (
                ("log_prob", "value", np.ones(2, np.float32), None),
                ("prob", "value", np.ones(2, np.float32), "log_prob"),
                ("conditional", "phi", np.ones(2, np.float32), None),
                ("marginal_log_prob", "phi", np.ones(2, np.float32), None),
                ("standard_errors", "size", 10.0, None),
            )
        },
        "SineBivariateVonMises.sample": Refusal(PAIR.sample, SAMPLE, SAMPLED, "sample"),
        "SineBivariateVonMises.sample_and_log_prob": Refusal(
            PAIR.sample_and_log_prob, {"seed": KEY}, {"seed": "key", "sample_shape": "shape"}, "sample", "key"
        ),
        "SineBivariateVonMises.marginal": Refusal(
            jvm.SineBivariateVonMises(0.5, 1.0, 2.0, 3.0, 1.0).marginal, {"axis": 0}, {"axis": "axis"}
        ),
        "SineBivariateVonMises.fit": Refusal(
            jvm.SineBivariateVonMises.fit,
            {"samples": np.eye(2, dtype=np.float32)},
            {"samples": "numbers", "weights": "numbers", "axis": "axis"},
        ),
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
            },
        ),
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
            lambda **given: jvm.SineSkewed(**given, validate_args=True),
            {"distribution": ONE, "skewness": 0.5},
            {"distribution": "distribution", "skewness": "numbers"},
        ),
        **{
            f"{cls}.{name}": Refusal(
                getattr(one, name),
                {argument: 0.5},
                {argument: "numbers"},
                f"{cls}.{called}",
                "q" if called == "icdf" else None,
            )
            for cls, one, names in (
                ("CircularDistribution", CIRCULAR, ("log_prob", "cdf", "sf", "icdf", "isf", *ALIASES)),
                ("SineSkewed", SKEWED, ("log_prob", "cdf", "sf", "icdf", "isf", *ALIASES)),
            )
            for name in names
            for argument, called in [("q" if name in ("icdf", "isf") else "value", ALIASES.get(name, name))]
        },
        **{
            f"{cls}.{name}": Refusal(getattr(one, name), good, kinds, f"{cls}.sample", "key")
            for cls, one in (("CircularDistribution", CIRCULAR), ("SineSkewed", SKEWED))
            # `CircularDistribution` compiles its table, which takes seconds, before it checks the start.
            for name, good, kinds in (
                ("sample", SAMPLE, {k: v for k, v in SAMPLED.items() if k != "start" or cls == "SineSkewed"}),
                ("sample_and_log_prob", {"seed": KEY}, {"seed": "key", "sample_shape": "shape"}),
            )
        },
        **{
            f"{cls}.{name}": Refusal(getattr(one, name), {argument: value}, {argument: kind}, f"{cls}.{name}")
            for cls, one in (
                ("CircularDistribution", CIRCULAR),
                ("SineSkewed", SKEWED),
                ("Mixture", MIXTURE),
            )
            for name, argument, value, kind in (
                ("interval", "mass", 0.5, "numbers"),
                ("isf", "q", 0.5, "numbers"),
                ("moment", "order", 1, "count"),
                ("kl_divergence", "other", CIRCULAR, "distribution"),
            )
        },
        **{
            cls.__name__: Refusal(
                lambda cls=cls, **given: cls(**given, validate_args=True),
                {"loc": 0.5, shape: 0.3},
                dict.fromkeys(("loc", shape), "numbers"),
            )
            for cls, shape in ((jvm.WrappedCauchy, "rho"), (jvm.Cardioid, "rho"), (jvm.WrappedNormal, "scale"))
        },
        "VonMises.fit": Refusal(jvm.VonMises.fit, {"samples": np.ones(3, np.float32)}, {"samples": "numbers"}, "fit"),
        "Torus": Refusal(
            lambda components: jvm.Torus(components).mean(), {"components": ONE}, {"components": "distribution"}
        ),
        "Torus.sample": Refusal(TORUS.sample, SAMPLE, SAMPLED, "sample"),
        "Mixture": Refusal(
            lambda **given: jvm.Mixture(**given).log_weights(),
            {"logits": np.zeros(3, np.float32), "components": ONE},
            {"logits": "numbers", "components": "distribution"},
        ),
        "Mixture.sample": Refusal(MIXTURE.sample, SAMPLE, SAMPLED, "sample"),
        "numpyro.VonMises.sample": Refusal(THEIRS.sample, {"key": KEY}, {"key": "key"}, "VonMises.sample"),
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
            {**DRAW, "start": "start", "shape": "shape", "method": "choice"},
        ),
        "sample_pmap": Refusal(
            jvm.sample_pmap,
            {**DRAWN, "shape": (jax.local_device_count(), 3)},
            {**DRAW, "shape": "shape", "method": "choice", "devices": "devices"},
        ),
        "sample_shard": Refusal(
            jvm.sample_shard,
            {**DRAWN, "shape": (3,), "axis_name": "data"},
            {"shape": "shape", "axis_name": "mapped axis"},
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
            },
        ),
        "batched_apply": Refusal(
            jvm.batched_apply,
            {"f": jnp.sin, "arrays": np.ones(4, np.float32), "batch_size": 2},
            {"f": "function", "batch_size": "count", "out": "flag"},
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
                **dict.fromkeys(("platform", "allocator"), "choice"),
                **dict.fromkeys(("x64", "preallocate", "latency_hiding", "profile_guided", "cuda_kernels"), "flag"),
                **dict.fromkeys(
                    ("threads", "vector_width", "cpu_devices", "compile_threads", "profiled_runs"), "count"
                ),
                "memory_fraction": "share",
                "xla_flags": "flags",
            },
        ),
    },
}


# Functions and methods without an argument that could be invalid.
WITHOUT_ARGUMENTS = {
    *(f"{cls}.{name}" for cls in ("VonMises", "VonMisesFisher") for name in ("natural", "kl_to_uniform")),
    *(f"{cls}.{name}" for cls in ("VonMises", "Torus", "Mixture") for name in ("batch_shape", "event_shape", "dtype")),
    *(f"{cls}.broadcast" for cls in ("VonMises", "Torus", "Mixture")),
    *(f"VonMises.{name}" for name in ("entropy", "mean", "mode", "variance", "stddev", "mean_resultant_length")),
    *(f"Torus.{name}" for name in ("mean", "mode", "entropy")),
    *(f"Mixture.{name}" for name in ("log_weights", "probs", "mean", "mean_resultant_length", "variance", "stddev")),
    *(f"Mixture.{name}" for name in ("entropy", "mode")),
    *(f"VonMisesFisher.{name}" for name in ("batch_shape", "event_shape", "dtype", "dimension", "broadcast")),
    *(f"VonMisesFisher.{name}" for name in ("mean", "mode", "mean_resultant_length", "entropy")),
    *(f"IsotropicGaussianSO3.{name}" for name in ("batch_shape", "event_shape", "dtype", "broadcast", "mode", "mean")),
    "IsotropicGaussianSO3.expected_score_norm",
    *(
        f"{cls}.{name}"
        for cls in ("CircularDistribution", "SineSkewed")
        for name in (
            *("batch_shape", "event_shape", "dtype", "broadcast"),
            *("entropy", "mean", "mode", "mean_resultant_length", "variance", "stddev"),
        )
    ),
    *(f"CircularDistribution.{name}" for name in ("error", "log_normalizer", "tabulate")),
    *(f"numpyro.VonMisesFisher.{name}" for name in ("mean", "mode", "entropy")),
    *(f"numpyro.VonMises.{name}" for name in ("mean", "mode", "variance", "entropy")),
    *(f"SineBivariateVonMises.{name}" for name in ("batch_shape", "event_shape", "dtype", "broadcast")),
    *(f"SineBivariateVonMises.{name}" for name in ("mean", "moments", "entropy")),
    *(f"numpyro.SineBivariateVonMises.{name}" for name in ("mean", "entropy")),
    *("cache_info", "memory_report"),
}
# Classes of results, which users do not construct.
RESULTS = {"CacheInfo", "Compiled", "DeviceMemory", "Diagnosis", "Finding"}


def public():
    """Return the names of all public functions and methods."""
    classes = {"VonMises": jvm.VonMises, "Torus": jvm.Torus, "Mixture": jvm.Mixture}
    classes |= {"VonMisesFisher": jvm.VonMisesFisher, "numpyro.VonMises": jax_von_mises.numpyro.VonMises}
    classes |= {"CircularDistribution": jvm.CircularDistribution, "SineSkewed": jvm.SineSkewed}
    classes["numpyro.VonMisesFisher"] = jax_von_mises.numpyro.VonMisesFisher
    classes["IsotropicGaussianSO3"] = rotations.IsotropicGaussianSO3
    classes["SineBivariateVonMises"] = jvm.SineBivariateVonMises.__base__
    classes["numpyro.SineBivariateVonMises"] = jax_von_mises.numpyro.SineBivariateVonMises.__base__
    names = {*jvm.__all__, *rotations.__all__, *runtime.__all__} - {"runtime"} - RESULTS
    for name, cls in classes.items():
        ours = [each for each in cls.__mro__ if each.__module__.startswith("jax_von_mises")]
        members = {member: value for each in ours for member, value in vars(each).items()}
        names |= {f"{name}.{member}" for member, value in members.items() if member[0] != "_" and acts(value)}
    return names


def acts(member):
    """Return whether a member of a class is a method or a property."""
    return inspect.isroutine(member) or isinstance(member, property | classmethod)


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
