"""Test the search for errors of a sampler: expected values, counts, false alarms, and damage that it must detect."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import jax_von_mises as jvm
from benchmarks.exactness import __main__ as exactness
from benchmarks.exactness import counting, damage, expected, report, verdicts, words
from tests import reference

SMALL = 2**15  # angles in a block: more than the longest lag
RESULTS = Path(report.__file__).parents[1] / "results"


def count(k, dtype, draw, keys, number=1, first=0, bins=2**8):
    """Return the sums over some small blocks, the bins and the tails."""
    bins = expected.bins(k, dtype, bins)
    tails = expected.tails(k) if dtype == "float32" else expected.NO_TAILS
    (mean,) = expected.moments(k, (1,), dtype)["versine"][0]
    return counting.count_blocks(first, number, draw, keys, k, bins, tails, mean, SMALL), bins, tails


# Expected values


@pytest.mark.parametrize("k", [0.0, 0.5, 1e7])
def test_masses_are_those_of_the_floats_in_a_bin(k):
    bins = expected.bins(k, "float32", 64)
    assert bins.even
    assert np.allclose(bins.mass, 1 / 64, rtol=0.05)
    edges = bins.edges.astype(np.float32)
    middle = (edges.astype(float) + np.nextafter(edges, np.float32(-10)).astype(float)) / 2
    below = np.where(middle < 0, reference.sf(np.abs(middle), k), 1 - reference.sf(np.abs(middle), k))
    assert np.allclose(np.cumsum(bins.mass), [*below, 1], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", ["bfloat16", pytest.param("float16", marks=pytest.mark.more)])
def test_bins_of_short_floats_are_their_values(dtype):
    bins = expected.bins(5.0, dtype, 2**16)
    assert not bins.even
    places = bins.edges[1:-1]
    middle = expected.below(places, dtype)
    below = 2 * middle - places
    assert np.all(below < places)
    # Numbers just above the midpoint of adjacent values round up, and numbers just below it round down.
    for number, rounded in ((0, places), (0.49, places), (0.51, below), (1, below)):
        short = (places + number * (below - places)).astype(jnp.dtype(dtype))
        assert np.array_equal(short.astype(np.float64), rounded)


@pytest.mark.more
@pytest.mark.parametrize(("k", "method"), [(0.0, "table"), (5.0, "table"), (0.5, "direct")])
def test_tails_of_the_sampler_keep_the_promise(k, method):
    """Tail probabilities below 2^-11, counted from every word there, are within the bounds."""
    tails = expected.tails(k)
    numbers = jnp.arange(2**22, dtype=jnp.uint32) << 10 >> 10
    angles = jax.jit(words.transform.angles, static_argnums=3)
    sizes = [np.sort(np.abs(angles((numbers << 1 | sign,), jnp.float32(0), jnp.float32(k), method))) for sign in (0, 1)]
    places = tails.places.astype(np.float32)
    beyond = sum(len(size) - np.searchsorted(size, places) for size in sizes) / 2.0**32
    deep = tails.mass < 2.0**-11
    assert deep.sum() > 10
    assert np.all(beyond[deep] >= tails.least[deep])
    assert np.all(beyond[deep] <= tails.most[deep])
    assert beyond[-1] > 0, "no angle reaches the last threshold"


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
@pytest.mark.parametrize(("k", "dtype"), [(0.5, "float32"), (5.0, "bfloat16")])
def test_counts_are_those_of_numpy(k, dtype):
    """The counts of a block agree with NumPy's; a call for three blocks, as on a GPU, gives the sum of their counts."""
    keys, draw = (jax.random.key(1), jax.random.key(2)), exactness.sampler(dtype, "table")
    single = [count(k, dtype, draw, keys, first=i)[0] for i in range(3)]
    for name, value in count(k, dtype, draw, keys, 3)[0].items():
        each = np.sum([sums[name] for sums in single], axis=0)
        assert np.array_equal(value, each) if value.dtype.kind == "i" else np.allclose(value, each, 1e-5, 1e-2), name
    counted, bins, tails = count(k, dtype, draw, keys)
    with jax.enable_x64(dtype == "float64"):
        x, other = (np.asarray(draw(key, np.float32(k), (0, 0), SMALL)).astype(np.float64) for key in keys)
    assert counted["lost"] == 0
    counts = np.bincount(np.searchsorted(bins.edges, x, side="right"), minlength=len(bins.mass))
    assert np.array_equal(counted["bins"], counts)
    assert np.array_equal(counted["beyond"], np.sum(np.abs(x)[:, None] >= tails.places, axis=0))
    for j, versine, sine in zip(counting.ORDERS, counted["versines"], counted["sines"], strict=True):
        assert versine == pytest.approx(np.sum(1 - np.cos(j * x)), rel=1e-5)
        assert sine == pytest.approx(np.sum(np.sin(j * x)), abs=1e-5 * np.sum(np.abs(np.sin(j * x))))
    (mean,) = expected.moments(k, (1,), dtype)["versine"][0]
    s, r = np.sin(x), np.sin(other)
    v, w = (2 * np.sin(each / 2) ** 2 - mean for each in (x, other))
    size = 2e-5 * len(x) * np.array([np.var(v), np.var(s), np.std(v) * np.std(s)])
    after = [(np.roll(v, -lag), np.roll(s, -lag)) for lag in counting.LAGS]
    for products, (even, odd) in zip([*counted["lagged"], counted["across"]], [*after, (w, r)], strict=True):
        assert np.all(np.abs(products - [np.sum(v * even), np.sum(s * odd), np.sum(v * odd)]) < size)
    assert counted["rises"] == np.sum(x[1:] > x[:-1])
    assert counted["changes"] == np.sum((x < 0) != (np.roll(x, -1) < 0))
    assert counted["positive"] == np.sum(x >= 0)


