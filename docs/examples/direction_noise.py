"""Use von Mises-Fisher distributions in 768 dimensions as the noise of a generative model.

``python -m docs.examples.direction_noise --out picture.svg`` prints the tables and draws
the picture of docs/direction-noise.md. Times go to the standard error stream. The picture
needs Matplotlib; the comparison with TensorFlow Probability needs that package.
"""

import functools
import importlib.util
import sys

import jax
import jax.numpy as jnp
import numpy as np

from docs.examples.drawing import COLORS, GREY, INK, parser, seconds, settings, write
from jax_von_mises import VonMisesFisher

__all__ = ["main"]

DIMENSION = 768
# A code of `TOKENS` directions: its loss is the cross entropy plus `PRICE` times the KL
# divergence in nats, and `RATE` is the first step size of Adam.
TOKENS, PRICE, RATE = 256, 0.1, 0.6

# ------------------------------------------------------------------------------------------------
# the schedule


def about_first_axis(concentration, dimension=DIMENSION):
    """Return distributions about the first axis, one for each concentration."""
    return VonMisesFisher(jnp.eye(1, dimension)[0], concentration)


def length_of(concentration, dimension=DIMENSION):
    """Return the mean resultant length: the mean cosine of the angle to the mean direction."""
    return about_first_axis(concentration, dimension).mean_resultant_length()


def kl_of(concentration, dimension=DIMENSION):
    """Return the KL divergence from the uniform distribution in nats."""
    return about_first_axis(concentration, dimension).kl_to_uniform()


@functools.partial(jax.jit, static_argnums=0)
def solve(function, target, length):
    """Return the concentration at which `function` has the value `target`, by Newton steps from near a mean cosine."""
    concentration = length * (DIMENSION - length**2) / (1 - length**2)
    slope = jax.vmap(jax.grad(function))
    for _ in range(5):
        error = function(concentration) - target
        concentration = concentration - error / slope(concentration)
    return concentration


def concentration_of_length(length):
    """Return the concentration with this mean cosine."""
    return solve(length_of, length, length)


def concentration_of_kl(kl):
    """Return the concentration with this KL divergence from the uniform distribution in nats."""
    return solve(kl_of, kl, jnp.sqrt(-jnp.expm1(-2 * kl / (DIMENSION - 1))))


# ------------------------------------------------------------------------------------------------
# gradients of the mean of a function of draws


def overlap(x):
    """Return the square of the cosine of the angle to a fixed direction, which is 60 degrees from the first axis."""
    return (0.5 * x[..., 0] + 0.75**0.5 * x[..., 1]) ** 2


@functools.partial(jax.jit, static_argnums=2)
def estimates(key, concentration, count):
    """Return one-draw estimates of two derivatives of the mean of `overlap`.

    They are those with respect to the concentration, and with respect to a turn of the mean
    direction towards the second axis, in radians: arrays of shape (count,), by parameter and
    estimator. The score function has the mean of all values of `overlap` as its baseline.
    """
    first, second = jnp.eye(2, DIMENSION)

    def turned(angle, concentration):
        mean = jnp.cos(angle) * first + jnp.sin(angle) * second
        return VonMisesFisher(mean, concentration)

    def by_draw(key):
        def value(natural):
            x = VonMisesFisher.from_natural(natural).sample(key)
            return overlap(x), x

        return jax.grad(value, has_aux=True)(concentration * first)

    def score(x):
        slope = jax.grad(lambda *given: turned(*given).log_prob(x), (0, 1))
        return jnp.stack(slope(0.0, concentration))

    keys = jax.random.split(key, count)
    slopes, draws = jax.vmap(by_draw)(keys)
    values = overlap(draws)
    differences = (values - jnp.mean(values))[:, None]
    angle_score, concentration_score = (jax.vmap(score)(draws) * differences).T
    return {
        "direction": {"draws": concentration * slopes[:, 1], "score": angle_score},
        "concentration": {"draws": slopes[:, 0], "score": concentration_score},
    }


def derivatives(concentration):
    """Return the derivatives that `estimates` estimates, by a continued fraction in float64."""
    d, rest = DIMENSION, 0.0
    for n in range(d + 2 * int(20 + concentration), d, -2):
        rest = concentration**2 / (n + rest)
    # `ratio` is the mean cosine divided by the concentration. The mean square of the cosine
    # is 1 - (d - 1) ratio.
    ratio = 1 / (d + rest)
    slope = (rest * ratio - (concentration * ratio) ** 2) / concentration
    return {
        "direction": 0.75**0.5 * rest * ratio,
        "concentration": (1 - d / 4) * slope,
    }


# ------------------------------------------------------------------------------------------------
# a code of noisy directions


