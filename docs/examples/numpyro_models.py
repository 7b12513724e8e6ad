"""Fit a NumPyro model of group directions with stray angles, with NUTS and with variational inference.

``python -m docs.examples.numpyro_models --out picture.svg`` prints the tables and draws
the picture of docs/numpyro.md. Times go to the standard error stream. The example needs
NumPyro, SciPy and Matplotlib.
"""

import functools
import sys
import time

import jax
import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random
from numpyro import handlers
from numpyro.distributions import constraints
from numpyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO, init_to_value
from numpyro.infer.reparam import CircularReparam

from docs.examples.drawing import (
    COLORS,
    GREY,
    INK,
    near,
    parser,
    seconds,
    settings,
    write,
)
from jax_von_mises.numpyro import VonMises

__all__ = ["main"]

# Directions of animals released at 8 places. `common` is near pi, and a share of `stray`
# animals goes anywhere.
TRUTH = {"common": 3.0, "between": 10.0, "within": 8.0, "stray": 0.15}
GROUPS, MEMBERS = 8, 25
PARAMETERS = (*TRUTH, "loc")


def simulate(seed):
    """Return angles of shape (GROUPS, MEMBERS) and the mean direction of each group."""
    rng = np.random.default_rng(seed)
    loc = rng.vonmises(TRUTH["common"], TRUTH["between"], GROUPS)
    angles = rng.vonmises(loc[:, None], TRUTH["within"], (GROUPS, MEMBERS))
    anywhere = rng.uniform(-np.pi, np.pi, angles.shape)
    stray = rng.random(angles.shape) < TRUTH["stray"]
    return np.where(stray, anywhere, angles).astype(np.float32), loc


def model(angles, cls=VonMises, least=0.0):
    """Define the model with the class `cls` and the concentration `least` for uniform distributions."""
    common = numpyro.sample("common", cls(0.0, least))
    between = numpyro.sample("between", dist.LogNormal(2.0, 1.0))
    within = numpyro.sample("within", dist.LogNormal(1.0, 1.0))
    stray = numpyro.sample("stray", dist.Uniform())
    with numpyro.plate("groups", GROUPS, dim=-2):
        loc = numpyro.sample("loc", cls(common, between))
        with numpyro.plate("members", MEMBERS, dim=-1):
            locs = jnp.concatenate([loc, jnp.zeros_like(loc)], -1)[:, None]
            parts = cls(locs, jnp.stack([within, jnp.full_like(within, least)]))
            shares = dist.Categorical(jnp.stack([1 - stray, stray]))
            numpyro.sample("angle", dist.MixtureSameFamily(shares, parts), obs=angles)


def start(angles):
    """Return mean directions to start from, of all angles and of each group."""

    def mean(axis=None):
        sine, cosine = jnp.sin(angles), jnp.cos(angles)
        return jnp.arctan2(sine.mean(axis), cosine.mean(axis))

    return mean(), mean(1)[:, None]


@functools.partial(jax.jit, static_argnames=("warmup", "samples", "cls", "least"))
def run_nuts(key, angles, warmup=500, samples=1000, cls=VonMises, least=0.0):
    """Return draws from the posterior by the No-U-Turn sampler, which walks on unwrapped angles."""
    walk = {name: CircularReparam() for name in ("common", "loc")}
    common, loc = start(angles)
    first = {"common_unwrapped": common, "loc_unwrapped": loc}
    kernel = NUTS(
        handlers.reparam(model, config=walk),
        init_strategy=init_to_value(values=first),
    )
    mcmc = MCMC(kernel, num_warmup=warmup, num_samples=samples, progress_bar=False)
    mcmc.run(key, angles, cls, least, extra_fields=("num_steps",))
    draws = {name: mcmc.get_samples()[name] for name in PARAMETERS}
    return draws | {"steps": mcmc.get_extra_fields()["num_steps"]}