@pytest.mark.slow
def test_invalid_angles_are_reported():
    draw = lambda key, k, start, count: jvm.sample_von_mises(key, 0.0, k, (count,)).at[7].set(jnp.nan)  # noqa: E731
    sums, bins, tails = count(5.0, "float32", draw, (jax.random.key(1),) * 2)
    assert sums["lost"] == 1
    p_values = {each.test: each.p for each in verdicts.of_counts(sums, bins, tails, 5.0, "float32")}
    assert p_values["valid angles"] == 0


# Verdicts


@pytest.mark.parametrize(
    ("off", "slack", "p"),
    [
        (0.0, 0.0, (1, 1)),
        (4.0, 0.0, (stats.chi2.sf(16, 99), 200 * stats.binom.sf(10_399, 10**6, 0.01))),
        (9.0, 0.0, (stats.chi2.sf(81, 99), 200 * stats.binom.sf(10_899, 10**6, 0.01))),
        (9.0, 9.1e-4, (1, 1)),  # nine standard errors are 900 angles of a million, fewer than the slack of 910
    ],
)
def test_a_bin_that_is_off_is_found_and_its_slack_is_subtracted(off, slack, p):
    mass = np.full(100, 0.01)
    counts = 10**6 * mass
    counts[3] += off * 100
    bins = expected.Bins(np.zeros(99), mass, np.full(100, slack), True)
    found = verdicts.bin_tests({"angles": 10**6, "bins": counts}, bins)
    assert [verdict.p for verdict in found] == pytest.approx(p)


@pytest.mark.parametrize("slack", [0.0, 1e-6])
def test_false_alarms_of_the_worst_of_many_bins_are_bounded(slack):
    """The rate of false alarms is bounded even for bins with too few angles for the normal approximation."""
    angles, bins = 2**22, 2**14
    counts = np.arange(0, 800)
    once = verdicts.binomial(counts, angles, 1 / bins - slack, 1 / bins + slack)
    for rate in (1e-3, 1e-8):
        reported = np.minimum(1, bins * once) < rate
        for mass in (1 / bins, 1 / bins - slack, 1 / bins + slack):
            real = bins * np.sum(stats.binom.pmf(counts[reported], angles, mass))
            assert real <= rate * (1 + 1e-9)
            assert slack or real > rate / 4


