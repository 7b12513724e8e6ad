"""Regress simulated angles on covariates, with NUTS and with variational inference.

``python -m docs.examples.circular_regression --out FILE`` prints the table and draws the
picture of docs/circular-regression.md. Another run on the same machine gives the same
file, byte for byte. The example needs NumPyro and Matplotlib.
"""

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

import jax_von_mises
from docs.examples.drawing import COLORS, GREY, INK, near, parser, settings, write
from jax_von_mises.numpyro import VonMises

# `mu` is near pi, where ordinary regression fails.
TRUTH = {"mu": 2.8, "beta": np.array([0.6, -0.3]), "concentration": 4.0}
SIZE = 100

DATA, NUTS_COLOUR, SVI_COLOUR, TRUE_COLOUR = GREY, COLORS[1], COLORS[0], INK


def link(mu, beta, x):
    """Return the mean direction for each row of `x`; twice the arctangent maps the real line to one turn."""
    return mu + 2 * jnp.arctan(x @ beta)


def simulate(key):
    """Draw two covariates and an angle for each row, with the parameters `TRUTH`."""
    covariates, noise = random.split(key)
    x = random.normal(covariates, (SIZE, 2))
    loc = link(TRUTH["mu"], jnp.asarray(TRUTH["beta"], x.dtype), x)
    return x, jax_von_mises.sample_von_mises(noise, loc, TRUTH["concentration"])


