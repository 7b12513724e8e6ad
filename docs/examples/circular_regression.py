"""Regress simulated angles on covariates, with NUTS and with variational inference.

``python -m docs.examples.circular_regression --out picture.svg`` prints the tables and
draws the picture of docs/circular-regression.md.
"""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random
from numpyro import handlers
from numpyro.distributions.constraints import lower_cholesky, positive
from numpyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO, init_to_value
from numpyro.infer.reparam import CircularReparam

from docs.examples.drawing import COLORS, GREY, INK, draw, near, parser, posterior_table
from jax_von_mises import fit, initialize_compilation_cache, sample_von_mises
from jax_von_mises.numpyro import VonMises

# `mu` is near pi, where ordinary regression fails.
TRUTH = {"mu": 2.8, "beta[0]": 0.6, "beta[1]": -0.3, "concentration": 4.0}


def link(mu, beta, x):
    """Return the mean direction for each row of `x`; twice the arctangent maps the real line to one turn."""
    return mu + 2 * jnp.arctan(x @ beta)


def simulate(key, size=100):
    """Draw two covariates and an angle for each row, with the parameters `TRUTH`."""
    covariates, noise = random.split(key)
    x = random.normal(covariates, (size, 2))
    mu, *beta, concentration = TRUTH.values()
    loc = link(mu, jnp.array(beta), x)
    return x, sample_von_mises(noise, loc, concentration)


def model(x, angles=None):
    """Define priors and likelihood; the prior of `mu` is uniform on the circle."""
    mu = numpyro.sample("mu", VonMises(0.0, 0.0))
    slopes = dist.Normal(0.0, 1.0).expand((x.shape[1],)).to_event(1)
    beta = numpyro.sample("beta", slopes)
    concentration = numpyro.sample("concentration", dist.LogNormal(1.0, 1.0))
    with numpyro.plate("rows", x.shape[0]):
        numpyro.sample("angle", VonMises(link(mu, beta, x), concentration), obs=angles)


def guide(x, angles):
    """Define the guide: von Mises, multivariate normal and lognormal distributions, all with differentiable draws."""
    loc = numpyro.param("mu_loc", fit(angles)[0])
    concentration = numpyro.param("mu_concentration", 10.0, constraint=positive)
    numpyro.sample("mu", VonMises(loc, concentration))
    loc = numpyro.param("beta_loc", jnp.zeros(x.shape[1]))
    scale = 0.2 * jnp.eye(x.shape[1])
    scale = numpyro.param("beta_scale", scale, constraint=lower_cholesky)
    numpyro.sample("beta", dist.MultivariateNormal(loc, scale_tril=scale))
    loc = numpyro.param("log_concentration_loc", 0.0)
    scale = numpyro.param("log_concentration_scale", 0.2, constraint=positive)
    numpyro.sample("concentration", dist.LogNormal(loc, scale))


def run_nuts(key, x, angles, warmup=500, samples=2000):
    """Draw from the posterior with the No-U-Turn sampler, on an unwrapped `mu`."""
    walkable = handlers.reparam(model, config={"mu": CircularReparam()})
    # Start in the higher of the two modes of the posterior.
    first = {"mu_unwrapped": fit(angles)[0], "beta": jnp.zeros(x.shape[1])}
    kernel = NUTS(walkable, init_strategy=init_to_value(values=first))
    mcmc = MCMC(kernel, num_warmup=warmup, num_samples=samples, progress_bar=False)
    mcmc.run(key, x, angles)
    return mcmc.get_samples()


def run_svi(key, x, angles, steps=3000, samples=2000):
    """Draw from the guide that maximises the evidence lower bound."""
    optimizer = numpyro.optim.Adam(lambda step: 0.03 * 0.02 ** (step / steps))
    svi = SVI(model, guide, optimizer, Trace_ELBO(num_particles=8))
    fitting, drawing = random.split(key)
    params = svi.run(fitting, steps, x, angles, progress_bar=False).params
    return Predictive(guide, params=params, num_samples=samples)(drawing, x, angles)


def columns(draws):
    """Return the draws of each scalar parameter by name, with the direction unwrapped around its mean."""
    mu, beta = np.asarray(draws["mu"], float), np.asarray(draws["beta"], float)
    mu = near(mu, np.angle(np.mean(np.exp(1j * mu))))
    values = mu, *beta.T, np.asarray(draws["concentration"], float)
    return dict(zip(TRUTH, values, strict=True))


def mean_losses(key, x, angles, nuts):
    """Return the mean of 1 - cos(error) for new rows, by posterior means and by least squares, on two cuts of the circle."""
    new_x, new_angles = simulate(key, 10_000)
    mu, *beta, _ = (column.mean() for column in nuts.values())
    guesses = [link(mu, np.float32(beta), new_x)]
    for y in (angles, near(angles, fit(angles)[0])):
        constant, *slopes = np.linalg.lstsq(np.c_[np.ones(len(x)), x], y)[0]
        guesses.append(constant + new_x @ np.array(slopes))
    return [float(np.mean(1 - np.cos(new_angles - guess))) for guess in guesses]


def picture(angles, methods):
    """Return the figure: the data, and the posterior of each parameter."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(12, 2.8), layout="constrained")
    grid = figure.add_gridspec(1, 5)
    circle = figure.add_subplot(grid[0], projection="polar")
    circle.hist(np.asarray(angles), np.linspace(-np.pi, np.pi, 25), color=GREY)
    circle.set_xticks(np.arange(4) * np.pi / 2, ["0", "π/2", "π", "−π/2"])
    circle.set(title="Angles", yticks=[])
    for place, (name, value) in enumerate(TRUTH.items(), 1):
        axes = figure.add_subplot(grid[place])
        for (method, draws), colour in zip(methods.items(), COLORS[1::-1], strict=True):
            style = {"histtype": "step", "color": colour, "label": method}
            axes.hist(draws[name], 30, density=True, **style)
        axes.axvline(value, color=INK, linestyle="--", linewidth=1.2, label="true")
        axes.set(title=name, yticks=[])
    names = axes.get_legend_handles_labels()
    figure.legend(*names, loc="outside lower center", ncols=3)
    return figure


def main(arguments=None):
    """Simulate, infer by both methods, print the tables and draw the picture."""
    options = parser(__doc__).parse_args(arguments)
    initialize_compilation_cache()  # later runs start faster
    data, sampling, fitting, new = random.split(random.key(0), 4)
    x, angles = simulate(data)
    lengths = ((150, 300), (300, 300)) if options.quick else ((), ())
    nuts = columns(run_nuts(sampling, x, angles, *lengths[0]))
    methods = {"NUTS": nuts, "SVI": columns(run_svi(fitting, x, angles, *lengths[1]))}
    print(posterior_table(TRUTH, methods, 3), end="\n\n")
    losses = mean_losses(new, x, angles, nuts)
    print(
        "mean of 1 - cos(error): {:.3f}; least squares {:.3f}, {:.3f}".format(*losses)
    )
    draw(options.out, picture, angles, methods)


if __name__ == "__main__":
    main()