def test_a_missing_tail_is_found():
    mass = 2.0 ** -np.arange(1.0, 32)
    tails = expected.Tails(np.arange(31.0), mass, mass, mass)
    right = np.round(2**20 * mass).astype(int)
    # No angle is in the tail of probability 2^-14, where 64 are expected.
    for beyond, p in ((right, 1.0), (np.where(mass <= 2.0**-14, 0, right), 2 * 31 * np.exp(-64))):
        (verdict,) = verdicts.tail_tests({"angles": 2**20, "beyond": beyond}, tails)
        assert verdict.p == pytest.approx(p, rel=1e-2)


@pytest.mark.slow
def test_p_values_of_a_correct_sampler_are_not_small():
    """All p-values are conservative, and those of tests without slack are uniform."""
    p_values, draw = [], exactness.sampler("float32", "table")
    for seed in range(40):
        sums, bins, tails = count(2.0, "float32", draw, (jax.random.key(seed), jax.random.key(100 + seed)))
        p_values.append({each.test: each.p for each in verdicts.of_counts(sums, bins, tails, 2.0, "float32")})
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


# Words


def test_the_other_threefry_is_the_published_one():
    """`words.threefry` gives the answers that Random123 publishes."""
    assert words.threefry((0, 0), (0, 0)) == (0x6B200159, 0x99BA4EFE)
    ones = 0xFFFFFFFF
    assert words.threefry((ones, ones), (ones, ones)) == (0x1CB996FC, 0xBB002BE7)


@pytest.mark.slow
@pytest.mark.parametrize("k", [0.0, 1e4])
def test_errors_are_those_against_an_independent_quantile(k):
    """The interpolated quantiles are far more accurate than the guarantee, and errors have the right units."""
    with jax.enable_x64(True):
        table = jnp.asarray(words.cubics(k))
        for first in (0, 2**25 + 12345, 2**31 - 2**14):
            t = (np.arange(first, first + 2**14) + 0.5) / 2**32
            exact = reference.quantile(t, k)
            density = np.exp(words.reference.log_prob(exact, k))

            def largest(x, which=slice(None), first=first):
                return np.max(np.asarray(words.errors(jnp.asarray(x), jnp.uint32(first), table))[which], initial=0)

            assert largest(exact) < 1e-4
            # Half of the guaranteed relative error of the tail probability.
            assert largest(exact + 1e-6 * t / density) < 0.501
            # Rounded angles are off by at most half an ulp, and four are allowed.
            single = exact.astype(np.float32)
            assert largest(single) < 0.126
            # Errors of nine ulp or more are found unless the error of the tail probability is small.
            wrong = single * np.float32(1 + 9 * 2.0**-23)
            tail = np.abs(wrong - exact) * density / t
            shares = np.asarray(words.errors(jnp.asarray(wrong), jnp.uint32(first), table))
            assert np.all(shares[tail > 2.01e-6] > 1)
            assert largest(wrong, tail < 1e-6) < 0.501
        assert np.all(np.isinf(words.errors(jnp.asarray(-exact), jnp.uint32(first), table)))


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(words, "CHUNK", 2**14)
    monkeypatch.setattr(words, "CHUNKS", 2**17)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.slow
@pytest.mark.parametrize("method", ["table", "direct"])
def test_one_wrong_angle_of_all_is_found(monkeypatch, method):
    share = words.largest_error(5.0, method, 5)
    assert 0.05 < share <= 1
    assert words.verdict(share, 5).p == 1
    right = words.transform.angles
    # One angle near pi, and the one next to 0.
    for wrong, factor, shift in ((12345, 1 + 1e-5, 0), (2**31 - 1, 1, 1e-5)):

        def damaged(given, loc, k, method, wrong=wrong, factor=factor, shift=shift):
            x = right(given, loc, k, method)
            return jnp.where(given[0] == np.uint32(2 * wrong), x * np.float32(factor) + np.float32(shift), x)

        monkeypatch.setattr(words.transform, "angles", damaged)
        assert words.verdict(words.largest_error(5.0, method, 5), 5).p == 0


