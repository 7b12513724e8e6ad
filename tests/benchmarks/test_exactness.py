"""The search for errors of a sampler: what it expects, what it counts, what it says, and what it must find."""

import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

import jax_von_mises as jvm
from benchmarks.exactness import __main__ as exactness
from benchmarks.exactness import counting, damage, every_word, law, pictures, plan, stream, verdicts
from tests import reference

SMALL = 2**15  # angles in a block, here: more than the longest lag


def drawn(k, count=SMALL, key=3, dtype="float32"):
    return jvm.sample_von_mises(jax.random.key(key), jnp.zeros((), dtype), jnp.asarray(k, dtype), (count,))


# What is expected


@pytest.mark.parametrize("k", [0.0, 0.5, 100.0, 1e7])
def test_masses_are_those_of_the_floats_that_a_bin_holds(k):
    found = law.expect(k, "float32", 64)
    assert np.sum(found.mass) == pytest.approx(1, abs=1e-12)
    assert found.even
    assert np.allclose(found.mass, 1 / 64, rtol=0.05)
    edges = found.edges.astype(np.float32)
    between = (edges.astype(float) + np.nextafter(edges, np.float32(-10)).astype(float)) / 2
    below = np.where(between < 0, reference.sf(np.abs(between), k), 1 - reference.sf(np.abs(between), k))
    assert np.allclose(np.cumsum(found.mass)[:-1], below, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_bins_of_short_floats_are_their_values(dtype):
    found = law.expect(5.0, dtype, 2**16)
    assert not found.even
    places = found.edges[1:-1]
    values = places.astype(jnp.dtype(dtype))
    assert np.array_equal(values.astype(np.float64), places)
    # Each number below an edge is one of the dtype, next to it; 0 and the sign included.
    below = law.before(values).astype(np.float64)
    assert np.all(below < places)
    assert np.array_equal(((places + below) / 2).astype(jnp.dtype(dtype)) <= values, np.full(len(places), True))
    assert law.before(np.array([0.0], jnp.dtype(dtype)))[0] < 0


def test_the_lattice_of_tails():
    """The smallest tail probability of float32 is 2^-33, and a threshold of 2^-32 has just that beyond it."""
    assert law.lattice(np.array([2.0**-32, 2.0**-31, 0.25])).tolist() == [2.0**-32, 2.0**-31, 0.25]
    tails = law.thresholds(5.0)
    assert len(tails.places) == len(tails.mass) == 31
    assert np.all(np.diff(tails.places) > 0)
    assert tails.mass[-1] == tails.least[-1] == tails.most[-1] == 2.0**-31
    assert np.allclose(tails.mass, 2.0 ** -np.arange(1, 32), rtol=3e-6)


@pytest.mark.parametrize("k", [0.0, 0.5, 2.0, 5.0])
@pytest.mark.parametrize("method", ["table", "direct"])
def test_tails_are_those_of_the_sampler(k, method):
    """Its exact probabilities, from all angles of tails below 2^-11, lie where a right sampler's may lie."""
    tails = law.thresholds(k)
    words = jnp.arange(2**22, dtype=jnp.uint32) << 10 >> 10
    angles = jax.jit(every_word.transform.angles, static_argnums=3)
    sizes = [np.sort(np.abs(angles((words << 1 | sign,), jnp.float32(0), jnp.float32(k), method))) for sign in (0, 1)]
    places = tails.places.astype(np.float32)
    beyond = sum(len(size) - np.searchsorted(size, places) for size in sizes) / 2.0**32
    deep = tails.mass < 2.0**-11
    assert deep.sum() > 10
    assert np.all(beyond[deep] >= tails.least[deep])
    assert np.all(beyond[deep] <= tails.most[deep])
    assert beyond[-1] > 0, "a threshold that no angle reaches"
    # What keeps the promise is never reported, however many are drawn.
    for mass in (beyond, tails.least, tails.most):
        seen = np.where(deep, mass, tails.mass) * 10**13
        (verdict,) = verdicts.tails({"angles": 10**13, "beyond": np.round(seen).astype(np.int64)}, tails)
        assert verdict.p > 0.1


@pytest.mark.parametrize("k", [0.0, 2.0, 1e7])
def test_moments_are_known(k):
    found = law.moments(k, (1, 2), "float32")
    mean, variance, slack = found["versine"][:, 0]
    assert mean == pytest.approx(1 - float(reference.ratio(k)), rel=1e-9)
    assert found["sine"][0] == pytest.approx([0, 0], abs=1e-12)
    # The mean square of the sine is A / k.
    assert found["sine"][1, 0] == pytest.approx(0.5 if k == 0 else float(reference.ratio(k)) / k, rel=1e-9)
    assert 0 < slack < 1e-5 * np.sqrt(variance)


# What is counted


@pytest.mark.parametrize(("k", "dtype"), [(0.5, "float32"), (1e7, "float32"), (5.0, "bfloat16"), (5.0, "float64")])
def test_counts_are_those_of_numpy(k, dtype):
    with jax.enable_x64(dtype == "float64"):
        x, other = (drawn(k, key=key, dtype="float64" if dtype == "float64" else "float32") for key in (1, 2))
        x, other = x.astype(dtype), other.astype(dtype)
    expected = law.expect(k, dtype, 2**8)
    levels = law.thresholds(k).places if dtype == "float32" else np.zeros(0)
    (mean,) = law.moments(k, (1,), dtype)["versine"][0]
    found = counting.block_counts(x, other, expected, levels, k, mean)
    x, other = (np.asarray(each).astype(np.float64) for each in (x, other))
    assert found["lost"] == 0
    counts = np.bincount(np.searchsorted(expected.edges, x, side="right"), minlength=len(expected.mass))
    assert np.array_equal(found["bins"], counts)
    assert np.array_equal(found["beyond"], np.sum(np.abs(x)[:, None] >= levels, axis=0))
    for j, versine, sine in zip(counting.ORDERS, found["versines"], found["sines"], strict=True):
        assert versine == pytest.approx(np.sum(1 - np.cos(j * x)), rel=1e-5)
        assert sine == pytest.approx(np.sum(np.sin(j * x)), abs=1e-5 * np.sum(np.abs(np.sin(j * x))))
    v, w = (2 * np.sin(each / 2) ** 2 - mean for each in (x, other))
    for lag, (even, odd, both) in zip(counting.LAGS, found["lagged"], strict=True):
        moved = np.roll(x, -lag)
        size = 2e-5 * len(x) * np.std(v) ** 2
        assert even == pytest.approx(np.sum(v * np.roll(v, -lag)), abs=size)
        assert odd == pytest.approx(np.sum(np.sin(x) * np.sin(moved)), abs=2e-5 * np.sum(np.sin(x) ** 2))
        assert both == pytest.approx(np.sum(v * np.sin(moved)), abs=2e-5 * len(x) * np.std(v) * np.std(np.sin(x)))
    assert found["across"][0] == pytest.approx(np.sum(v * w), abs=2e-5 * len(x) * np.std(v) ** 2)
    assert found["rises"] == np.sum(x[1:] > x[:-1])
    assert found["changes"] == np.sum((x < 0) != (np.roll(x, -1) < 0))
    assert found["positive"] == np.sum(x >= 0)


def test_what_is_no_angle_is_lost_and_reported():
    x = drawn(5.0).at[7].set(jnp.nan)
    expected = law.expect(5.0, "float32", 2**8)
    found = counting.block_counts(x, x, expected, np.zeros(0), 5.0, 0.1)
    assert found["lost"] == 1
    first = next(iter(verdicts.of_law(found, expected, law.NO_TAILS, 5.0, "float32")))
    assert (first.test, first.p) == ("every angle is one", 0.0)


def test_a_gpu_counts_by_itself(monkeypatch):
    places = jnp.array([0, 3, 3, 1])
    assert counting.histogram(places, 5).tolist() == [1, 1, 0, 2, 0]
    monkeypatch.setattr(jax, "default_backend", lambda: "gpu")
    assert counting.histogram(places, 5).tolist() == [1, 1, 0, 2, 0]


@pytest.mark.parametrize(
    ("k", "dtype", "method"),
    [(5.0, "float32", "table"), (1e4, "float32", "direct"), (5.0, "bfloat16", "table"), (5.0, "float64", "table")],
)
def test_many_blocks_are_counted_in_one_call(monkeypatch, k, dtype, method):
    """As a GPU does: the same counts as one by one, and the same sums to rounding, also from where a run broke off."""
    monkeypatch.setattr(plan, "BLOCK", SMALL)
    monkeypatch.setattr(plan, "BINS", 2**8)
    mine, found = plan.Law(k, dtype, method), {}
    for at_once in (1, 3):
        monkeypatch.setattr(counting, "AT_ONCE", {"cpu": at_once})
        calls = []
        monkeypatch.setattr(exactness.State, "save", lambda *_, calls=calls: calls.append(1))
        state = exactness.State(None, {})
        for blocks in (2, 7):
            keys = exactness.streams(jax.random.key(4), mine)
            exactness.count(mine, blocks, exactness.sampler(mine), keys, state, lambda *_, **__: None)
        assert len(calls) == (7 if at_once == 1 else 1 + 2)
        found[at_once] = state.sums[mine.name]
    assert set(found[1]) == set(found[3])
    counting.must_fit(found[3], len(found[1]["bins"]), len(found[1]["beyond"]))
    assert found[3]["angles"] == 7 * SMALL
    for name, value in found[1].items():
        if np.asarray(value).dtype.kind == "f":
            assert np.allclose(found[3][name], value, rtol=1e-5, atol=1e-2), name
        else:
            assert np.array_equal(found[3][name], value), name


# What is said


def made_up(count=10**6, bins=100, off=0.0, slack=0.0):
    """Sums of bins that are exactly as expected, but for one."""
    mass = np.full(bins, 1 / bins)
    seen = count * mass
    seen[3] += off * np.sqrt(seen[3])
    return {"angles": count, "bins": seen}, law.Expected(np.zeros(bins - 1), mass, np.full(bins, slack), True)


def test_a_bin_that_is_off_is_found_and_its_slack_is_taken_off():
    p = {off: [verdict.p for verdict in verdicts.bins(*made_up(off=off))] for off in (0.0, 4.0, 9.0)}
    assert p[0.0] == [1.0, 1.0]
    assert p[4.0][1] == pytest.approx(100 * 2 * stats.binom.sf(10_399, 10**6, 0.01))
    assert p[9.0][1] < 1e-15
    assert p[9.0][0] == pytest.approx(stats.chi2.sf(81, 99))
    # Nine standard errors are 900 angles, of a million.
    assert [verdict.p for verdict in verdicts.bins(*made_up(off=9.0, slack=9.1e-4))] == [1.0, 1.0]


@pytest.mark.parametrize("slack", [0.0, 1e-6])
def test_the_worst_of_many_bins_is_as_rare_as_it_says(slack):
    """Also where bins hold few angles, whose counts are no normal numbers: by exact sums over all counts."""
    count, bins = 2**22, 2**14
    seen = np.arange(0, 800)
    once = verdicts.beyond_chance(seen, count, 1 / bins - slack, 1 / bins + slack)
    for rate in (1e-3, 1e-8):
        said = np.minimum(1, bins * once) < rate
        for mass in (1 / bins, 1 / bins - slack, 1 / bins + slack):
            real = bins * np.sum(stats.binom.pmf(seen[said], count, mass))
            assert real <= rate * (1 + 1e-9)
            if not slack:
                assert real > rate / 4


def test_bins_with_few_angles_are_joined():
    seen, awaited, slack = verdicts.joined(np.arange(10), np.full(10, 48.0), np.full(10, 0.5))
    assert seen.sum() == 45
    assert awaited.sum() == 480
    assert slack.sum() == 5
    assert np.all(awaited >= 192)


def test_counts_in_the_tails():
    mass = 2.0 ** -np.arange(1.0, 32)
    expected = law.Tails(np.arange(31.0), mass, mass, mass)
    count = 2**20
    right = {"angles": count, "beyond": np.round(count * mass).astype(int)}
    (verdict,) = verdicts.tails(right, expected)
    assert verdict.p == 1.0
    # None beyond 2^-15, where 64 are expected.
    short = {"angles": count, "beyond": np.where(mass <= 2.0**-14, 0, right["beyond"])}
    (verdict,) = verdicts.tails(short, expected)
    assert verdict.p == pytest.approx(2 * 31 * np.exp(-64), rel=1e-2)
    assert "beyond a tail of 2^-15.0: 0 angles of 64.0 expected" in verdict.found


def test_p_values_of_a_right_sampler_are_not_small_and_spread():
    """Each is an upper bound; those without slack are uniform."""
    k, found = 2.0, []
    expected = law.expect(k, "float32", 2**8)
    tails = law.thresholds(k)
    (mean,) = law.moments(k, (1,), "float32")["versine"][0]
    for key in range(40):
        sums = counting.block_counts(drawn(k, key=key), drawn(k, key=100 + key), expected, tails.places, k, mean)
        found.append({verdict.test: verdict.p for verdict in verdicts.of_law(sums, expected, tails, k, "float32")})
    for test in ("signs", "runs of signs", "runs up and down"):
        assert stats.kstest([each[test] for each in found], "uniform").pvalue > 1e-4
    for test in found[0]:
        values = np.array([each[test] for each in found])
        assert np.mean(values < 0.25) < 0.6
        assert values.min() > 1e-5


def test_the_rate_of_false_alarms_is_shared():
    many = [verdicts.Verdict("t", "", p) for p in (1e-9, 1e-7, 0.5)]
    assert [verdict.p for verdict in verdicts.alarms(many)] == [1e-9, 1e-7]
    assert len(verdicts.alarms(many, rate=1e-7)) == 1
    assert verdicts.alarms([verdicts.Verdict("t", "", float("nan"))])


# The stream


def test_the_other_threefry_is_the_published_one():
    """Known answers of Random123."""
    assert stream.threefry((0, 0), (0, 0)) == (0x6B200159, 0x99BA4EFE)
    ones = 0xFFFFFFFF
    assert stream.threefry((ones, ones), (ones, ones)) == (0x1CB996FC, 0xBB002BE7)


def test_words_are_the_halves_of_jax_bits():
    key = jax.random.key(9)
    with jax.enable_x64(True):
        bits = np.asarray(jax.random.bits(key, (8,), "uint64"))
    data = [int(each) for each in jax.random.key_data(key)]
    words = [stream.word(data, i) for i in range(16)]
    assert [(high << 32) + low for high, low in zip(words[::2], words[1::2], strict=True)] == bits.tolist()


# Every word


@pytest.fixture
def small_chunks(monkeypatch):
    monkeypatch.setattr(every_word, "CHUNK", 2**14)
    monkeypatch.setattr(every_word, "CHUNKS", 2**17)


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("k", [0.0, 0.5, 1e4])
def test_the_quantile_beside_which_all_words_are_looked_up(k):
    """It is right to far less than the promise, and errors are told in the right units."""
    with jax.enable_x64(True):
        table = jnp.asarray(every_word.cubics(k))
        for first in (0, 2**25 + 12345, 2**31 - 2**14):
            t = (np.arange(first, first + 2**14) + 0.5) / 2**32
            exact = reference.quantile(t, k)
            share, tail = every_word.compare(jnp.asarray(exact), jnp.uint32(first), table)
            assert np.max(share) < 1e-4
            assert np.max(tail) < 1e-10 or exact[0] > 3.14, "next to pi, floats are too coarse"
            # Angles that are off by 1e-6 of their tail probability, and by some units in the last place.
            off = jnp.asarray(exact + 1e-6 * t / np.exp(law.reference.log_prob(exact, k)))
            share, tail = every_word.compare(off, jnp.uint32(first), table)
            assert np.allclose(tail, 1e-6, rtol=1e-3) or exact[0] > 3.14
            assert np.max(share) < 0.501
            single = exact.astype(np.float32)
            share, _ = every_word.compare(jnp.asarray(single), jnp.uint32(first), table)
            assert np.max(share) < 0.126
            single *= np.float32(1 + 9 * 2.0**-23)  # nine units, or more as they become smaller
            share, tail = every_word.compare(jnp.asarray(single), jnp.uint32(first), table)
            assert np.all(share[tail > 2e-6] > 1)
            assert np.all(share[tail < 1e-6] < 0.501)
        wrong = every_word.compare(jnp.asarray(-exact), jnp.uint32(first), table)
        assert np.all(np.isinf(wrong[0]))


def test_the_angles_looked_up_are_those_of_the_sampler():
    key, k = jax.random.key(9), np.float32(5)
    words = jvm.sampling.counter.words(key, (SMALL,), 1)
    for method in ("table", "direct"):
        x = jax.jit(every_word.transform.angles, static_argnums=3)(words, jnp.float32(0), k, method)
        assert np.array_equal(x, jvm.sample_von_mises(key, 0.0, k, (SMALL,), method=method))


@pytest.mark.usefixtures("small_chunks")
@pytest.mark.parametrize("method", ["table", "direct"])
def test_words_that_are_looked_up(monkeypatch, method):
    chosen = every_word.chunks(5)
    assert chosen.tolist()[:2] == [0, 32767]
    assert chosen[-1] == 2**17 - 1
    worst = every_word.check(5.0, method, chosen)
    verdict = every_word.verdict(worst, len(chosen))
    assert verdict.p == 1
    assert verdict.test == "the angle of some tail probability"
    assert 0.05 < np.max(worst.share) <= 1
    # All octaves that the first chunk has, and the four last.
    assert np.flatnonzero(worst.share).tolist() == [*range(15), 29, 30, 31]
    # In parts, it finds the same.
    parts = every_word.check(5.0, method, chosen[2:], every_word.check(5.0, method, chosen[:2]))
    assert all(np.array_equal(one, other) for one, other in zip(worst, parts, strict=True))

    def damaged(words, loc, k, method):
        x = right(words, loc, k, method)
        return jnp.where(words[0] == wrong, x * np.float32(1 + 1e-5), x)

    right = every_word.transform.angles
    monkeypatch.setattr(every_word.transform, "angles", damaged)
    wrong = np.uint32(2 * 12345)
    found = every_word.verdict(every_word.check(5.0, method, chosen), len(chosen))
    assert found.p == 0, "one wrong angle of 2^31"


# Damage


def reported(draw, k, count=2**20):
    """Tests that report a sampler, from few angles."""
    mine = plan.Law(k)
    state = exactness.State(None, {})
    key = jax.random.key(5)
    rows, _ = exactness.judge([mine], lambda law: draw, key, {mine: count // plan.BLOCK}, state, lambda *_, **__: None)
    rows.append((mine, exactness.check_stream(draw, exactness.streams(key, mine)[0], k)))
    return {verdict.test for verdict in verdicts.alarms([verdict for _, verdict in rows])}


@pytest.fixture
def small_blocks(monkeypatch):
    monkeypatch.setattr(plan, "BLOCK", 2**18)


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("k", [0.5, 1e7])
def test_what_is_right_is_not_reported(k):
    assert not reported(exactness.sampler(plan.Law(k)), k)


STREAM = "angle i is the quantile of word i"
# What must be found from a million angles; more of them find more.
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


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("name", damage.DAMAGES)
def test_damage_is_reported(name):
    if name == "numpyro":
        pytest.importorskip("numpyro", reason="NumPyro is not installed")
    wrong = damage.DAMAGES[name]
    k = wrong.concentration or 5.0
    assert reported(jax.jit(wrong.draw, static_argnums=3), k) >= FOUND[name]


# The program


TINY = (plan.Law(5.0, weight=2), plan.Law(5.0, "float16"))


@pytest.fixture
def tiny(monkeypatch):
    monkeypatch.setattr(plan, "BLOCK", 2**15)
    monkeypatch.setattr(plan, "BINS", 2**8)
    monkeypatch.setattr(plan, "LAWS", TINY)
    monkeypatch.setattr(plan.shares, "__defaults__", (TINY, 2**15))
    monkeypatch.setattr(every_word, "CHUNK", 2**14)
    monkeypatch.setattr(every_word, "CHUNKS", 2**17)
    monkeypatch.setattr(plan, "WORDS", {"some": 2, "every": 3})


@pytest.mark.usefixtures("tiny")
def test_a_run_and_its_picture(tmp_path, capsys):
    path = tmp_path / "result.json"
    page = tmp_path / "page.html"
    assert exactness.main(["--angles", "2e5", "--json", str(path), "--report", str(page)]) == 0
    told = capsys.readouterr().out
    assert "0 reported; a sampler that keeps its promise is reported once in 1,000,000 runs" in told
    result = json.loads(path.read_text())
    assert result["angles"] == 8 * 2**15
    assert set(result["laws"]) == {law.name for law in TINY}
    assert len(result["laws"][TINY[0].name]["worst"]["share"]) == every_word.OCTAVES
    (verdict,) = [each for each in result["verdicts"] if "tail probability" in each["test"]]
    assert verdict["found"].startswith("49,152 of 2,147,483,648 tail probabilities, at most 0.")
    text = page.read_text()
    assert "0 reported" in text
    assert text.count("<tr>") == 2 + len(TINY) + len(result["verdicts"])
    pytest.importorskip("matplotlib", reason="the picture needs Matplotlib")
    assert "data:image/svg+xml;base64," in text
    assert pictures.main([str(path), "--out", str(tmp_path / "picture.svg")]) == 0
    assert (tmp_path / "picture.svg").stat().st_size > 1000


@pytest.mark.usefixtures("tiny")
def test_a_run_that_was_interrupted_goes_on(tmp_path, monkeypatch, capsys):
    state, whole = tmp_path / "state.npz", tmp_path / "whole.npz"
    counts = counting.block_counts
    seen = []

    def stop(*given):
        if len(seen) == 2:
            raise KeyboardInterrupt
        seen.append(1)
        return counts(*given)

    monkeypatch.setattr(counting, "block_counts", stop)
    assert exactness.main(["--angles", "2e5", "--state", str(state)]) == 130
    assert f"go on with --state {state}" in capsys.readouterr().err
    monkeypatch.setattr(counting, "block_counts", counts)
    for path in (state, whole):
        assert exactness.main(["--angles", "2e5", "--state", str(path)]) == 0
    with np.load(state) as one, np.load(whole) as other:
        assert set(one.files) == set(other.files)
        for name in one.files:
            assert np.array_equal(one[name], other[name]), name
    capsys.readouterr()
    assert exactness.main(["--angles", "2e5", "--state", str(state), "--seed", "1"]) == 2
    assert "seed differ" in capsys.readouterr().err
    assert exactness.main(["--angles", "2e5", "--state", str(state), "--words", "some"]) == 2
    assert "chunks differ" in capsys.readouterr().err
    with np.load(state) as file:
        arrays = dict(file)
    for name, wrong in ((f"{TINY[0].name}, words/done", np.array(99)), (f"{TINY[0].name}, words/share", np.zeros(3))):
        np.savez(state, **arrays | {name: wrong})
        assert exactness.main(["--angles", "2e5", "--state", str(state)]) == 2
        assert "words is not of this program" in capsys.readouterr().err
    state.write_bytes(b"no archive")
    assert exactness.main(["--state", str(state)]) == 2
    assert "is no state of this program" in capsys.readouterr().err
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state.npz", "whole.npz"]


@pytest.mark.usefixtures("tiny")
def test_damage_on_the_command_line(capsys):
    assert exactness.main(["--damage", "swapped words", "--angles", "3e4"]) == 0
    assert "swapped words: two words of each block change places: angle i is" in capsys.readouterr().out


def test_every_law_gets_its_share():
    found = plan.shares(10**9)
    assert set(found) == set(plan.LAWS)
    assert 10**9 <= sum(found.values()) * plan.BLOCK < 1.1 * 10**9
    assert min(plan.shares(1).values()) == 1
