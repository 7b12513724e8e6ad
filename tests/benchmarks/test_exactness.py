"""Test the search for errors of a sampler: expected values, counts, false alarms, and damage that it must detect."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import jax_von_mises as jvm
from benchmarks.exactness import __main__ as exactness
from benchmarks.exactness import counting, damage, every_word, expected, pictures, plan, state, stream, verdicts
from tests import reference

SMALL = 2**15  # angles in a block: more than the longest lag


def silent(*_, **__):
    """Print nothing."""


# Expected values


@pytest.mark.parametrize("k", [0.0, 0.5, 100.0, 1e7])
def test_masses_are_those_of_the_floats_in_a_bin(k):
    bins = expected.bins(k, "float32", 64)
    assert bins.even
    assert np.allclose(bins.mass, 1 / 64, rtol=0.05)
    edges = bins.edges.astype(np.float32)
    middle = (edges.astype(float) + np.nextafter(edges, np.float32(-10)).astype(float)) / 2
    below = np.where(middle < 0, reference.sf(np.abs(middle), k), 1 - reference.sf(np.abs(middle), k))
    assert np.allclose(np.cumsum(bins.mass), [*below, 1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_bins_of_short_floats_are_their_values(dtype):
    bins = expected.bins(5.0, dtype, 2**16)
    assert not bins.even
    places = bins.edges[1:-1]
    assert np.array_equal(places.astype(jnp.dtype(dtype)).astype(np.float64), places)
    middle = expected.below(places, dtype)
    below = 2 * middle - places
    assert np.all(below < places)
    assert np.array_equal(below.astype(jnp.dtype(dtype)).astype(np.float64), below)
    # The values are adjacent: numbers just above their midpoint round up, and numbers just below it round down.
    assert np.array_equal((middle + 0.01 * (places - below)).astype(jnp.dtype(dtype)).astype(np.float64), places)
    assert np.array_equal((middle - 0.01 * (places - below)).astype(jnp.dtype(dtype)).astype(np.float64), below)


@pytest.mark.few(1)
@pytest.mark.parametrize("k", [0.0, 0.5, 5.0])
@pytest.mark.parametrize("method", ["table", "direct"])
def test_tails_of_the_sampler_keep_the_promise(k, method):
    """Tail probabilities below 2^-11, counted from every word there, are within the bounds and never reported."""
    tails = expected.tails(k)
    words = jnp.arange(2**22, dtype=jnp.uint32) << 10 >> 10
    angles = jax.jit(every_word.transform.angles, static_argnums=3)
    sizes = [np.sort(np.abs(angles((words << 1 | sign,), jnp.float32(0), jnp.float32(k), method))) for sign in (0, 1)]
    places = tails.places.astype(np.float32)
    beyond = sum(len(size) - np.searchsorted(size, places) for size in sizes) / 2.0**32
    deep = tails.mass < 2.0**-11
    assert deep.sum() > 10
    assert np.all(beyond[deep] >= tails.least[deep])
    assert np.all(beyond[deep] <= tails.most[deep])
    assert beyond[-1] > 0, "no angle reaches the last threshold"
    for mass in (beyond, tails.least, tails.most):
        counts = np.where(deep, mass, tails.mass) * 10**13
        (verdict,) = verdicts.tail_tests({"angles": 10**13, "beyond": np.round(counts).astype(np.int64)}, tails)
        assert verdict.p > 0.1


@pytest.mark.parametrize("k", [0.0, 2.0, 1e7])
def test_moments_are_known(k):
    moments = expected.moments(k, (1, 2), "float32")
    mean, variance, slack = moments["versine"][:, 0]
    assert mean == pytest.approx(1 - float(reference.ratio(k)), rel=1e-9)
    assert moments["sine"][0] == pytest.approx([0, 0], abs=1e-12)
    # The mean square of the sine is A(k) / k.
    assert moments["sine"][1, 0] == pytest.approx(0.5 if k == 0 else float(reference.ratio(k)) / k, rel=1e-9)
    assert 0 < slack < 1e-5 * np.sqrt(variance)


# Counts


@pytest.mark.slow
@pytest.mark.parametrize(("k", "dtype"), [(0.5, "float32"), (1e7, "float32"), (5.0, "bfloat16"), (5.0, "float64")])
def test_counts_are_those_of_numpy(k, dtype):
    """The counts of a block agree with NumPy's; a call for three blocks, as on a GPU, gives the sum of their counts."""
    keys = jax.random.key(1), jax.random.key(2)
    bins = expected.bins(k, dtype, 2**8)
    tails = expected.tails(k) if dtype == "float32" else expected.NO_TAILS
    (mean,) = expected.moments(k, (1,), dtype)["versine"][0]
    draw = exactness.sampler(dtype, "table")
    arguments = draw, keys, k, bins, tails, mean, SMALL
    single = [counting.count_blocks(i, 1, *arguments) for i in range(3)]
    together = counting.count_blocks(0, 3, *arguments)
    assert set(together) == set(single[0])
    for name, value in together.items():
        each = np.sum([sums[name] for sums in single], axis=0)
        assert np.array_equal(value, each) if value.dtype.kind == "i" else np.allclose(value, each, 1e-5, 1e-2), name
    counted = single[0]
    with jax.enable_x64(dtype == "float64"):
        x, other = (np.asarray(draw(key, np.float32(k), (0, 0), SMALL)).astype(np.float64) for key in keys)
    assert counted["lost"] == 0
    counts = np.bincount(np.searchsorted(bins.edges, x, side="right"), minlength=len(bins.mass))
    assert np.array_equal(counted["bins"], counts)
    assert np.array_equal(counted["beyond"], np.sum(np.abs(x)[:, None] >= tails.places, axis=0))
    for j, versine, sine in zip(counting.ORDERS, counted["versines"], counted["sines"], strict=True):
        assert versine == pytest.approx(np.sum(1 - np.cos(j * x)), rel=1e-5)
        assert sine == pytest.approx(np.sum(np.sin(j * x)), abs=1e-5 * np.sum(np.abs(np.sin(j * x))))
    v, w = (2 * np.sin(each / 2) ** 2 - mean for each in (x, other))
    s = np.sin(x)
    for lag, products in zip(counting.LAGS, counted["lagged"], strict=True):
        after = np.roll(v, -lag), np.roll(s, -lag)
        exact = np.sum(v * after[0]), np.sum(s * after[1]), np.sum(v * after[1])
        size = 2e-5 * len(x) * np.array([np.var(v), np.var(s), np.std(v) * np.std(s)])
        assert np.all(np.abs(products - exact) < size)
    assert counted["across"][0] == pytest.approx(np.sum(v * w), abs=2e-5 * len(x) * np.var(v))
    assert counted["rises"] == np.sum(x[1:] > x[:-1])
    assert counted["changes"] == np.sum((x < 0) != (np.roll(x, -1) < 0))
    assert counted["positive"] == np.sum(x >= 0)