@pytest.mark.slow
def test_the_angles_looked_up_are_those_of_the_sampler():
    key, k = jax.random.key(9), np.float32(5)
    given = jvm.engine.counter.words(key, (SMALL,), 1)
    for method in ("table", "direct"):
        x = jax.jit(words.transform.angles, static_argnums=3)(given, jnp.float32(0), k, method)
        assert np.array_equal(x, jvm.sample_von_mises(key, 0.0, k, (SMALL,), method=method))


# Damage

STREAM = "angle i is the quantile of word i"
BINS = {"bins of equal probability", "the worst bin"}
# The tests that must report each damage after 2^18 angles, beside the stream. With more angles, more tests do.
ALSO = {"repeated": {"correlation along the stream"}, "arccos": BINS, "numpyro": BINS}


def reported(draw, k, monkeypatch):
    """Return the tests that report a sampler after 2^18 angles."""
    monkeypatch.setattr(exactness, "BLOCK", 2**16)
    found = exactness.examine(exactness.Distribution(k), draw, jax.random.key(5), 4)
    return {verdict.test for verdict in verdicts.alarms(found)}


@pytest.mark.slow
@pytest.mark.parametrize("k", [1e7, 0.5])
def test_a_correct_sampler_is_not_reported(k, monkeypatch):
    assert not reported(exactness.sampler("float32", "table"), k, monkeypatch)


@pytest.mark.slow
@pytest.mark.parametrize("name", list(damage.DAMAGES))
def test_damage_is_reported(name, monkeypatch):
    if name == "numpyro":
        pytest.importorskip("numpyro", reason="NumPyro is not installed")
    draw, k = damage.DAMAGES[name]
    assert reported(jax.jit(draw, static_argnums=3), k, monkeypatch) >= {STREAM} | ALSO.get(name, set())


# The program


@pytest.mark.more
def test_a_run_is_written_and_read_again(tmp_path, monkeypatch, capsys):
    """The file has the printed line of each distribution, and the page shows it with the outcome."""
    monkeypatch.setattr(exactness, "BLOCK", SMALL)
    monkeypatch.setattr(exactness.run, "__defaults__", (1, exactness.DISTRIBUTIONS[9:10]))
    out = tmp_path / "machine.csv"
    assert exactness.main(["--angles", "2e5", "--words", "some", "--out", str(out)]) == 0
    head, rows = report.read(out)
    assert [row[:3] for row in rows] == [("k=5, bfloat16, table", str(7 * SMALL), "2")]
    assert "0 reported" in head["outcome"]
    assert head["outcome"] in capsys.readouterr().out
    assert "| k=5, bfloat16, table | 229,376 | 2 |" in report.markdown(out)
    committed = RESULTS / "exactness-cpu-2-cores.csv"
    assert f"package tree {report.read(committed)[0]['tree'][:12]}; " in report.markdown(committed)
    with pytest.raises(SystemExit):
        exactness.main(["--out", str(tmp_path / "none" / "a.csv")])
    assert "there is no folder" in capsys.readouterr().err


def test_ctrl_c_ends_with_a_sentence(monkeypatch, capsys):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(exactness, "run", interrupted)
    assert exactness.main(["--quick"]) == 130
    assert "nothing is kept" in capsys.readouterr().err


def test_every_distribution_gets_its_share():
    blocks = exactness.shares(10**9, exactness.DISTRIBUTIONS)
    assert set(blocks) == set(exactness.DISTRIBUTIONS)
    assert 10**9 <= sum(blocks.values()) * exactness.BLOCK < 1.1 * 10**9