def model(x, angles=None):
    """Define priors and likelihood; the prior of `mu` is uniform on the circle."""
    mu = numpyro.sample("mu", VonMises(0.0, 0.0))
    beta = numpyro.sample(
        "beta", dist.Normal(0.0, 1.0).expand((x.shape[1],)).to_event(1)
    )
    concentration = numpyro.sample("concentration", dist.LogNormal(1.0, 1.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("angle", VonMises(link(mu, beta, x), concentration), obs=angles)


def start(x, angles):
    """Return initial values in the higher mode: the mean direction, and zero slopes."""
    return {"mu": jax_von_mises.fit(angles)[0], "beta": jnp.zeros(x.shape[1])}


def guide(x, angles):
    """Define the guide: von Mises, multivariate normal and lognormal distributions, all with differentiable draws."""
    mu_loc = numpyro.param("mu_loc", start(x, angles)["mu"])
    mu_concentration = numpyro.param(
        "mu_concentration", 10.0, constraint=constraints.positive
    )
    numpyro.sample("mu", VonMises(mu_loc, mu_concentration))

    beta_loc = numpyro.param("beta_loc", start(x, angles)["beta"])
    beta_scale = numpyro.param(
        "beta_scale", 0.2 * jnp.eye(x.shape[1]), constraint=constraints.lower_cholesky
    )
    numpyro.sample("beta", dist.MultivariateNormal(beta_loc, scale_tril=beta_scale))

    log_loc = numpyro.param("log_concentration_loc", 0.0)
    log_scale = numpyro.param(
        "log_concentration_scale", 0.2, constraint=constraints.positive
    )
    numpyro.sample("concentration", dist.LogNormal(log_loc, log_scale))


def run_nuts(key, x, angles, warmup=500, samples=2000):
    """Draw from the posterior with the No-U-Turn sampler, on an unwrapped `mu`."""
    walkable = handlers.reparam(model, config={"mu": CircularReparam()})
    first = start(x, angles)
    kernel = NUTS(
        walkable,
        init_strategy=init_to_value(
            values={"mu_unwrapped": first["mu"], "beta": first["beta"]}
        ),
    )
    mcmc = MCMC(kernel, num_warmup=warmup, num_samples=samples, progress_bar=False)
    mcmc.run(key, x, angles)
    return only_parameters(mcmc.get_samples())


def run_svi(key, x, angles, steps=3000, samples=2000):
    """Draw from the guide that maximises the evidence lower bound."""
    optimizer = numpyro.optim.Adam(lambda step: 0.03 * 0.02 ** (step / steps))
    svi = SVI(model, guide, optimizer, Trace_ELBO(num_particles=8))
    fitting, drawing = random.split(key)
    result = svi.run(fitting, steps, x, angles, progress_bar=False)
    return only_parameters(
        Predictive(guide, params=result.params, num_samples=samples)(drawing, x, angles)
    )


def only_parameters(draws):
    """Return the draws of the parameters in `TRUTH` as NumPy arrays."""
    return {name: np.asarray(draws[name]) for name in TRUTH}


def columns(draws):
    """Return the draws of each scalar parameter by name, with the direction unwrapped around its mean."""
    mu = np.asarray(draws["mu"], float)
    centre = np.angle(np.mean(np.exp(1j * mu)))
    values = {"mu": near(mu, centre)}
    values |= {
        f"beta[{i}]": column
        for i, column in enumerate(np.asarray(draws["beta"], float).T)
    }
    return values | {"concentration": np.asarray(draws["concentration"], float)}


def true_values():
    """Return the values of `TRUTH` under the names that `columns` gives."""
    return {
        name: column[0]
        for name, column in columns(
            {k: np.asarray([v]) for k, v in TRUTH.items()}
        ).items()
    }


def table(nuts, svi):
    """Return the lines of the table: the true value, then the mean and standard deviation for each method."""
    lines = [f"{'':13}{'true':>7}{'NUTS mean':>11}{'sd':>7}{'SVI mean':>11}{'sd':>7}"]
    sampled, fitted = columns(nuts), columns(svi)
    for name, value in true_values().items():
        numbers = "".join(
            f"{np.mean(c[name]):11.3f}{np.std(c[name]):7.3f}" for c in (sampled, fitted)
        )
        lines.append(f"{name:13}{value:7.3f}{numbers}")
    return lines


@jax.jit
def predictive_density(draws, x, grid):
    """Return the density of a new angle on `grid`, averaged over the rows of `x` and over `draws`."""

    def density(mu, beta, concentration):
        locs = link(mu, beta, x)[:, None]
        return jnp.mean(jax_von_mises.prob(grid, locs, concentration), axis=0)

    return jnp.mean(
        jax.vmap(density)(draws["mu"], draws["beta"], draws["concentration"]), axis=0
    )


def picture(x, angles, nuts, svi):
    """Return the figure: data and predictions on the left, posteriors on the right."""
    # Imported here so that the rest runs without Matplotlib.
    from matplotlib.figure import Figure
    from scipy.stats import gaussian_kde

    figure = Figure(figsize=(10, 5), layout="constrained")
    left, right = figure.subfigures(1, 2, width_ratios=(1, 1.1))

    circle = left.add_subplot(projection="polar")
    edges = np.linspace(-np.pi, np.pi, 25)
    heights, _ = np.histogram(angles, edges, density=True)
    circle.bar(
        edges[:-1],
        heights,
        np.diff(edges),
        align="edge",
        color=DATA,
        edgecolor="white",
        label="data",
    )
    grid = np.linspace(-np.pi, np.pi, 361).astype(np.float32)
    thinned = [
        {name: value[::10] for name, value in draws.items()} for draws in (nuts, svi)
    ]
    curves = [predictive_density(draws, x, grid) for draws in thinned]
    circle.plot(
        grid, curves[0], color=NUTS_COLOUR, linewidth=2.5, label="predicted, NUTS"
    )
    circle.plot(
        grid,
        curves[1],
        color=SVI_COLOUR,
        linewidth=1.5,
        linestyle=(0, (4, 3)),
        label="predicted, SVI",
    )
    circle.plot(
        angles,
        np.full(len(angles), -0.03),
        "o",
        color=TRUE_COLOUR,
        markersize=3,
        alpha=0.5,
    )
    circle.set_rorigin(-0.25)
    circle.set_rmin(-0.06)
    circle.set_rticks([0.2, 0.4], labels=[])
    circle.set_xticks(np.arange(4) * np.pi / 2, ["0", "π/2", "π", "−π/2"])
    circle.grid(color="#DDDDDD", linewidth=0.7)
    circle.spines["polar"].set_visible(False)
    circle.spines["inner"].set_color(DATA)
    left.suptitle("Angles, and posterior predictive density", fontweight="bold")
    left.legend(loc="outside lower center", ncols=3, frameon=False)

    right.suptitle("Posteriors and the true values", fontweight="bold")
    sampled, fitted = columns(nuts), columns(svi)
    titles = ["direction μ", "coefficient β₀", "coefficient β₁", "concentration κ"]
    for axes, title, (name, value) in zip(
        right.subplots(2, 2).flat, titles, true_values().items(), strict=True
    ):
        both = np.concatenate([sampled[name], fitted[name], [value]])
        points = np.linspace(both.min(), both.max(), 200)
        axes.hist(
            sampled[name], 30, density=True, color=NUTS_COLOUR, alpha=0.45, label="NUTS"
        )
        axes.plot(
            points,
            gaussian_kde(fitted[name])(points),
            color=SVI_COLOUR,
            linewidth=2,
            label="SVI",
        )
        axes.axvline(
            value, color=TRUE_COLOUR, linestyle="--", linewidth=1.2, label="true value"
        )
        axes.set_title(title, fontsize=10)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
    handles, labels = axes.get_legend_handles_labels()
    right.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)
    return figure


def main(arguments=None):
    """Simulate, infer by both methods, print the table and draw the picture."""
    options = parser(__doc__).parse_args(arguments)
    jax_von_mises.initialize_compilation_cache()  # later runs start faster
    data, sampling, fitting = random.split(random.key(0), 3)
    x, angles = simulate(data)
    nuts = run_nuts(sampling, x, angles, *((150, 300) if options.quick else ()))
    svi = run_svi(fitting, x, angles, *((300, 300) if options.quick else ()))
    print(*table(nuts, svi), sep="\n")
    if options.out:
        with settings():
            write(picture(x, angles, nuts, svi), options.out)


if __name__ == "__main__":
    main()