@pytest.mark.slow
def test_invalid_angles_are_reported():
    draw = lambda key, k, start, count: jvm.sample_von_mises(key, 0.0, k, (count,)).at[7].set(jnp.nan)  # noqa: E731
    bins = expected.bins(5.0, "float32", 2**8)
    for number in (1, 2):
        keys = (jax.random.key(1),) * 2
        sums = counting.count_blocks(0, number, draw, keys, 5.0, bins, expected.tails(5.0), 0.1, SMALL)
        assert sums["lost"] == number
    p_values = {each.test: each.p for each in verdicts.of_counts(sums, bins, expected.tails(5.0), 5.0, "float32")}
    assert p_values["valid angles"] == 0


# Verdicts


def made_up(off=0.0, slack=0.0, count=10**6, size=100):
    """Return sums that have exactly the expected counts in all bins except one, and the bins."""
    mass = np.full(size, 1 / size)
    counts = count * mass
    counts[3] += off * np.sqrt(counts[3])
    return {"angles": count, "bins": counts}, expected.Bins(np.zeros(size - 1), mass, np.full(size, slack), True)


def test_a_bin_that_is_off_is_found_and_its_slack_is_subtracted():
    p = {off: [verdict.p for verdict in verdicts.bin_tests(*made_up(off))] for off in (0.0, 4.0, 9.0)}
    assert p[0.0] == [1.0, 1.0]
    assert p[4.0][1] == pytest.approx(100 * 2 * stats.binom.sf(10_399, 10**6, 0.01))
    assert p[9.0][1] < 1e-15
    assert p[9.0][0] == pytest.approx(stats.chi2.sf(81, 99))
    # Nine standard errors are 900 angles of a million, fewer than the slack of 910.
    assert [verdict.p for verdict in verdicts.bin_tests(*made_up(9.0, 9.1e-4))] == [1.0, 1.0]