def guide(angles):
    """Define the guide: von Mises distributions for directions, lognormal and beta ones for the rest."""
    common, loc = start(angles)

    def positive(name, value):
        return numpyro.param(name, value, constraint=constraints.positive)

    common = numpyro.param("common_loc", common)
    numpyro.sample("common", VonMises(common, positive("common_concentration", 20.0)))
    for name, value in (("between", 2.0), ("within", 1.0)):
        centre = numpyro.param(f"{name}_centre", value)
        numpyro.sample(name, dist.LogNormal(centre, positive(f"{name}_scale", 0.3)))
    logit = dist.Normal(
        numpyro.param("stray_centre", -2.0), positive("stray_scale", 0.3)
    )
    sigmoid = dist.transforms.SigmoidTransform()
    numpyro.sample("stray", dist.TransformedDistribution(logit, sigmoid))
    loc = numpyro.param("loc_loc", loc)
    concentration = positive("loc_concentration", jnp.full((GROUPS, 1), 50.0))
    with numpyro.plate("groups", GROUPS, dim=-2):
        numpyro.sample("loc", VonMises(loc, concentration))


@functools.partial(jax.jit, static_argnames=("steps", "samples"))
def run_svi(key, angles, steps=5000, samples=1000):
    """Return draws from the guide that maximises the evidence lower bound."""
    optimizer = numpyro.optim.Adam(lambda step: 0.05 * 0.02 ** (step / steps))
    svi = SVI(model, guide, optimizer, Trace_ELBO())
    fitting, drawing = random.split(key)
    result = svi.run(fitting, steps, angles, progress_bar=False)
    predictive = Predictive(guide, params=result.params, num_samples=samples)
    draws = predictive(drawing, angles)
    return {name: draws[name] for name in PARAMETERS}


def posterior_table(methods, loc):
    """Return the lines of the table: true values, then the mean and standard deviation for each method."""
    lines = [
        "| | true | " + " | ".join(f"{name} mean | sd" for name in methods) + " |",
        "|---|" + "---:|" * (1 + 2 * len(methods)),
    ]
    for name, value in TRUTH.items():
        columns = [draws[name] for draws in methods.values()]
        if name == "common":
            columns = [near(column, value) for column in columns]
        cells = "".join(f" {np.mean(c):.2f} | {np.std(c):.2f} |" for c in columns)
        lines.append(f"| {name} | {value:.2f} |{cells}")
    for i, value in enumerate(np.asarray(loc)):
        columns = [near(draws["loc"][:, i], value) for draws in methods.values()]
        cells = "".join(f" {np.mean(c):.2f} | {np.std(c):.2f} |" for c in columns)
        lines.append(f"| group {i + 1} | {value:.2f} |{cells}")
    return lines


def extremes_table(count=100_000):
    """Return the lines of the table of float32 errors at small and large concentrations, next to NumPyro's class."""
    from scipy.special import i0e

    lines = [
        "| concentration | error of log density | NumPyro | distinct draws | NumPyro |",
        "|---:|---:|---:|---:|---:|",
    ]
    for kappa in (0.0, 1.0, 1e4, 1e6, 1e8):
        x = np.float32(min(3 / max(kappa, 1) ** 0.5, 3.0))
        exact = -2 * kappa * np.sin(x.astype(float) / 2) ** 2 - np.log(
            2 * np.pi * i0e(kappa)
        )
        errors, distinct = [], []
        for cls in (VonMises, dist.VonMises):
            own = cls(0.0, kappa, validate_args=False)
            error = abs(float(own.log_prob(x)) - exact)
            errors.append(f"{error:.1g}" if error > 1e-5 else "< 0.00001")
            draws = np.asarray(own.sample(random.key(0), (count,)))
            number = len(np.unique(draws))
            distinct.append(
                "NaN"
                if np.isnan(draws).any()
                else f"{round(number, -2) if number > 1000 else number:,}"
            )
        lines.append(
            f"| {kappa:,.0f} | {errors[0]} | {errors[1]} | {distinct[0]} | {distinct[1]} |"
        )
    return lines