def loss(natural, key):
    """Return the loss of a code, the natural parameter of each token, with its parts, from one draw for each token."""
    code = VonMisesFisher.from_natural(natural)
    x = code.sample(key)
    log_norm = code.concentration - code.log_prob(code.mode())
    log_posterior = jax.nn.log_softmax(x @ natural.T - log_norm[None, :])
    wrong = jnp.argmax(log_posterior, 1) != jnp.arange(TOKENS)
    parts = {
        "cross entropy": -jnp.mean(jnp.diagonal(log_posterior)),
        "KL": jnp.mean(code.kl_to_uniform()),
        "concentration": jnp.mean(code.concentration),
        "length": jnp.mean(code.mean_resultant_length()),
        "errors": jnp.mean(wrong),
    }
    return parts["cross entropy"] + PRICE * parts["KL"], parts


@functools.partial(jax.jit, static_argnums=1)
def train(key, steps):
    """Return the code and the loss with its parts at each step, by Adam from the uniform distribution for all tokens."""

    def step(state, given):
        natural, first, second = state
        i, key = given
        (value, parts), slope = jax.value_and_grad(loss, has_aux=True)(natural, key)
        first, second = 0.9 * first + 0.1 * slope, 0.99 * second + 0.01 * slope**2
        mean, square = first / (1 - 0.9 ** (i + 1)), second / (1 - 0.99 ** (i + 1))
        rate = RATE * (1 - i / steps)
        natural = natural - rate * mean / (jnp.sqrt(square) + 1e-8)
        return (natural, first, second), parts | {"loss": value}

    start = (jnp.zeros((TOKENS, DIMENSION)),) * 3
    given = jnp.arange(steps, dtype=jnp.float32), jax.random.split(key, steps)
    (natural, _, _), history = jax.lax.scan(step, start, given)
    return natural, history


# ------------------------------------------------------------------------------------------------
# times


def by_rejection(key, mean, concentration):
    """Return a draw for each unit vector `mean`, by the rejection sampler of G. Ulrich (1984) and A. Wood (1994)."""
    m = mean.shape[-1] - 1
    b = m / (2 * concentration + jnp.sqrt(4 * concentration**2 + m**2))
    centre = (1 - b) / (1 + b)
    offset = concentration * centre + m * jnp.log(1 - centre**2)
    key, tangent_key = jax.random.split(key)

    def propose(state):
        key, w, done = state
        key, beta_key, uniform_key = jax.random.split(key, 3)
        z = jax.random.beta(beta_key, m / 2, m / 2, w.shape)
        proposal = (1 - (1 + b) * z) / (1 - (1 - b) * z)
        bound = concentration * proposal + m * jnp.log(1 - centre * proposal) - offset
        accepted = bound >= jnp.log(jax.random.uniform(uniform_key, w.shape))
        return key, jnp.where(done, w, proposal), done | accepted

    start = key, jnp.zeros_like(concentration), jnp.zeros(concentration.shape, bool)
    w = jax.lax.while_loop(lambda state: ~jnp.all(state[2]), propose, start)[1]
    tangent = jax.random.normal(tangent_key, mean.shape)
    tangent = tangent - jnp.sum(tangent * mean, -1, keepdims=True) * mean
    tangent = tangent / jnp.linalg.norm(tangent, axis=-1, keepdims=True)
    return w[:, None] * mean + jnp.sqrt(1 - w**2)[:, None] * tangent


def report_times(count):
    """Print times of draws to the standard error stream: of a distribution each, and of one distribution."""
    from scipy.stats import vonmises_fisher

    keys = jax.random.split(jax.random.key(0), 3)
    mean = about_first_axis(jnp.zeros(count)).sample(keys[0])
    concentration = jnp.exp(jax.random.uniform(keys[1], (count,), minval=-2, maxval=9))
    samplers = {
        "jax_von_mises": lambda key, *given: VonMisesFisher(*given).sample(key),
        "its derivatives": jax.grad(
            lambda key, *given: overlap(VonMisesFisher(*given).sample(key)).sum(),
            (1, 2),
        ),
        "rejection in JAX": by_rejection,
        "one distribution, jax_von_mises": lambda key, mean, concentration: (
            VonMisesFisher(mean[0], concentration[0]).sample(key, (count,))
        ),
        "one distribution, rejection in JAX": by_rejection,
    }
    if importlib.util.find_spec("tensorflow_probability"):
        from tensorflow_probability.substrates.jax import distributions as tfd

        samplers["TensorFlow Probability"] = lambda key, *given: tfd.VonMisesFisher(
            *given
        ).sample(seed=key)
    samplers = {name: jax.jit(sampler) for name, sampler in samplers.items()}
    one = jnp.broadcast_to(mean[0], mean.shape), jnp.full(count, 500.0)
    frozen = vonmises_fisher(np.asarray(mean[0], float) / np.linalg.norm(mean[0]), 500)
    samplers["one distribution, SciPy"] = lambda *given: frozen.rvs(count)
    for name, sampler in samplers.items():
        given = one if name.startswith("one") else (mean, concentration)
        first, best = seconds(sampler, keys[2], *given)
        print(
            f"{count} directions, {name}: {best * 1e3:.1f} ms, first call {first:.1f} s",
            file=sys.stderr,
        )