@pytest.mark.parametrize("slack", [0.0, 1e-6])
def test_false_alarms_of_the_worst_of_many_bins_are_bounded(slack):
    """The rate of false alarms is bounded even for bins with too few angles for the normal approximation."""
    count, bins = 2**22, 2**14
    counts = np.arange(0, 800)
    once = verdicts.binomial(counts, count, 1 / bins - slack, 1 / bins + slack)
    for rate in (1e-3, 1e-8):
        reported = np.minimum(1, bins * once) < rate
        for mass in (1 / bins, 1 / bins - slack, 1 / bins + slack):
            real = bins * np.sum(stats.binom.pmf(counts[reported], count, mass))
            assert real <= rate * (1 + 1e-9)
            if not slack:
                assert real > rate / 4


def test_bins_with_few_angles_are_joined():
    observed, awaited, slack = verdicts.joined(np.arange(10), np.full(10, 48.0), np.full(10, 0.5))
    assert (observed.sum(), awaited.sum(), slack.sum()) == (45, 480, 5)
    assert np.all(awaited >= 192)


def test_a_missing_tail_is_found():
    mass = 2.0 ** -np.arange(1.0, 32)
    tails = expected.Tails(np.arange(31.0), mass, mass, mass)
    count = 2**20
    right = {"angles": count, "beyond": np.round(count * mass).astype(int)}
    assert [verdict.p for verdict in verdicts.tail_tests(right, tails)] == [1.0]
    # No angle is in the tail of probability 2^-14, where 64 are expected.
    short = {"angles": count, "beyond": np.where(mass <= 2.0**-14, 0, right["beyond"])}
    (verdict,) = verdicts.tail_tests(short, tails)
    assert verdict.p == pytest.approx(2 * 31 * np.exp(-64), rel=1e-2)


@pytest.mark.slow
def test_p_values_of_a_correct_sampler_are_not_small():
    """All p-values are conservative, and those of tests without slack are uniform."""
    k, p_values = 2.0, []
    bins, tails = expected.bins(k, "float32", 2**8), expected.tails(k)
    (mean,) = expected.moments(k, (1,), "float32")["versine"][0]
    draw = exactness.sampler("float32", "table")
    for seed in range(40):
        keys = jax.random.key(seed), jax.random.key(100 + seed)
        sums = counting.count_blocks(0, 1, draw, keys, k, bins, tails, mean, SMALL)
        p_values.append({verdict.test: verdict.p for verdict in verdicts.of_counts(sums, bins, tails, k, "float32")})
    for test in p_values[0]:
        values = np.array([each[test] for each in p_values])
        assert np.mean(values < 0.25) < 0.6
        assert values.min() > 1e-5
        if test in ("signs", "runs of signs", "runs up and down"):
            assert stats.kstest(values, "uniform").pvalue > 1e-4


def test_the_rate_of_false_alarms_is_shared():
    many = [verdicts.Verdict("t", "", p) for p in (1e-9, 1e-7, 0.5)]
    assert [verdict.p for verdict in verdicts.alarms(many)] == [1e-9, 1e-7]
    assert len(verdicts.alarms(many, rate=1e-7)) == 1
    assert verdicts.alarms([verdicts.Verdict("t", "", float("nan"))])