def report_times(count, angles):
    """Print the times of both classes to the standard error stream."""
    key = random.key(0)
    many = jnp.exp(random.normal(random.key(1), (count,)) + 1)
    for name, cls in (("package", VonMises), ("NumPyro", dist.VonMises)):
        one = jax.jit(lambda key, kappa, cls=cls: cls(0.5, kappa).sample(key, (count,)))
        each = jax.jit(lambda key, kappa, cls=cls: cls(0.5, kappa).sample(key))
        density = jax.jit(lambda x, kappa, cls=cls: cls(0.5, kappa).log_prob(x))
        slope = jax.jit(
            jax.grad(lambda kappa, x, cls=cls: cls(0.5, kappa).log_prob(x).sum())
        )
        x = VonMises(0.5, many).sample(key)
        found = {
            "draws, one concentration": seconds(one, key, 4.0),
            "draws, a concentration each": seconds(each, key, many),
            "log_prob, one concentration": seconds(density, x, 4.0),
            "log_prob, a concentration each": seconds(density, x, many),
            "slope, a concentration each": seconds(slope, many, x),
        }
        for what, (_, best) in found.items():
            print(f"{name}, {count} {what}: {best * 1e3:.1f} ms", file=sys.stderr)
        options = {} if cls is VonMises else {"cls": cls, "least": 1e-3}
        run_nuts.clear_cache()
        for run in ("first", "second", "third"):
            begun = time.perf_counter()
            steps = int(run_nuts(key, angles, **options)["steps"].sum())
            print(
                f"{name}, {run} run of NUTS: {time.perf_counter() - begun:.1f} s, {steps} steps after warm-up",
                file=sys.stderr,
            )


def picture(angles, loc, methods):
    """Return the figure: the angles of each group with posterior intervals, and two posteriors."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 4.2), layout="constrained")
    left, middle, right = figure.subplots(1, 3, width_ratios=(1.6, 1, 1))
    centre = TRUTH["common"]
    for i in range(GROUPS):
        left.plot(
            near(np.asarray(angles[i]), centre),
            np.full(MEMBERS, i + 1),
            "o",
            color=GREY,
            markersize=4,
        )
        left.plot(
            near(loc[i], centre),
            i + 1,
            "|",
            color=INK,
            markersize=16,
            markeredgewidth=2,
        )
        for (_, draws), colour, shift in zip(
            methods.items(), COLORS, (0.2, -0.2), strict=False
        ):
            ends = np.quantile(near(draws["loc"][:, i], centre), (0.05, 0.95))
            left.plot(ends, [i + 1 + shift] * 2, color=colour)
    left.set(xlabel="angle, radians", ylabel="group", title="Angles, and 90% intervals")
    for axes, name, grid in (
        (middle, "common", np.linspace(2.2, 3.8, 33)),
        (right, "stray", np.linspace(0, 0.5, 41)),
    ):
        for (method, draws), colour in zip(methods.items(), COLORS, strict=False):
            values = near(draws[name], TRUTH[name]) if name == "common" else draws[name]
            axes.hist(
                values, grid, density=True, histtype="step", color=colour, label=method
            )
        axes.axvline(
            TRUTH[name], color=INK, linestyle="--", linewidth=1.2, label="true value"
        )
        axes.set(
            title={"common": "Common direction", "stray": "Share of stray animals"}[
                name
            ],
            yticks=[],
        )
    right.legend(frameon=False, loc="upper right")
    return figure


def main(arguments=None):
    """Simulate, infer by both methods, print the tables and draw the picture."""
    options = parser(__doc__).parse_args(arguments)
    sampling, fitting = random.split(random.key(0))
    angles, loc = simulate(0)
    draws, steps = ((100, 100), (300, 300)) if options.quick else ((), ())
    methods = {
        "NUTS": run_nuts(sampling, angles, *draws),
        "SVI": run_svi(fitting, angles, *steps),
    }
    methods = jax.tree.map(np.asarray, methods)
    print(*posterior_table(methods, loc), "", sep="\n")
    print(*extremes_table(10_000 if options.quick else 100_000), sep="\n")
    if not options.quick:
        report_times(1_000_000, angles)
    if options.out:
        with settings():
            write(picture(angles, loc, methods), options.out)


if __name__ == "__main__":
    main()