# ------------------------------------------------------------------------------------------------
# the report


def schedule_table(concentrations):
    """Return the lines of the table of a schedule."""
    lines = [
        "| mean cosine | concentration | divided by d | KL, nats |",
        "|---:|---:|---:|---:|",
    ]
    columns = length_of(concentrations), concentrations, kl_of(concentrations)
    for each in zip(*columns, strict=True):
        length, kappa, kl = map(float, each)
        lines.append(
            f"| {length:.3f} | {kappa:.4g} | {kappa / DIMENSION:.2g} | {kl:.4g} |"
        )
    return lines


def deviations(key, concentrations, count):
    """Return standard deviations of the estimates, divided by the derivative, by parameter and estimator."""
    found = {}
    for kappa in concentrations:
        exact = derivatives(kappa)
        for name, estimators in estimates(key, jnp.float32(kappa), count).items():
            for by, values in estimators.items():
                found.setdefault((name, by), []).append(
                    float(jnp.std(values)) / abs(exact[name])
                )
    return found


def gradient_table(concentrations, spread):
    """Return the lines of the table of standard deviations."""
    lines = [
        "| concentration | " + " | ".join(map(", ".join, spread)) + " |",
        "|---:" * (1 + len(spread)) + "|",
    ]
    for kappa, *row in zip(concentrations, *spread.values(), strict=True):
        lines.append(
            f"| {kappa:g} | " + " | ".join(f"{each:.2g}" for each in row) + " |"
        )
    return lines


def picture(concentrations, spread, history):
    """Return the figure: mean cosines, standard deviations of derivatives, and the training."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(13, 4), layout="constrained")
    left, middle, right = figure.subplots(1, 3)
    grid = jnp.logspace(-1, 5, 200)
    for dimension, colour in zip((3, 64, DIMENSION), COLORS, strict=False):
        left.semilogx(
            grid, length_of(grid, dimension), color=colour, label=f"d = {dimension}"
        )
    steps = jnp.linspace(0.05, 0.95, 19)
    left.plot(concentration_of_length(steps), steps, "o", color=INK, markersize=3)
    left.axvline(DIMENSION, color=GREY, linewidth=1)
    left.set(xlabel="concentration", title="Mean cosine, and a schedule")
    styles = {"draws": "o-", "score": "^:"}
    for (name, by), values in spread.items():
        colour = COLORS[name == "concentration"]
        middle.loglog(
            concentrations, values, styles[by], color=colour, label=f"{name}, {by}"
        )
    middle.set(xlabel="concentration", title="Spread of a derivative")
    for name, colour in zip(("loss", "cross entropy", "KL"), COLORS, strict=False):
        right.plot(history[name], color=colour, label=name)
    right.set(xlabel="step", title=f"A code of {TOKENS} directions, nats")
    for axes in (left, middle, right):
        axes.legend(frameon=False)
        axes.grid(True)
    return figure


def main(arguments=None):
    """Print the schedules, the deviations of gradients and the result of the training, and draw the picture."""
    options = parser(__doc__).parse_args(arguments)
    count, steps = (500, 30) if options.quick else (4_000, 300)

    lengths = jnp.array([0.01, 0.1, 0.3, 0.5, 0.7, 0.9, 0.99])
    print(*schedule_table(concentration_of_length(lengths)), "", sep="\n")
    divergences = jnp.array([0.01, 1.0, 10.0, 100.0, 1000.0])
    print(*schedule_table(concentration_of_kl(divergences)), "", sep="\n")
    concentrations = (0.1, 1.0, 10.0, 100.0, 1_000.0, 10_000.0)
    spread = deviations(jax.random.key(1), concentrations, count)
    print(*gradient_table(concentrations, spread), "", sep="\n")
    history = train(jax.random.key(0), steps)[1]
    # At the end, steps are short: average the noise of the draws over a tenth of them.
    end = {
        name: float(jnp.mean(each[-steps // 10 :])) for name, each in history.items()
    }
    print(
        f"loss {history['loss'][0]:.2f} at the start, {end['loss']:.2f} after {steps} steps;\n"
        f"concentration {end['concentration']:.0f}, mean cosine {end['length']:.2f}, KL {end['KL']:.1f} nats;\n"
        f"{1 - end['errors']:.1%} of the noisy directions decoded right"
    )
    if not options.quick:
        report_times(1_024)
    if options.out:
        with settings():
            write(picture(concentrations, spread, history), options.out)


if __name__ == "__main__":
    main()