# The stream


def test_the_other_threefry_is_the_published_one():
    """`stream.threefry` gives the answers that Random123 publishes."""
    assert stream.threefry((0, 0), (0, 0)) == (0x6B200159, 0x99BA4EFE)
    ones = 0xFFFFFFFF
    assert stream.threefry((ones, ones), (ones, ones)) == (0x1CB996FC, 0xBB002BE7)


# Every word


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(every_word, "CHUNK", 2**14)
    monkeypatch.setattr(every_word, "CHUNKS", 2**17)


@pytest.mark.slow
@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("k", [0.5, 0.0, 1e4])
def test_errors_are_those_against_an_independent_quantile(k):
    """The interpolated quantiles are far more accurate than the guarantee, and errors have the right units."""
    with jax.enable_x64(True):
        table = jnp.asarray(every_word.cubics(k))
        for first in (0, 2**25 + 12345, 2**31 - 2**14):
            t = (np.arange(first, first + 2**14) + 0.5) / 2**32
            exact = reference.quantile(t, k)

            def errors(x, first=first):
                return map(np.asarray, every_word.errors(jnp.asarray(x), jnp.uint32(first), table))

            share, tail = errors(exact)
            coarse = exact[0] > 3.14  # near pi, floats are too coarse for relative errors of t
            assert np.max(share) < 1e-4
            assert np.max(tail) < 1e-10 or coarse
            # Angles whose tail probabilities have a relative error of 1e-6.
            share, tail = errors(exact + 1e-6 * t / np.exp(every_word.reference.log_prob(exact, k)))
            assert np.allclose(tail, 1e-6, rtol=1e-3) or coarse
            assert np.max(share) < 0.501
            # Rounded angles are off by at most half an ulp (four are allowed), and the others by about nine or more.
            single = exact.astype(np.float32)
            assert np.max(next(errors(single))) < 0.126
            share, tail = errors(single * np.float32(1 + 9 * 2.0**-23))
            assert np.all(share[tail > 2e-6] > 1)
            assert np.all(share[tail < 1e-6] < 0.501)
        assert np.all(np.isinf(next(errors(-exact))))


@pytest.mark.slow
def test_the_angles_looked_up_are_those_of_the_sampler():
    key, k = jax.random.key(9), np.float32(5)
    words = jvm.sampling.counter.words(key, (SMALL,), 1)
    for method in ("table", "direct"):
        x = jax.jit(every_word.transform.angles, static_argnums=3)(words, jnp.float32(0), k, method)
        assert np.array_equal(x, jvm.sample_von_mises(key, 0.0, k, (SMALL,), method=method))


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.slow
@pytest.mark.parametrize("method", ["table", "direct"])
def test_one_wrong_angle_of_all_is_found(monkeypatch, method):
    chosen = every_word.chunks(5)
    assert (chosen[0], chosen[-1]) == (0, 2**17 - 1)
    worst = every_word.check(5.0, method, chosen)
    assert every_word.verdict(worst, len(chosen)).p == 1
    assert 0.05 < np.max(worst.share) <= 1
    # All octaves of the first chunk, and the three largest.
    assert np.flatnonzero(worst.share).tolist() == [*range(15), 29, 30, 31]
    right, wrong = every_word.transform.angles, np.uint32(2 * 12345)

    def damaged(words, loc, k, method):
        x = right(words, loc, k, method)
        return jnp.where(words[0] == wrong, x * np.float32(1 + 1e-5), x)

    monkeypatch.setattr(every_word.transform, "angles", damaged)
    assert every_word.verdict(every_word.check(5.0, method, chosen), len(chosen)).p == 0


# Damage


def reported(draw, k):
    """Return the tests that report a sampler after a million angles."""
    examined = exactness.examine(plan.Distribution(k), draw, jax.random.key(5), 4, state.State(None, {}), silent)
    return {verdict.test for verdict in verdicts.alarms(examined.verdicts)}


