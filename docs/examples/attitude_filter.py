"""Track the attitude of a vehicle with matrix Fisher distributions: predict and multiply.

``python -m docs.examples.attitude_filter --out picture.svg`` prints the table and draws
the picture of docs/rotations.md.
"""

import jax
import jax.numpy as jnp
import numpy as np

import jax_von_mises as jvm
from docs.examples.drawing import COLORS, GREY, INK, draw, parser, table
from jax_von_mises import rotations
from jax_von_mises.rotations import IsotropicGaussianSO3, MatrixFisher

STEPS = 160
NOISE = 0.02  # standard deviation of the gyro's error in one step, in radians per axis
# What the two instruments see in the axes of the world: down, and the magnetic field.
WORLD = np.float32([[0.0, 0.0, -1.0], [0.5, 0.0, -(0.75**0.5)]])
CONCENTRATIONS = np.tile(np.float32([200.0, 60.0]), (STEPS, 1))
NO_FIELD, OUTAGE = slice(0, 30), slice(80, 120)
CONCENTRATIONS[NO_FIELD, 1] = 0.0
CONCENTRATIONS[OUTAGE] = 0.0
# The rotation vectors that the gyro measures, in the axes of the vehicle.
TIMES = np.arange(STEPS, dtype=np.float32)[:, None]
TURNS = 0.1 * np.sin(TIMES * np.float32([0.05, 0.08, 0.11]) + np.float32([0, 1, 2]))
SHOWN = 3  # run in the left panel
DRAWS = 99  # draws per step, to count how often the truth is in the 90% region


def path(first, turns):
    """Return the attitudes after each turn, which is in the axes of the vehicle."""

    def step(attitude, turn):
        attitude = rotations.multiply(attitude, turn)
        return attitude, attitude

    return jax.lax.scan(step, first, turns)[1]


def simulate(key):
    """Simulate one run; return true attitudes, first and (steps, 4), and readings."""
    start, motion, instruments = jax.random.split(key, 3)
    first = MatrixFisher(jnp.zeros((3, 3))).sample(start)  # any attitude
    errors = IsotropicGaussianSO3([1.0, 0.0, 0.0, 0.0], NOISE).sample(motion, (STEPS,))
    truth = path(first, rotations.multiply(rotations.exp(TURNS), errors))
    seen = rotations.apply(rotations.inverse(truth)[:, None], WORLD)
    readings = jvm.sample_von_mises_fisher(instruments, seen, CONCENTRATIONS)
    return first, truth, readings


def predict(posterior, turn):
    """Return the distribution after the turn that the gyro measured with an error."""
    turn = rotations.to_matrix(rotations.exp(turn))
    turned = jnp.matmul(posterior.mean(), turn, precision="highest")
    return MatrixFisher.from_mean(jnp.exp(-(NOISE**2)) * turned)


def likelihood(readings, concentrations):
    """Return the likelihood of directions (2, 3) of what is known as `WORLD`."""
    weighted = WORLD.T * concentrations
    return MatrixFisher(jnp.matmul(weighted, readings, precision="highest"))


def attitude_filter(readings):
    """Return the distributions of the attitude after each step, a batch of them."""

    def step(posterior, now):
        turn, *measured = now
        posterior = predict(posterior, turn).multiply(likelihood(*measured))
        return posterior, posterior

    anything = MatrixFisher(jnp.zeros((3, 3)))
    return jax.lax.scan(step, anything, (TURNS, readings, CONCENTRATIONS))[1]


def versine(p, q):
    """Return 1 - cos of the angle between rotations."""
    return 1 - jnp.cos(rotations.angle_between(p, q))


def expected_versine(distribution):
    """Return the mean of 1 - cos of the angle to the mode."""
    mode = rotations.to_matrix(distribution.mode())
    return (3 - jnp.sum(mode * distribution.mean(), (-2, -1))) / 2


@jax.jit
def run(key):
    """Simulate one run; return 1 - cos of the errors of each method, that which the filter states, and its region."""
    simulation, draws = jax.random.split(key)
    first, truth, readings = simulate(simulation)
    found = attitude_filter(readings)
    dead = path(first, rotations.exp(TURNS))
    alone = jax.vmap(likelihood)(readings, CONCENTRATIONS)
    errors = [versine(each, truth) for each in (dead, alone.mode(), found.mode())]
    density = found.log_prob(found.sample(draws, (DRAWS,)))
    inside = jnp.sum(density < found.log_prob(truth), 0) >= (DRAWS + 1) // 10
    return jnp.stack(errors), expected_versine(found), inside


def degrees(versines):
    """Return the angle in degrees whose 1 - cos is the mean over the first axis."""
    return np.degrees(np.arccos(np.clip(1 - np.mean(versines, 0), -1, 1)))


def picture(errors, stated):
    """Return the figure: errors over time in one run, and of all runs next to what the filter states."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 4), layout="constrained")
    left, right = figure.subplots(1, 2, sharey=True)
    shown = {"Errors in one run": slice(SHOWN, SHOWN + 1)}
    shown[f"Mean over {len(stated)} runs"] = slice(None)
    for axes, (title, runs) in zip((left, right), shown.items(), strict=True):
        for part, name in ((NO_FIELD, "no field"), (OUTAGE, "outage")):
            axes.axvspan(part.start, part.stop, color=GREY, alpha=0.3, linewidth=0)
            axes.text((part.start + part.stop) / 2, 0.35, name, ha="center")
        axes.plot(degrees(errors[runs, 0]), color=COLORS[0], label="dead reckoning")
        axes.plot(degrees(errors[runs, 2]), color=COLORS[1], label="filter")
        label = "as the filter states it"
        axes.plot(degrees(stated[runs]), "--", color=INK, label=label)
        axes.set(xlabel="step", title=title, yscale="log", ylim=(0.3, 180))
        axes.set_yticks([1, 10, 100], ["1", "10", "100"])
    left.set(ylabel="degrees")
    right.legend(loc="upper right")
    return figure


def main(arguments=None):
    """Compare the methods over many runs, print the table and draw the errors."""
    options = parser(__doc__).parse_args(arguments)
    keys = jax.random.split(jax.random.key(0), 40 if options.quick else 400)
    errors, stated, inside = map(np.asarray, jax.jit(jax.vmap(run))(keys))
    parts = np.zeros((3, STEPS), bool)
    parts[0, NO_FIELD] = parts[2, OUTAGE] = True
    parts[1] = ~(parts[0] | parts[2])

    def row(name, versines):
        return [name, *(f"{degrees(versines[:, at].ravel()):.2f}°" for at in parts)]

    def with_errors(name, values):
        means = [values[:, at].mean(1) for at in parts]
        deviations = [each.std(ddof=1) / np.sqrt(len(each)) for each in means]
        pairs = zip(means, deviations, strict=True)
        return [name, *(f"{each.mean():.3f} ± {error:.3f}" for each, error in pairs)]

    rows = [
        row("dead reckoning", errors[:, 0]),
        row("both directions alone", errors[:, 1]),
        row("filter", errors[:, 2]),
        row("as the filter states it", stated),
        with_errors("ratio of the two", errors[:, 2] / stated),
        with_errors("truth in the 90% region", inside),
    ]
    rows[1][1] = rows[1][3] = "-"  # the readings determine no attitude there
    print(table(["", "no field", "both directions", "outage"], rows))
    draw(options.out, picture, errors, stated)


if __name__ == "__main__":
    main()
