"""Fit a NumPyro model of group directions with stray angles, with NUTS and with variational inference.

``python -m docs.examples.numpyro_models --out picture.svg`` prints the tables and draws
the picture of docs/numpyro.md.
"""

import jax.numpy as jnp
import numpy as np
import numpyro
import numpyro.distributions as dist
from jax import random
from numpyro.infer import MCMC, NUTS, SVI, Predictive, Trace_ELBO, init_to_value
from scipy.special import i0e

from docs.examples import drawing
from docs.examples.drawing import COLORS, GREY, INK, near
from jax_von_mises.numpyro import VonMises

# Animals released at 8 places; the share `stray` goes anywhere. `common` is near pi.
TRUTH = {"common": 3.0, "between": 10.0, "within": 8.0, "stray": 0.15}
GROUPS, MEMBERS = 8, 25


def simulate(seed):
    """Return angles of shape (GROUPS, MEMBERS) and the mean direction of each group."""
    rng = np.random.default_rng(seed)
    loc = rng.vonmises(TRUTH["common"], TRUTH["between"], GROUPS)
    angles = rng.vonmises(loc[:, None], TRUTH["within"], (GROUPS, MEMBERS))
    anywhere = rng.uniform(-np.pi, np.pi, angles.shape)
    angles = np.where(rng.random(angles.shape) < TRUTH["stray"], anywhere, angles)
    return angles.astype(np.float32), loc


def model(angles):
    """Define the model; a concentration of 0 is the uniform distribution."""
    common = numpyro.sample("common", VonMises(0.0, 0.0))
    between = numpyro.sample("between", dist.LogNormal(2.0, 1.0))
    within = numpyro.sample("within", dist.LogNormal(1.0, 1.0))
    stray = numpyro.sample("stray", dist.Uniform())
    with numpyro.plate("groups", GROUPS, dim=-2):
        loc = numpyro.sample("loc", VonMises(common, between))
        with numpyro.plate("members", MEMBERS, dim=-1):
            locs = jnp.concatenate([loc, jnp.zeros_like(loc)], -1)[:, None]
            parts = VonMises(locs, jnp.stack([within, jnp.zeros_like(within)]))
            shares = dist.Categorical(jnp.stack([1 - stray, stray]))
            numpyro.sample("angle", dist.MixtureSameFamily(shares, parts), obs=angles)


def start(angles):
    """Return mean directions to start from, of all angles and of each group."""
    unit = jnp.exp(1j * angles)
    return {"common": jnp.angle(unit.mean()), "loc": jnp.angle(unit.mean(1)[:, None])}


def run_nuts(key, angles, warmup=500, samples=1000):
    """Return draws from the posterior by the No-U-Turn sampler, which walks on unwrapped angles."""
    first = {f"{name}_unwrapped": x for name, x in start(angles).items()}
    circular = dict.fromkeys(start(angles), numpyro.infer.reparam.CircularReparam())
    walkable = numpyro.handlers.reparam(model, config=circular)
    kernel = NUTS(walkable, init_strategy=init_to_value(values=first))
    mcmc = MCMC(kernel, num_warmup=warmup, num_samples=samples, progress_bar=False)
    mcmc.run(key, angles)
    return mcmc.get_samples()


def guide(angles):
    """Define the guide: von Mises distributions for directions, lognormal and beta distributions for the rest."""

    def positive(name, value):
        return numpyro.param(name, value, constraint=dist.constraints.positive)

    first = start(angles)
    loc = numpyro.param("common_loc", first["common"])
    numpyro.sample("common", VonMises(loc, positive("common_concentration", 20.0)))
    for name, value in (("between", 2.0), ("within", 1.0)):
        centre = numpyro.param(f"{name}_centre", value)
        numpyro.sample(name, dist.LogNormal(centre, positive(f"{name}_scale", 0.3)))
    numpyro.sample("stray", dist.Beta(positive("a", 3.0), positive("b", 17.0)))
    loc = numpyro.param("loc_loc", first["loc"])
    concentration = positive("loc_concentration", jnp.full_like(loc, 50.0))
    with numpyro.plate("groups", GROUPS, dim=-2):
        numpyro.sample("loc", VonMises(loc, concentration))


def run_svi(key, angles, steps=5000, samples=1000):
    """Return draws from the guide that maximises the evidence lower bound."""
    optimizer = numpyro.optim.Adam(lambda step: 0.05 * 0.02 ** (step / steps))
    svi = SVI(model, guide, optimizer, Trace_ELBO())
    params = svi.run(key, steps, angles, progress_bar=False).params
    draw = Predictive(guide, params=params, num_samples=samples)
    return draw(random.fold_in(key, 1), angles)


def columns(draws):
    """Return the draws as NumPy arrays, with directions unwrapped around the common one."""
    found = {name: np.asarray(draws[name]) for name in (*TRUTH, "loc")}
    turned = {name: near(found[name], TRUTH["common"]) for name in ("common", "loc")}
    return found | turned


def extremes_table(count):
    """Return the table of float32 errors at small and large concentrations, next to NumPyro's class."""
    rows = []
    for kappa in (0.0, 1.0, 1e4, 1e6, 1e8):
        x = 3 / max(kappa, 1) ** 0.5
        exact = -2 * kappa * np.sin(x / 2) ** 2 - np.log(2 * np.pi * i0e(kappa))
        row = [f"{kappa:,.0f}"]
        for cls in (VonMises, dist.VonMises):
            own = cls(0.0, kappa, validate_args=False)
            error = abs(float(own.log_prob(x)) - exact)
            draws = np.asarray(own.sample(random.key(0), (count,)))
            distinct = "NaN" if np.isnan(draws).any() else f"{len(np.unique(draws)):,}"
            row += [f"{error:.1g}" if error > 1e-5 else "< 0.00001", distinct]
        rows.append(row)
    head = ["concentration", "error", "distinct", "error, NumPyro", "distinct, NumPyro"]
    return drawing.table(head, rows)


def picture(angles, loc, methods):
    """Return the figure: the angles of each group with the true mean direction and 90% intervals."""
    from matplotlib.figure import Figure

    axes = Figure(figsize=(8, 4), layout="constrained").subplots()
    angles, loc = near(angles, TRUTH["common"]), near(loc, TRUTH["common"])
    for i in range(GROUPS):
        axes.plot(angles[i], np.full(MEMBERS, i + 1), "o", color=GREY, markersize=4)
        axes.plot(loc[i], i + 1, "|", color=INK, markersize=16)
        for place, draws in enumerate(methods.values()):
            ends = np.quantile(draws["loc"][:, i], (0.05, 0.95))
            axes.plot(ends, [i + 1.2 - 0.4 * place] * 2, color=COLORS[place])
    axes.set(xlabel="angle, radians", ylabel="group")
    axes.legend(axes.lines[1:4], ["true mean direction", "NUTS", "SVI"])
    return axes.figure


def main(arguments=None):
    """Simulate, infer by both methods, print the tables and draw the picture."""
    options = drawing.parser(__doc__).parse_args(arguments)
    lengths = ((100, 100), (300, 300)) if options.quick else ((), ())
    angles, loc = simulate(0)
    nuts = columns(run_nuts(random.key(0), angles, *lengths[0]))
    svi = columns(run_svi(random.key(1), angles, *lengths[1]))
    methods = {"NUTS": nuts, "SVI": svi}
    print(drawing.posterior_table(TRUTH, methods, 2), end="\n\n")
    print(extremes_table(10_000 if options.quick else 100_000))
    drawing.draw(options.out, picture, angles, loc, methods)


if __name__ == "__main__":
    main()