STREAM = "angle i is the quantile of word i"
# The tests that must report each damage after a million angles. With more angles, more tests report it.
FOUND = {
    "quantised": {STREAM},
    "24 bits": {STREAM},
    "one segment": {STREAM},
    "swapped words": {STREAM},
    "sign": {STREAM},
    "repeated": {STREAM, "correlation along the stream"},
    "arccos": {STREAM, "bins of equal probability", "the worst bin"},
    "numpyro": {STREAM, "bins of equal probability", "the worst bin"},
}


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(plan, "BLOCK", 2**18)


@pytest.mark.slow
@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("k", [1e7, 0.5])
def test_a_correct_sampler_is_not_reported(k):
    assert not reported(exactness.sampler("float32", "table"), k)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.slow
@pytest.mark.parametrize("name", list(damage.DAMAGES))
def test_damage_is_reported(name):
    if name == "numpyro":
        pytest.importorskip("numpyro", reason="NumPyro is not installed")
    wrong = damage.DAMAGES[name]
    assert reported(jax.jit(wrong.draw, static_argnums=3), wrong.concentration) >= FOUND[name]


# The program


@pytest.mark.slow
def test_an_interrupted_run_continues_to_the_same_counts(tmp_path, monkeypatch, capsys):
    tiny = (plan.Distribution(5.0, weight=2), plan.Distribution(5.0, "float16"))
    for module, name, value in (
        *((plan, "BLOCK", SMALL), (plan, "BINS", 2**8), (plan, "WORDS", {"some": 2, "every": 3})),
        *((every_word, "CHUNK", 2**14), (every_word, "CHUNKS", 2**17)),
    ):
        monkeypatch.setattr(module, name, value)
    monkeypatch.setattr(exactness.run, "__defaults__", (None, exactness.SEED, tiny, silent))
    broken, full, result = tmp_path / "broken.npz", tmp_path / "full.npz", tmp_path / "result.json"
    options = ["--angles", "2e5", "--state"]
    # Interrupt the run while it counts, then while it checks tail probabilities.
    for method, calls in (("add", 2), ("put", 4)):
        with monkeypatch.context() as patch:
            right, left = getattr(state.State, method), [None] * calls

            def stop(*arguments, right=right, left=left):
                right(*arguments)
                left.pop()
                if not left:
                    raise KeyboardInterrupt

            patch.setattr(state.State, method, stop)
            assert exactness.main([*options, str(broken)]) == 130
        assert f"continue with --state {broken}" in capsys.readouterr().err
    for path in (broken, full):
        assert exactness.main([*options, str(path), "--json", str(result)]) == 0
    with np.load(broken) as one, np.load(full) as other:
        assert set(one.files) == set(other.files)
        for name in one.files:
            assert np.array_equal(one[name], other[name]), name
    output = json.loads(result.read_text())
    assert output["angles"] == 8 * SMALL
    assert output["reported"] == 0
    assert {each["law"] for each in output["verdicts"]} == set(output["laws"]) == {each.name for each in tiny}
    # States of other runs, and other files, are refused.
    capsys.readouterr()
    assert exactness.main([*options, str(broken), "--seed", "1"]) == 2
    assert "different seed" in capsys.readouterr().err
    for content in (b"no archive", full.read_bytes()[:2000]):
        broken.write_bytes(content)
        assert exactness.main([*options, str(broken)]) == 2
        assert "is not a state of this program" in capsys.readouterr().err
    pytest.importorskip("matplotlib", reason="Matplotlib is not installed")
    assert pictures.main([str(result), "--out", str(tmp_path / "picture.svg")]) == 0


def test_every_distribution_gets_its_share():
    blocks = plan.shares(10**9, plan.DISTRIBUTIONS)
    assert set(blocks) == set(plan.DISTRIBUTIONS)
    assert 10**9 <= sum(blocks.values()) * plan.BLOCK < 1.1 * 10**9
    assert min(plan.shares(1, plan.DISTRIBUTIONS).values()) == 1
