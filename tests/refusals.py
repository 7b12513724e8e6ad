"""What the public functions must refuse, in one table, and the program that gives it to them.

``python -m tests.refusals GROUP`` calls every function of a group with one bad argument at a time, and prints a line of
JSON for each call: function, argument, value, and what came of it. A call that takes longer than `PATIENCE` ends the
program, with a traceback.
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
from jax_von_mises import runtime
from jax_von_mises.distributions import numpyro

# Seconds for one call; none does more than compile a small program.
PATIENCE = 30
KEY = jax.random.key(3)
DEEP: list = [1.0]
for _ in range(5_000):
    DEEP = [DEEP]
# Integers that Python makes no text of; with the list above, what a message can fail to tell of.
HUGE = [10**5_000, -(10**5_000)]
WORDS = ["text", b"bytes", object(), {}, print, DEEP, *HUGE, "x" * 10**6]
NOTHING = [None, *WORDS]
# More than any memory, any disk, or any counter of 64 bits has.
ABSURD = [2**62, 10**30]
NAN, INF = float("nan"), float("inf")
COUNTS = [*NOTHING, -1, 1.5, NAN, INF, True, [], np.zeros(2, int), np.array(1.5)]

# Values that an argument of a kind cannot have. With None where nothing stands for a default.
BAD = {
    "key": [
        *WORDS,
        0,
        1.5,
        NAN,
        np.zeros(3),
        np.zeros(2, np.int32),
        np.zeros(0, np.uint32),
        np.zeros((3, 2), np.uint32),
        jax.random.split(KEY, 3),  # `sample_pmap` takes one for each device, of which there are two
        jax.random.split(KEY, 0),
    ],
    "numbers": [
        *NOTHING,
        1j,
        True,
        [[1.0], [1.0, 2.0]],
        np.array(["a"]),
        np.array([None]),
        np.array([1j]),
        np.array([True]),
        np.datetime64("2026-01-01"),
        np.zeros(2, [("a", "f4")]),
        np.ma.masked_array([1.0, 2.0], [True, False]),
        KEY,
    ],
    "shape": [
        *WORDS,
        -1,
        1.5,
        NAN,
        True,
        {3},
        (2, -1),
        (2, 1.5),
        (None,),
        ((2,),),
        np.array(1.5),
        np.array([1.5]),
        np.array([[2]]),
        np.array([2, -1]),
        *ABSURD,
        (2**31, 2**31),
        (2**62, 0),
        (2, HUGE[0]),
        (HUGE[1],),
        (1,) * 65,
    ],
    "dtype": [*WORDS, "int32", bool, complex, "O", "U3", "float64", 7, "V4", "float33"],
    "choice": [*WORDS, 3, ["auto"], ""],
    "count": COUNTS,
    "limit": COUNTS[1:],
    "size": [*COUNTS, *ABSURD],
    "place": [*COUNTS, 10**30],  # in a stream, which is as long as counters reach
    "start": [
        *NOTHING,
        (0, HUGE[0]),
        -1,
        2**64,
        10**30,
        1.5,
        NAN,
        (1, 2, 3),
        (1,),
        (-1, 0),
        (0, 2**32),
        (0.5, 0),
        np.zeros(2),
    ],
    "sharding": [*WORDS, 3, PartitionSpec("data"), [None]],
    "flag": [*WORDS, 1, "no", 0.0, np.zeros(2, bool), NAN],
    "seconds": [
        *NOTHING,
        10**400,
        1e300,
        1e10,
        np.longdouble("1e4000"),
        -1.0,
        NAN,
        INF,
        "1",
        1j,
        True,
        [1.0],
        np.zeros(2),
    ],
    "path": [object(), {}, print, 3, 1.5, [], DEEP, *HUGE, "a\0.npy", b"a\0.npy", "\ud800.npy", "file:///tmp/a.npy"],
    "function": [3, "text", [], np.zeros(2), DEEP, *HUGE],
    "iterable": [None, 3, 1.5, object(), print, *HUGE],
    "name": [
        object(),
        1.5,
        None,
        -1,
        2**64,
        [],
        {},
        np.zeros(2),
        NAN,
        b"bytes",
        DEEP,
        *HUGE,
        "\ud800",
        "x\udcff" * 999,
    ],
    "axis": ["text", 1.5, 9, -9, (0, 0), object(), {}, NAN, 2**62, DEEP, *HUGE, (0, HUGE[0])],
    "mapped axis": [*NOTHING, 0, "data", 1.5, [], ()],
    "devices": [DEEP, *HUGE, 3, "cpu", [], [3], [None], object(), [jax.devices()[0]] * 2],
    "device": [DEEP, *HUGE, 3, "cpu", object(), jax.devices()],
    "share": [*WORDS, 10**400, 0, -1, 1.5, NAN, INF, True, [0.5], 1j],
    "platforms": [DEEP, *HUGE, 3, "gpu", ["x"], [], object(), [3], b"cpu"],
    "flags": [DEEP, *HUGE, {"--xla_x": HUGE[0]}, {"--xla_x": DEEP}, 3, "no flags", object(), [1]],
    "law": [*NOTHING, 3],
}


def written(value):
    """A value in the lines that this program prints, where it can be written."""
    try:
        return repr(value)[:60]
    except (ValueError, RecursionError):
        return f"of type {type(value).__name__}"


BAD["path of utf-8"] = [*BAD["path"], "\udcff"]


class Refusal(NamedTuple):
    """A public function, arguments that it takes, and the kinds of those that are made bad one by one."""

    function: object
    good: dict
    kinds: dict
    tell: str | None = None
    """The name that its messages have, if it is not its own, as that of the function which a method calls."""
    renamed: str | None = None
    """Another name that they may have for the argument."""


def arrays(names):
    """Good numbers for arguments of these names."""
    return {name: np.full(3, 0.5, np.float32) for name in names}


def of_numbers(function):
    """A function whose arguments are all arrays of numbers that broadcast."""
    names = list(inspect.signature(function).parameters)
    return Refusal(function, arrays(names), dict.fromkeys(names, "numbers"))


LAW = arrays(("loc", "concentration"))
DRAWN = {"key": KEY, **LAW}
DRAW = {"key": "key", "loc": "numbers", "concentration": "numbers", "dtype": "dtype"}
ONE = jvm.VonMises(0.5, np.full(3, 2.0, np.float32))
TORUS, MIXTURE = jvm.Torus(ONE), jvm.Mixture(logits=np.zeros(3, np.float32), components=ONE)
THEIRS = jax_von_mises.numpyro.VonMises(0.5, np.full(3, 2.0, np.float32), validate_args=False)
SAMPLE = {"key": KEY, "sample_shape": (2,)}
SAMPLED = {"key": "key", "sample_shape": "shape"}
VALUE = {"value": np.full(3, 0.5, np.float32)}


def methods(law, name, **functions):
    """Methods of a law that take numbers, by the names of the functions that they call."""
    found = {}
    for method, told in functions.items():
        call = getattr(law, method)
        argument = next(iter(inspect.signature(call).parameters))
        function = getattr(jvm, told)
        renamed = None if inspect.isclass(function) else next(iter(inspect.signature(function).parameters))
        found[f"{name}.{method}"] = Refusal(call, arrays([argument]), {argument: "numbers"}, told, renamed)
    return found


# By groups, each of which has a process of its own.
FUNCTIONS = {
    "law": {
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
            {"samples": "numbers", "weights": "numbers", "axis": "axis"},
        ),
        "VonMises": Refusal(
            lambda **given: jvm.VonMises(**given, validate_args=True), LAW, dict.fromkeys(LAW, "numbers")
        ),
        **methods(
            ONE,
            "VonMises",
            **{name: name for name in ("log_prob", "prob", "cdf", "log_cdf", "sf", "log_sf", "icdf", "isf")},
            **{"survival_function": "sf", "log_survival_function": "log_sf", "quantile": "icdf"},
        ),
        **methods(TORUS, "Torus", log_prob="log_prob", prob="prob"),
        **methods(MIXTURE, "Mixture", **dict.fromkeys(("log_prob", "prob", "cdf", "responsibilities"), "Mixture")),
        **methods(THEIRS, "numpyro.VonMises", log_prob="log_prob", cdf="cdf", icdf="icdf"),
        "VonMises.sample": Refusal(ONE.sample, SAMPLE, {**SAMPLED, "method": "choice"}, "sample"),
        "VonMises.sample_and_log_prob": Refusal(
            ONE.sample_and_log_prob, {"seed": KEY}, {"seed": "key", "sample_shape": "shape"}, "VonMises.sample", "key"
        ),
        **{
            f"{law}.{name}": Refusal(getattr(one, name), {"other": one}, {"other": "law"})
            for law, one, names in (
                ("VonMises", ONE, ("kl_divergence", "cross_entropy")),
                ("Torus", TORUS, ("kl_divergence",)),
            )
            for name in names
        },
        "VonMises.fit": Refusal(jvm.VonMises.fit, {"samples": np.ones(3, np.float32)}, {"samples": "numbers"}, "fit"),
        "Torus": Refusal(lambda components: jvm.Torus(components).mean(), {"components": ONE}, {"components": "law"}),
        "Torus.sample": Refusal(TORUS.sample, SAMPLE, SAMPLED, "sample"),
        "Mixture": Refusal(
            lambda **given: jvm.Mixture(**given).log_weights(),
            {"logits": np.zeros(3, np.float32), "components": ONE},
            {"logits": "numbers", "components": "law"},
        ),
        "Mixture.sample": Refusal(MIXTURE.sample, SAMPLE, SAMPLED, "sample"),
        "numpyro.VonMises.sample": Refusal(THEIRS.sample, {"key": KEY}, {"key": "key"}, "sample_von_mises"),
    },
    "samplers": {
        "sample_von_mises": Refusal(
            jvm.sample_von_mises, DRAWN, {**DRAW, "shape": "shape", "method": "choice", "out_sharding": "sharding"}
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
                **dict.fromkeys(("resume", "force", "repair", "stay"), "flag"),
                **dict.fromkeys(("part", "parts"), "count"),
                "patience": "seconds",
                **dict.fromkeys(("progress", "observe"), "function"),
            },
        ),
        "verify_samples": Refusal(jvm.verify_samples, {}, {"out": "path"}),
    },
    "runtime": {
        "initialize_compilation_cache": Refusal(
            jvm.initialize_compilation_cache,
            {"path": "cache"},
            {"path": "path of utf-8", "max_size": "limit", "min_compile_time": "seconds", "allow_shared": "flag"},
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
        "export_sampler": Refusal(
            runtime.export_sampler,
            {"path": "sampler", "shape": (3,)},
            {
                "path": "path",
                "shape": "shape",
                "dtype": "dtype",
                **dict.fromkeys(("loc", "concentration"), "numbers"),
                "key": "key",
                "method": "choice",
                "platforms": "platforms",
                "force": "flag",
            },
        ),
        "load_sampler": Refusal(runtime.load_sampler, {}, {"path": "path"}),
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
                **dict.fromkeys(("x64", "preallocate", "latency_hiding", "profile_guided", "check"), "flag"),
                **dict.fromkeys(("threads", "cpu_devices", "compile_threads", "profiled_runs"), "count"),
                "memory_fraction": "share",
                "xla_flags": "flags",
                "timeout": "seconds",
            },
        ),
    },
}


# What there is to call and takes nothing that could be bad.
WITHOUT_ARGUMENTS = {
    *(f"{law}.{name}" for law in ("VonMises", "Torus", "Mixture") for name in ("batch_shape", "event_shape", "dtype")),
    *(f"{law}.broadcast" for law in ("VonMises", "Torus", "Mixture")),
    *(f"VonMises.{name}" for name in ("entropy", "mean", "mode", "variance", "stddev")),
    *(f"Torus.{name}" for name in ("mean", "mode", "entropy")),
    *("Mixture.log_weights", "Mixture.mean"),
    *(f"numpyro.VonMises.{name}" for name in ("mean", "mode", "variance", "entropy")),
    *("cache_info", "clear_cache", "memory_report", "reset", "settings"),
}
# What functions return; nobody makes one.
RESULTS = {"CacheInfo", "Compiled", "DeviceMemory", "Diagnosis", "Finding", "LoadedSampler", "Setting"}


def public():
    """All public functions and methods by name."""
    classes = {"VonMises": jvm.VonMises, "Torus": jvm.Torus, "Mixture": jvm.Mixture}
    classes["numpyro.VonMises"] = jax_von_mises.numpyro.VonMises
    found = {*jvm.__all__, *runtime.__all__} - {"runtime"} - RESULTS
    for name, cls in classes.items():
        found |= {f"{name}.{member}" for member, value in vars(cls).items() if member[0] != "_" and acts(value)}
    return found


def acts(member):
    """Whether a member of a class is a method or a property."""
    return inspect.isroutine(member) or isinstance(member, property | classmethod)


def stands_for_default(function, argument):
    """Whether None is what an argument has where it is not given."""
    parameters = inspect.signature(function).parameters
    return argument in parameters and parameters[argument].default is None


def refuse(group):
    """Make the calls of a group: for each, function, argument, value, error and message; no error where it returned."""
    for name, (function, good, kinds, tell, renamed) in FUNCTIONS[group].items():
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
                    "names": (tell or name, argument, renamed or argument),
                }


# Values that an argument may have in some lanes of an array: those that must give NaN, and extremes that are allowed.
EXTREME = [0.0, -0.0, 1e-45, -1e-45, 3e38]
LANES = {
    "angle": ([NAN, INF, -INF], [*EXTREME, -3e38, 2.0**24]),
    "any angle": ([NAN], [*EXTREME, INF, -INF]),
    "concentration": ([NAN, -1.0, -INF, -3e38], [*EXTREME, INF]),
    "probability": ([NAN, -0.5, 1.5, INF, -INF], [*EXTREME[:-1], 1.0]),
    "size": ([NAN, -1.0, -INF], EXTREME),
    "logit": ([NAN, INF], [*EXTREME, -INF]),
}
KINDS = {"x": "angle", "value": "any angle", "loc": "angle", "other_loc": "angle", "q": "probability"}
KINDS |= {"size": "size", "logit": "logit"}
PI = float(np.float32(np.pi))
# What a result may be where it is not NaN.
ANYTHING, ANGLE, PROBABILITY, POSITIVE = (-INF, INF), (-PI, PI), (0.0, 1.0), (0.0, INF)
RANGES = {
    "log_prob": ANYTHING,
    "prob": POSITIVE,
    "cdf": ANYTHING,
    "sf": ANYTHING,
    "log_cdf": ANYTHING,
    "log_sf": ANYTHING,
    "icdf": ANYTHING,
    "isf": ANYTHING,
    "entropy": ANYTHING,
    "mean": ANGLE,
    "mode": ANGLE,
    "variance": PROBABILITY,
    "stddev": POSITIVE,
    "kl_divergence": POSITIVE,
    "standard_errors": POSITIVE,
}


def elementwise():
    """Functions of arrays of one length, by name: function, names of its arguments, and the range of its results."""
    for name, span in RANGES.items():
        function = getattr(jvm, name)
        yield name, function, list(inspect.signature(function).parameters), span
    samplers = {
        "sample_von_mises": lambda loc, concentration: jvm.sample_von_mises(KEY, loc, concentration),
        "sample_block": lambda loc, concentration: jvm.sample_block(KEY, loc, concentration, 5, loc.shape),
        "sample_antithetic": lambda loc, concentration: jvm.sample_antithetic(KEY, loc, concentration, (2, *loc.shape)),
        "sample_stratified": lambda loc, concentration: jvm.sample_stratified(KEY, loc, concentration, (2, *loc.shape)),
        "sample_truncated": lambda loc, concentration: jvm.sample_truncated(KEY, loc, concentration, 0.0, 1.0),
        "sample_pmap": lambda loc, concentration: jvm.sample_pmap(
            KEY, loc, concentration, (jax.local_device_count(), *loc.shape)
        ),
        "sample_batches": lambda loc, concentration: next(jvm.sample_batches(KEY, loc, concentration, 2, 2)),
        "VonMises.sample": lambda loc, concentration: jvm.VonMises(loc, concentration).sample(KEY),
        "numpyro.VonMises.sample": lambda loc, concentration: jax_von_mises.numpyro.VonMises(
            loc, concentration, validate_args=False
        ).sample(KEY),
    }
    for name, function in samplers.items():
        yield name, function, ["loc", "concentration"], ANGLE

    def mixture(logit, loc, concentration):
        logits = jnp.stack([logit, jnp.zeros_like(logit)], -1)
        components = jvm.VonMises(*(jnp.stack([each, each], -1) for each in (loc, concentration)))
        return jvm.Mixture(logits=logits, components=components)

    def torus(loc, concentration):
        return jvm.Torus(jvm.VonMises(*(jnp.stack([each, each], -1) for each in (loc, concentration))))

    joint = ["logit", "loc", "concentration"]
    yield "Mixture.sample", lambda *given: mixture(*given).sample(KEY), joint, ANGLE
    yield "Mixture.log_prob", lambda value, *given: mixture(*given).log_prob(value), ["value", *joint], ANYTHING
    yield "Mixture.cdf", lambda value, *given: mixture(*given).cdf(value), ["value", *joint], ANYTHING
    yield "Mixture.mean", lambda *given: mixture(*given).mean(), joint, ANGLE
    yield "Torus.sample", lambda *given: torus(*given).sample(KEY).sum(-1) / 2, joint[1:], ANGLE
    yield (
        "Torus.log_prob",
        lambda value, *given: torus(*given).log_prob(jnp.stack([value, value], -1)),
        ["value", *joint[1:]],
        ANYTHING,
    )
    yield "numpyro.VonMises.cdf", numpyro.cdf, ["value", "loc", "concentration"], PROBABILITY
    yield "numpyro.VonMises.icdf", numpyro.icdf, ["q", "loc", "concentration"], ANGLE


# These take seconds to compile; they are looked at where there is time.
LONG = {"sample_truncated", "sample_stratified", "sample_pmap", "numpyro.VonMises.icdf"}


def lanes(long=False):
    """One argument at a time with bad and extreme values in every other lane: what these give, and the others."""
    width = 2 * max(len(bad) + len(extreme) for bad, extreme in LANES.values())
    for name, function, names, span in elementwise():
        if (name in LONG) is not long:
            continue
        good = {each: np.full(width, 0.5, np.float32) for each in names}
        faulthandler.dump_traceback_later(2 * PATIENCE, exit=True)
        undisturbed = function(*good.values())
        for argument in names:
            bad, extreme = LANES[KINDS.get(argument, "concentration")]
            mixed = good[argument].copy()
            mixed[1 : 2 * (len(bad) + len(extreme)) : 2] = [*bad, *extreme]
            touched = np.arange(width) % 2 == 1
            given = function(*(good | {argument: mixed}).values())
            pairs = [
                (np.asarray(x), np.asarray(y)) for x, y in zip(*map(jax.tree.leaves, (given, undisturbed)), strict=True)
            ]
            found = {"function": name, "argument": argument, "spoilt": 0, "finite": [], "outside": []}
            for x, y in pairs:
                x, y = (np.atleast_2d(each).reshape(-1, width) for each in (x, y))
                found["spoilt"] += int((x.view(np.int32) != y.view(np.int32))[:, ~touched].sum())
                found["finite"] += [
                    mixed[2 * i + 1].item() for i in range(len(bad)) if not np.isnan(x[:, 2 * i + 1]).all()
                ]
                low, high = span
                out = ~(np.isnan(x) | ((x >= low) & (x <= high)))
                found["outside"] += [str(each) for each in mixed[out.any(0)]]
            yield found


def main(group):
    """Print a line for each call."""
    groups = {"lanes": lanes, "long lanes": lambda: lanes(long=True)}
    for found in groups.get(group, lambda: refuse(group))():
        print(json.dumps(found), flush=True)
    faulthandler.cancel_dump_traceback_later()


if __name__ == "__main__":
    jax.config.update("jax_numpy_dtype_promotion", "strict")
    os.chdir(sys.argv[2])
    main(sys.argv[1])
