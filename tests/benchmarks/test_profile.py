"""The profile: its clock, its counts, what it concludes from made-up data, and one tiny run of all of it."""

import base64
import json
import pathlib
import re
import shlex
import sys
from html.parser import HTMLParser
from xml.etree import ElementTree

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from benchmarks import reference, timing
from benchmarks.peers import OURS
from benchmarks.profile_gpu import __main__ as profile
from benchmarks.profile_gpu import (
    exactness,
    findings,
    measuring,
    operations,
    pictures,
    plan,
    programs,
    report,
    roofline,
    sizes,
    tables,
    variants,
)
from benchmarks.streaming import cases as stream_cases
from jax_von_mises.sampling import counter
from tests.made_up import FakeClock, Pending, waits


@pytest.fixture
def clock():
    return FakeClock()


def entry(clock, name, *durations, count=100):
    return measuring.Entry(name, count, clock.competitor(name, *durations))


def result(median, spread=0.01, count=100, **more):
    """A result as `measuring.race` gives it, of made-up turns."""
    found = measuring.of_seconds([median * (1 - spread), median, median * (1 + spread)], count=count, label="made up")
    return found | {"rate": None if found["wide"] else count / found["median"], "first": 1.0} | more


NOISY = result(1.0, spread=0.9)


# Timing


def test_a_race_tells_first_calls_and_rates(clock):
    found = measuring.race({"a": entry(clock, "a", 8.0, 0.5), "b": entry(clock, "b", 4.0, 2.0)}, 4, clock)
    assert (found["a"]["first"], found["a"]["median"], found["a"]["rate"]) == (8.0, 0.5, 200.0)
    # A call above LONG_CALL has its warm-up as a turn and one in three rounds.
    assert found["b"]["seconds"] == [2.0, 2.0]


def test_a_noisy_result_has_no_rate(clock):
    durations = [0.5, 0.5, *([0.5, 1.0] * 10)]
    found = measuring.race({"a": entry(clock, "a", *durations)}, 8, clock)["a"]
    assert found["wide"]
    assert found["rate"] is None
    assert tables.rate(found) == tables.seconds(found) == tables.NOISY
    assert not measuring.usable(found)


def test_who_fails_at_first_leaves_the_others_their_race(clock):
    def fail(_):
        raise MemoryError("no room\nand a long story")

    entries = {"bad": measuring.Entry("bad", 1, timing.Competitor(fail)), "good": entry(clock, "good", 0.5)}
    found = measuring.race(entries, 3, clock)
    assert found["bad"]["failed"] == "MemoryError: no room"
    assert found["good"]["median"] == 0.5
    assert tables.rate(found["bad"]) == "failed"


def test_laps_time_each_part_with_a_new_input_and_not_its_making(clock):
    seen = []

    def fresh(i):
        clock.now += 50.0
        seen.append(i)
        return i

    def part(seconds):
        def run(value):
            clock.now += seconds + (100.0 if value == 0 else 0.0)
            return value

        return run

    # The first call, which compiles, does not count.
    found = measuring.laps(fresh, {"dispatch": part(0.25), "compute": part(2.0), "to_host": part(0.5)}, 3, clock)
    assert found == {"dispatch": [0.25] * 3, "compute": [2.0] * 3, "to_host": [0.5] * 3}
    # One that compiles, one that tells how long a call is, and one in each round.
    assert seen == [0, 1, 2, 3, 4]


def test_short_laps_are_means_of_several_calls(clock):
    calls = []

    def run(value):
        calls.append(value)
        clock.now += 2.0**-9 * (value % 2 + 1)

    found = measuring.laps(lambda i: i, {"a": run}, 2, clock)
    # The call that tells the length, number 1, takes 2^-8 seconds, so three make up a lap; every other is shorter.
    assert len(calls) == 2 + 2 * 3
    assert found["a"] == [2.0**-9 * 4 / 3, 2.0**-9 * 5 / 3]


@pytest.mark.parametrize(
    ("one", "other", "state", "ratio"),
    [
        (result(1.0), result(2.0), "faster", 2.0),
        (result(2.0), result(1.0), "slower", 0.5),
        (result(1.0), result(1.02), "same", 1.02),
        # The medians differ, and the middle halves of the turns overlap.
        (result(1.0, 0.15), result(1.1, 0.15), "same", 1.1),
        # By the elements of each.
        (result(1.0, count=100), result(1.0, count=50), "faster", 2.0),
        (result(1.0), NOISY, "noisy", None),
        (result(1.0), {"failed": "no"}, "missing", None),
        (None, result(1.0), "missing", None),
    ],
)
def test_results_are_compared_or_refused(one, other, state, ratio):
    found = measuring.against(one, other)
    assert found["state"] == state
    assert found["ratio"] == (None if ratio is None else pytest.approx(ratio))


@pytest.mark.parametrize(
    ("first", "later", "plain_first", "plain", "calls"),
    [(10.0, 1.0, 2.0, 3.0, 5), (1.0, 1.0, 2.0, 3.0, 1), (10.0, 3.0, 2.0, 3.0, None), (1.0, 4.0, 2.0, 3.0, None)],
)
def test_the_call_from_which_compiling_pays(first, later, plain_first, plain, calls):
    assert measuring.pays_from(first, later, plain_first, plain) == calls
    if calls is not None and calls > 1:
        totals = [(first + n * later, plain_first + n * plain) for n in (calls - 2, calls - 1)]
        assert totals[0][0] > totals[0][1]
        assert totals[1][0] <= totals[1][1]


def test_the_leader_is_named_unless_noise_may_hide_a_better_one():
    def noisy(median):
        return result(median, spread=0.9)  # its fast quartile is 0.55 of the median

    quiet = {"a": result(1.0), "b": result(2.0), "failed": {"failed": "no"}}
    assert measuring.leader(quiet) == "a"
    assert measuring.leader(quiet | {"noisy": noisy(2.0)}) == "a"
    assert measuring.leader(quiet | {"noisy": noisy(1.5)}) is None
    assert measuring.leader({"failed": {"failed": "no"}}) is None
    assert measuring.leader({}) is None
    # By other amounts than the elements.
    assert measuring.leader(quiet, {"a": 1, "b": 4, "failed": 0}) == "b"
    # A clock that saw nothing pass may stand for any rate.
    assert measuring.reach(measuring.of_seconds([0.0, 0.0, 0.0], count=1)) == float("inf")


def test_recommended_size_is_the_smallest_that_is_surely_enough():
    def noisy(count):
        return result(1.0, spread=0.9, count=count)

    made = [result(1.0, count=10), result(1.0, count=95), result(1.0, count=100)]
    assert sizes.recommended([10, 95, 100], made) == 95
    # Noise that even at its fast quartile is no better hides nothing; noise that may be better does.
    assert sizes.recommended([10, 95, 100, 1000], [*made, noisy(50)]) == 95
    assert sizes.recommended([10, 95, 100, 1000], [*made, noisy(60)]) == 100
    assert sizes.recommended([10, 95, 100, 1000], [*made, noisy(100)]) is None
    assert sizes.recommended([10, 95, 100], [noisy(10), *made[1:]]) == 95


# Operations and ceilings


def counted(function, *arguments):
    compiled = jax.jit(function).lower(*arguments).compile()
    return operations.count(compiled.as_text()), compiled.cost_analysis()


def test_operations_of_a_known_program():
    x = jnp.ones(1000)
    found, costs = counted(lambda x: jnp.sqrt(x * np.float32(2.5) + np.float32(1)), x)
    assert found == operations.Operations(floats=2000, transcendentals=1000)
    assert costs["flops"] == 2000


def test_operations_on_words_are_integers_and_agree_with_xla():
    found, costs = counted(lambda key: counter.words(key, (4096,), 1)[0], jax.random.key(0))
    assert found.floats == found.transcendentals == 0
    assert found.integers == costs["flops"]
    assert found.integers / 4096 > 60  # 20 rounds of an addition, a rotation and an exclusive or


def test_operations_of_a_product():
    found, _ = counted(lambda a, b: a @ b, jnp.ones((8, 16)), jnp.ones((16, 4)))
    assert found.floats == 2 * 8 * 16 * 4


PROGRAM = """HloModule made_up

%body (p.0: f32[10]) -> f32[10] {
  %p.0 = f32[10]{0} parameter(0)
  ROOT %m.0 = f32[10]{0} multiply(%p.0, %p.0)
}

%cheap (p.1: f32[10]) -> f32[10] {
  ROOT %p.1 = f32[10]{0} parameter(0)
}

%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}

ENTRY %main (x: f32[10], which: s32[]) -> f32[] {
  %x = f32[10]{0} parameter(0)
  %which = s32[] parameter(1)
  LINE
  %zero = f32[] constant(0)
  ROOT %r = f32[] reduce(%y, %zero), dimensions={0}, to_apply=%add
}
"""


@pytest.mark.parametrize(
    ("line", "floats", "whole"),
    [
        ('%y = f32[10]{0} while(%x), body=%body, backend_config={"known_trip_count":{"n":"7"}}', 79, True),
        ("%y = f32[10]{0} while(%x), body=%body", 19, False),
        ("%y = f32[10]{0} conditional(%which, %x, %x), branch_computations={%body, %cheap}", 9, False),
        ("%y = f32[10]{0} fusion(%x), kind=kLoop, calls=%body", 19, True),
    ],
)
def test_operations_of_loops_branches_and_sums(line, floats, whole):
    assert operations.count(PROGRAM.replace("LINE", line)) == operations.Operations(floats, 0, 0, whole)


def test_the_bound_is_the_longest_time_at_the_ceilings():
    ceilings = {"bytes": 100.0, "floats": 10.0, "integers": 1.0}
    account = {"bytes": 100, "floats": 20, "integers": 1, "transcendentals": 5}
    assert roofline.bound(account, ceilings) == {"bound": 2.5, "bound_by": "floats"}
    assert roofline.bound(account | {"integers": 9}, ceilings)["bound_by"] == "integers"
    # What is not known may bind.
    assert roofline.bound(account, ceilings | {"bytes": None}) == {"bound": None, "bound_by": None}


def test_ceilings_are_what_the_fastest_turns_reach():
    work = {"bytes": 8, "floats": 6, "integers": 4}
    probes = {"copy": result(2.0, **work), "fill": result(4.0, spread=0.9, **work), "floats 1": {"failed": "no"}}
    probes |= {"integers 1": result(2.0, **work), "integers 4": result(1.0, **work)}
    found = roofline.ceilings(probes)
    assert found == {"bytes": pytest.approx(8 / 1.99), "floats": None, "integers": pytest.approx(4 / 0.995)}
    # A ceiling that noise made too low would have a stage above it.
    fast = probes["fill"] | {"quartiles": [0.5, 6.0]}
    assert roofline.ceilings(probes | {"fill": fast})["bytes"] == 16


def test_a_chain_does_what_it_counts():
    x = np.linspace(0, 1, 16, dtype=np.float32)
    found, _ = counted(roofline.multiply_adds(2, 8), x, np.float32(0.5))
    assert found.floats / 16 == pytest.approx(2 * 8, abs=4)  # and a few to begin and to end
    found, _ = counted(roofline.rounds(1, 50), x.view(np.uint32), np.uint32(5))
    assert found.floats == 0
    assert found.integers / 16 == pytest.approx(50, abs=12)


# Exactness


def right_angles(k, count):
    """Angles at evenly spaced probabilities."""
    return reference.icdf((np.arange(count) + 0.5) / count, k).astype(np.float32)


def test_a_histogram_believes_the_law_and_no_other():
    angles = right_angles(5.0, 4000)
    assert exactness.histogram(angles, 5.0)["p_value"] > 0.999
    assert sum(exactness.histogram(angles, 5.0)["observed"]) == 4000
    assert exactness.histogram(angles * np.float32(1.2), 5.0)["p_value"] < findings.UNLIKELY


def test_tails_of_draws_are_counted_in_standard_errors():
    angles = right_angles(5.0, 4000)
    assert exactness.drawn_tails(angles, 5.0)["worst"] < 0.2
    assert exactness.drawn_tails(angles * np.float32(1.2), 5.0)["worst"] > findings.ERRORS


def test_exact_tails_keep_the_promise_and_see_a_breach(monkeypatch):
    found = exactness.exact_tails(5.0, "table", 40)
    assert found["worst"] <= 1
    assert found["tail"][0] == 2.0**-33
    assert found["tail"][-1] == pytest.approx(0.5)
    original = exactness.transform.angles
    monkeypatch.setattr(exactness.transform, "angles", lambda *given: original(*given) * np.float32(1 + 1e-5))
    assert exactness.exact_tails(5.0, "table", 40)["worst"] > 1


def test_edges_of_a_dtype_lie_halfway_to_the_next_number():
    values = np.array([-2.5, -2.0, -1.0, -6e-8, 0.0, 1e-3, 1.0, 1.5, 2.0, 3.0], np.float16)
    exact = values.astype(np.float64)
    halfway = (exact + np.nextafter(values, np.float16(np.inf)).astype(np.float64)) / 2
    assert np.array_equal(exactness.edges_of(exact, "float16"), halfway)


def test_rounding_is_told_from_drawing_wrongly(monkeypatch):
    right = exactness.rounded("float16", 5.0, 2**12)
    assert right["fair"] < right["noise"]
    original = exactness.jvm.sample_von_mises
    monkeypatch.setattr(exactness.jvm, "sample_von_mises", lambda *given: original(*given) * 1.2)
    wrong = exactness.rounded("float16", 5.0, 2**12)
    assert wrong["fair"] > wrong["noise"]


# What is timed: it waits for its result, and no call gets the input of the one before


def entries_of(monkeypatch, measure, *arguments):
    """The entries that a section would have raced."""
    found = {}

    def keep(entries, rounds):
        found.update(entries)
        return {name: result(1.0, label=entry.label, **WORK) for name, entry in entries.items()}

    monkeypatch.setattr(measuring, "race", keep)
    measure(*arguments)
    return found


WORK = dict.fromkeys(("floats", "integers", "bytes", "transcendentals"), 1)
RACED = {
    "roofline": roofline.measure,
    "batch": sizes.batch,
    "precision": variants.precision,
    "keys": variants.key_implementations,
    "devices": lambda plan: variants.sharded(plan, jax.local_devices()[:1]),
    "accuracy": lambda plan: exactness.speed(plan, exactness.PEERS[:2], {}),
}


def same(one, other):
    """Whether two inputs are the same; keys and arrays."""
    data = [jax.random.key_data(x) if jax.dtypes.issubdtype(x.dtype, jax.dtypes.prng_key) else x for x in (one, other)]
    return np.array_equal(*data)


@pytest.mark.parametrize("section", RACED)
def test_all_that_is_raced_waits_and_rotates(section, monkeypatch):
    found = entries_of(monkeypatch, RACED[section], TINY)
    assert found
    for name, entry in found.items():
        assert waits(entry.competitor.wait), name
        inputs = [entry.competitor.fresh(i) for i in range(3)]
        assert not any(same(inputs[i], inputs[i + 1]) for i in range(2)), name


def test_compiling_is_raced_with_waits_and_new_keys():
    for without in (False, True):
        timed = programs.competitor(TINY, 64, without)
        assert waits(timed.wait)
        inputs = [timed.fresh(i) for i in range(3)]
        assert not any(same(inputs[i], inputs[i + 1]) for i in range(2))


def test_streams_wait_for_each_batch(monkeypatch):
    batches = [Pending() for _ in range(3)]
    monkeypatch.setattr(stream_cases, "batches", lambda *given, **options: batches)
    timed = stream_cases.on_key(stream_cases.draws(192, 64, True))
    assert not same(timed.fresh(1), timed.fresh(2))
    timed.wait(timed.draw(timed.fresh(1)))
    assert all(batch.waited for batch in batches)


def test_parts_of_a_call_end_where_they_say(monkeypatch):
    """What the call returned is waited for in its own part, and so is what was sent to the device."""
    steps = {}

    def keep(fresh, parts, rounds, clock):
        assert not np.array_equal(fresh(1), fresh(2)) if "to_device" in parts else not same(fresh(1), fresh(2))
        steps.update(parts)
        return {name: [1.0] * 3 for name in parts}

    monkeypatch.setattr(measuring, "laps", keep)
    sizes.moved(TINY, 64)
    assert list(steps) == ["dispatch", "compute", "to_host", "to_device"]
    assert waits(steps["compute"])
    sent = Pending()
    monkeypatch.setattr(jax, "device_put", lambda values: sent)
    steps["to_device"](np.zeros(3))
    assert sent.waited


# Findings from made-up data, both ways


def kinds(section, data):
    return [each.kind for each in findings.of_section(section, data)]


def words(section, data):
    return " ".join(f"{each.text} {each.todo}" for each in findings.of_section(section, data))


def donated(one, other):
    results = {"kept": other | {"buffers": 4}, "donated": one | {"buffers": 2}}
    return {"results": results, "compare": measuring.against(one, other)}


def test_findings_on_donation():
    assert "2.00 times as fast" in words("donation", donated(result(1.0), result(2.0)))
    assert "gains nothing here: 0.99 times" in words("donation", donated(result(1.0), result(0.99)))
    assert "Leave donate=False" in words("donation", donated(result(2.0), result(1.0)))
    assert kinds("donation", donated(result(1.0), NOISY)) == ["note", "noisy"]
    assert "times" not in words("donation", donated(result(1.0), NOISY))


def prefetched(one, other, bound=None):
    results = {"prefetch 2": one | {"label": "depth 2"}, "batches": other}
    best = "prefetch 2" if measuring.usable(one) else None
    return {"results": results, "best": best, "compare": measuring.against(one, other), "bound": bound}


def test_findings_on_prefetch():
    found = words("prefetch", prefetched(result(1.0), result(2.0), bound=200.0))
    assert "depth=2" in found
    assert "50%" in found
    assert "gains nothing here: 1.00 times" in words("prefetch", prefetched(result(1.0), result(1.0)))
    assert "loses here: 0.50 times" in words("prefetch", prefetched(result(2.0), result(1.0)))
    assert kinds("prefetch", prefetched(NOISY, result(1.0))) == ["noisy"]


def moved(dispatch, compute, to_host, shared=False):
    row = {"dispatch": dispatch, "compute": compute, "to_host": to_host}
    return {"rows": [row], "sizes": [100], "shared": shared, "item": 4}


def test_findings_on_transfer():
    small = result(0.1)
    assert kinds("transfer", moved(small, result(1.0), small)) == ["good", "good"]
    assert kinds("transfer", moved(result(2.0), result(1.0), result(9.0))) == ["act", "act"]
    assert "3.00 times the time of drawing" in words("transfer", moved(result(2.0), result(1.0), result(9.0)))
    assert kinds("transfer", moved(small, NOISY, small)) == ["noisy"]
    assert "one memory" in words("transfer", moved(small, result(1.0), small, shared=True))


def variant(name, each, base):
    return {name: each | {"compare": measuring.against(each, base)}}


def precise(other, fair=1e-4):
    base = result(1.0)
    losses = [
        {"dtype": name, "concentration": 5.0, "distinct": 10, "step": 0.1, "fair": fair, "noise": 1e-3}
        for name in ("float32", "float16")
    ]
    return {
        "results": variant("float32", base, base) | variant("float16", other, base),
        "losses": losses,
        "draws": 100,
    }


def test_findings_on_precision():
    assert "float16: 2.00 times as fast as float32; 10 distinct values" in words("precision", precise(result(0.5)))
    assert "no faster than float32" in words("precision", precise(result(1.0)))
    assert "slower than float32 (0.50 times)" in words("precision", precise(result(2.0)))
    assert kinds("precision", precise(NOISY)) == ["good", "noisy"]
    assert kinds("precision", precise(result(1.0), fair=1e-2)) == ["note", "act", "act"]


def keyed(other):
    base = result(1.0)
    return {"results": variant("usual", base, base) | variant("other", other, base), "usual": "usual"}


def test_findings_on_keys():
    assert "other keys draw 2.00 times as fast" in words("keys", keyed(result(0.5)))
    assert "No kind of key is faster than usual" in words("keys", keyed(result(2.0)))
    assert kinds("keys", keyed(NOISY)) == ["noisy"]
    assert "no such key" in words("keys", keyed({"failed": "no such key"}))


def test_keys_that_were_too_noisy_are_part_of_no_conclusion():
    hidden = variant("hidden", NOISY, result(1.0))
    slower, faster = keyed(result(2.0)), keyed(result(0.5))
    for data in (slower, faster):
        data["results"] |= hidden
    assert kinds("keys", slower) == ["note", "noisy"]
    assert "No faster than usual here: other." in words("keys", slower)
    assert "No kind of key" not in words("keys", slower)
    assert "hidden keys against usual: too noisy to say" in words("keys", slower)
    assert kinds("keys", faster) == ["good", "noisy"]
    assert "one of those that were too noisy may be faster still" in words("keys", faster)


def on_devices(other, shared=False):
    base = result(1.0)
    return {"results": variant("1", base, base) | variant("2", other, base), "shared": shared, "child": False}


def test_findings_on_devices():
    assert kinds("devices", on_devices(result(0.5))) == ["good"]
    assert "1.00 times as fast as one (50% of 2 times)" in words("devices", on_devices(result(1.0)))
    assert kinds("devices", on_devices(result(1.0))) == ["act"]
    assert kinds("devices", on_devices(result(1.0), shared=True)) == ["note", "note"]
    assert kinds("devices", on_devices(NOISY)) == ["noisy"]


def test_findings_on_compiling():
    def row(pays, jit, plain):
        noisy = jit["wide"] or plain["wide"]
        firsts = {"jit": result(jit["first"]), "plain": result(plain["first"])}
        data = {"count": 10, "noisy": noisy, "jit": jit, "plain": plain, "firsts": firsts}
        return data | {"pays_from": pays, "calls_of_compiling": 7.0}

    fast, slow = result(1.0, first=9.0), result(4.0, first=5.0)
    data = {"rows": [row(3, fast, slow), row(None, slow, fast), row(None, NOISY, fast)]}
    assert kinds("compile", data) == ["good", "act", "noisy"]
    assert "4.00 times as long, it pays from call 3 on." in words("compile", data)
    assert "without jit a call takes 0.25 times as long" in words("compile", data)
    eager = {"rows": [row(1, result(1.0, first=1.0), slow)]}
    assert "at the first call already, because" in words("compile", eager)


@pytest.mark.parametrize("which", ["compiling", "jit", "plain"])
def test_when_compiling_pays_rests_on_first_calls_that_agree(which):
    firsts = {"compiling": result(7.0), "jit": result(10.0), "plain": result(2.0)}
    found = programs.paying(firsts, result(1.0), result(3.0))
    assert found == {"noisy": False, "pays_from": 5, "calls_of_compiling": pytest.approx(7.0)}
    noisy = {"noisy": True, "pays_from": None, "calls_of_compiling": None}
    assert programs.paying(firsts | {which: NOISY}, result(1.0), result(3.0)) == noisy
    assert programs.paying(firsts, NOISY, result(3.0)) == programs.paying(firsts, result(1.0), NOISY) == noisy


def test_findings_on_memory():
    def rows(temporary):
        return {
            "rows": [{"count": 8, "method": "table", "output_bytes": 1000, "temporary_bytes": temporary}],
            "fits": {"failed": "MemoryError: no"},
        }

    assert "nothing to speak of" in words("memory", rows(10))
    assert "200% of it" in words("memory", rows(2000))
    assert "Count 3.0 times the result" in words("memory", rows(2000))


def test_findings_on_the_size_of_a_call():
    def data(table, direct, recommended=4):
        return {
            "sizes": [4, 8],
            "lines": {"table": table, "direct": direct},
            "recommended": {"table": recommended, "direct": recommended},
            "table_from": 8,
        }

    fast, slow = result(1.0), result(2.0)
    good = data([slow, fast], [fast, slow])
    assert kinds("batch", good) == ["good", "good", "good"]
    wrong = data([fast, slow], [slow, fast], recommended=8)
    assert kinds("batch", wrong) == ["note", "note", "act"]
    assert "Name the method yourself at 4, 8 angles" in words("batch", wrong)
    assert kinds("batch", data([NOISY] * 2, [NOISY] * 2, recommended=None)) == ["noisy"]
    # Half of it noisy: what is said is of the other half, and says so.
    half = data([NOISY, fast], [fast, slow], recommended=8)
    half["recommended"]["direct"] = None
    told = words("batch", half)
    assert kinds("batch", half) == ["note", "note", "noisy"]
    assert "Whether 4 would do was too noisy to say." in told
    assert "at 4 that cannot be told." in told
    assert "where it could be told, it takes the faster one" in told
    assert "The best size of a call, direct route: too noisy to say." in told


def test_findings_on_the_roofline():
    def stage(label, share, **more):
        made = {"label": label, "share": share, "bound_by": "floats", "integers": 10}
        return result(1.0) | made | more

    stages = {
        "words": stage("words", 0.9, bound_by="integers"),
        "sample table": stage("whole sampler", 0.1),
        "cdf": stage("cdf", 0.4),
        "icdf": stage("icdf", 1.5),
        "log_prob": NOISY | stage("log_prob", None) | {"wide": True},
        "gradient": stage("gradient", 0.7, integers=40),
    }
    data = {"stages": stages, "ceilings": {"bytes": 1.0, "floats": 1.0, "integers": None}}
    assert kinds("roofline", data) == ["act", "good", "act", "note", "note", "good", "act", "noisy"]
    found = words("roofline", data)
    assert "4.00 times the integer operations of the words alone" in found
    assert "150% of what floating-point arithmetic allows" in found
    assert "or the ceiling was measured too low. Take this number for no measure." in found
    assert "No program that measures the ceiling of integer arithmetic ran" in found
    assert "log_prob: too noisy to say." in found


def test_findings_on_the_log():
    compiled = [{"program": "draw", "seconds": 0.5}]
    steps = {"first call": compiled, "another key": [], "another concentration": [], "another size": compiled}
    assert kinds("log", {"programs": steps}) == ["good", "note"]
    assert "compiled again: draw" in words("log", {"programs": steps | {"another key": compiled}})
    assert kinds("log", {"programs": {"first call": []}}) == ["act"]


def test_findings_on_the_trace():
    data = {"folder": "trace", "calls": 5, "perfetto": None, "longest": [], "operations": 0, "traced_seconds": 0.0}
    assert "names no operation" in words("trace", data)
    longest = [{"operation": "fusion", "seconds": 0.9}]
    assert "90% of it" in words("trace", data | {"longest": longest, "traced_seconds": 1.0, "perfetto": "p.gz"})


def accurate(p_value=0.5, worst=1.0, promise=0.3, distinct=90, mine=100, speed=None):
    def of(peer, **more):
        return {"peer": peer, "concentration": 5.0, "draws": 100, **more}

    return {
        "labels": {OURS: "mine", "other": "theirs"},
        "ours": OURS,
        "draws": 100,
        "missing": {"other": "not installed"} if speed is None else {},
        "shapes": [of(OURS, p_value=p_value), of("other", p_value=p_value)],
        "drawn_tails": [of(OURS, worst=worst)],
        "exact_tails": [{"worst": promise, "concentration": 5.0, "method": "table"}],
        "distinct": [of(OURS, distinct=mine), of("other", distinct=distinct)],
        "speed": {OURS: result(1.0), "other": speed} if speed else {},
    }


def test_findings_on_accuracy():
    assert kinds("accuracy", accurate()) == ["note", "good", "good", "good"]
    assert kinds("accuracy", accurate(p_value=1e-9)) == ["note", "act", "note", "good"]
    assert "tails at concentration 5" in words("accuracy", accurate(worst=6.0))
    assert "110% of the promised error" in words("accuracy", accurate(promise=1.1))
    assert "theirs: 3 distinct values in 100 draws" in words("accuracy", accurate(distinct=3))
    assert "Ours has 2.00 times the rate of theirs." in words("accuracy", accurate(speed=result(2.0)))
    assert kinds("accuracy", accurate(speed=result(0.5)))[-1] == "note"
    assert kinds("accuracy", accurate(speed=NOISY))[-1] == "noisy"


@pytest.mark.parametrize(
    ("error", "hint"),
    [
        ("XlaRuntimeError: RESOURCE_EXHAUSTED: Out of memory", "Memory ran out"),
        ("ImportError: no matplotlib", "pip install"),
        ("ValueError: odd", "--sections"),
    ],
)
def test_a_failed_section_is_a_finding_with_what_to_do(error, hint):
    (found,) = findings.of_section("batch", {"error": error, "told": ""})
    assert error in found.text
    assert hint in found.todo


# One tiny run of all sections


TINY = plan.Plan(
    mode="quick",
    platform="cpu",
    rounds=2,
    laps=2,
    folder=None,
    count=64,
    compiled=(64,),
    firsts=1,
    sweep=(64, 128),
    memory=(64,),
    batch=64,
    batches=3,
    moved=(64,),
    chain=64,
    steps=16,
    draws=2**10,
    tail_points=20,
    peers=(OURS, "numpy"),
    keys=("threefry2x32", "philox4x32", "no such key"),
    dtypes=("float32", "float16"),
    stages=("words", "wrap", "log_prob"),
)


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The folder of a report, and what it was made from."""
    pytest.importorskip("matplotlib", reason="the pictures need matplotlib: the extra `plots`")
    folder = tmp_path_factory.mktemp("profile")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "SHORTEST_TURN", 1e-3)
        two = jax.local_devices()[:2]
        patch.setattr(jax, "local_devices", lambda: two)
        for name, values in {"SHAPES": (5.0,), "DRAWN": (1e7,), "ROUNDED": (5.0,), "TAILS": (5.0,)}.items():
            patch.setattr(exactness, name, values)
        code = profile.main(["--out", str(folder / "out"), "--json", str(folder / "data.json")], TINY)
    assert code == 0
    return folder / "out", json.loads((folder / "data.json").read_text())


class Page(HTMLParser):
    """Reads a page; fails where elements are not closed in order."""

    EMPTY = ("meta", "img", "br", "link", "input")

    def __init__(self, text):
        super().__init__()
        self.open, self.found, self.text = [], [], ""
        self.feed(text)
        self.close()
        assert not self.open

    def handle_starttag(self, tag, attrs):
        """An element begins."""
        self.found.append((tag, dict(attrs)))
        if tag not in self.EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag):
        """An element ends."""
        assert self.open.pop() == tag

    def handle_data(self, data):
        """Text."""
        self.text += data

    def of(self, tag):
        """Attributes of all elements of a kind."""
        return [attrs for name, attrs in self.found if name == tag]


def test_every_section_was_measured(ran):
    _, data = ran
    assert list(data["sections"]) == list(plan.SECTIONS)
    assert {name: each.get("error") for name, each in data["sections"].items()} == dict.fromkeys(plan.SECTIONS)


def test_the_page_has_every_section_and_picture_and_needs_nothing_else(ran):
    folder, _ = ran
    text = (folder / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert {each["id"] for each in page.of("section")} == {"summary", *plan.SECTIONS}
    images = page.of("img")
    assert len(images) == len(pictures.PICTURES)
    assert all(each["alt"] for each in images)
    for each in images:
        kind, code = each["src"].split(",")
        assert kind == "data:image/svg+xml;base64"
        svg = base64.b64decode(code).decode()
        ElementTree.fromstring(svg)
        assert "prefers-color-scheme:dark" in svg
        assert "currentColor" in svg
        assert all(address.startswith("#") for address in re.findall(r'href="([^"]*)"', svg))
    addresses = [attrs[name] for _, attrs in page.found for name in ("src", "href") if name in attrs]
    assert all(address.startswith(("data:", "#")) for address in addresses)
    assert not re.search(r"<script|<link|url\(|@import|http-equiv=.refresh", text)
    assert {"name": "viewport", "content": "width=device-width, initial-scale=1"} in page.of("meta")
    assert "measured on a CPU" in page.text


def test_tables_have_a_cell_for_every_column(ran):
    _, data = ran
    found = [table for name, each in data["sections"].items() for table in tables.of_section(name, each)]
    assert len(found) >= len(plan.SECTIONS)
    assert all(len(row) == len(table.columns) for table in found for row in table.rows)


def test_files_beside_the_page(ran):
    folder, data = ran
    assert {path.stem for path in folder.glob("*.png")} == set(pictures.PICTURES)
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in folder.glob("*.png"))
    assert "Finished XLA compilation" in (folder / "compile.log").read_text()
    assert (folder / data["sections"]["trace"]["perfetto"]).stat().st_size > 0
    assert not list(folder.parent.glob(".*"))


def test_what_a_tiny_run_must_find(ran):
    sections = ran[1]["sections"]
    assert [len(each) for each in sections["log"]["programs"].values()] == [1, 0, 0, 0, 1]
    assert sections["trace"]["longest"]
    assert sections["donation"]["results"]["donated"]["buffers"] == 2
    assert list(sections["keys"]["missing"]) == ["no such key"]
    assert [int(name) for name in sections["devices"]["results"]] == [1, 2]
    assert sections["accuracy"]["exact_tails"][0]["worst"] <= 1
    assert {row["peer"] for row in sections["accuracy"]["distinct"]} == {OURS, "numpy"}
    assert sections["roofline"]["stages"]["words"]["integers"] > 60 * TINY.count
    assert sections["compile"]["rows"][0]["firsts"]["plain"]["median"] > 0
    assert jax.config.jax_enable_compilation_cache


# Files


def fake_sections(patch, **replaced):
    """Measure nothing but what is given."""
    patch.setattr(
        profile, "measures", lambda: dict.fromkeys(plan.SECTIONS, lambda plan: {"error": "x", "told": ""}) | replaced
    )


def fail(plan):
    raise RuntimeError("<script>alert('&')</script>\x00 happened")


def interrupt(plan):
    (plan.folder / "half.png").write_bytes(b"half")
    raise KeyboardInterrupt


def test_a_section_that_fails_is_shown_and_escaped(tmp_path, monkeypatch, capsys):
    fake_sections(monkeypatch, batch=fail, keys=lambda plan: {**keyed(result(0.5)), "count": 10, "missing": {}})
    assert profile.main(["--out", str(tmp_path / "out"), "--sections", "batch", "keys"], TINY) == 0
    assert "FAILED" in capsys.readouterr().out
    text = (tmp_path / "out" / "report.html").read_text(encoding="utf-8")
    page = Page(text)
    assert not page.of("script")
    assert "\x00" not in text
    assert "<script>alert('&')</script>" in page.text
    assert "other keys draw 2.00 times as fast" in page.text


def test_an_interrupt_leaves_the_old_report_and_nothing_else(tmp_path, monkeypatch, capsys):
    out = tmp_path / "out"
    fake_sections(monkeypatch, batch=interrupt)
    assert profile.main(["--out", str(out), "--json", str(tmp_path / "data.json")], TINY) == 130
    assert not list(tmp_path.iterdir())
    out.mkdir()
    (out / "report.html").write_text("old")
    (out / "batch.png").write_text("old")
    (out / profile.LIST).write_text('["batch.png", "report.html"]')
    assert profile.main(["--out", str(out)], TINY) == 130
    assert sorted(path.name for path in out.iterdir()) == ["batch.png", profile.LIST, "report.html"]
    assert (out / "report.html").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["out"]
    assert "interrupted" in capsys.readouterr().err


def test_a_new_report_replaces_what_belongs_to_the_old_one_alone(tmp_path):
    out, work = tmp_path / "out", tmp_path / "work"
    for folder in (out, work):
        (folder / "trace").mkdir(parents=True)
        (folder / "report.html").write_text(folder.name)
        (folder / "trace" / folder.name).write_text("")
    (out / "keys.png").write_text("old")
    mine = ("notes.txt", "holiday.png", "compile.log")
    for name in mine:
        (out / name).write_text("mine")
    (out / profile.LIST).write_text('["keys.png", "report.html", "trace"]')
    profile.publish(work, out)
    assert sorted(path.name for path in out.iterdir()) == sorted([*mine, profile.LIST, "report.html", "trace"])
    assert sorted(profile.written(out)) == ["report.html", "trace"]
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith(".")] == []
    assert (out / "report.html").read_text() == "work"
    assert [path.name for path in (out / "trace").iterdir()] == ["work"]


def test_bad_paths_are_refused_before_anything_is_measured(tmp_path, monkeypatch, capsys):
    fake_sections(monkeypatch, batch=interrupt)
    assert profile.main(["--json", str(tmp_path / "no" / "data.json")], TINY) == 2
    assert profile.main(["--json", str(tmp_path)], TINY) == 2
    (tmp_path / "file").write_text("")
    assert profile.main(["--out", str(tmp_path / "file")], TINY) == 2
    assert "name a folder" in capsys.readouterr().err
    assert profile.main(["--out", str(tmp_path)], TINY) == 2
    assert "holds files that are no report" in capsys.readouterr().err


def test_what_is_missing_comes_with_the_command_that_installs_it(tmp_path, monkeypatch, capsys):
    """Before anything is measured, and on the page; with the Python that runs, for this clone."""
    fake_sections(monkeypatch)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "numpyro", None)
    monkeypatch.setattr(sys, "executable", "/an environment/bin/python")
    clone = pathlib.Path(profile.__file__).resolve().parents[2]
    command = shlex.join(["/an environment/bin/python", "-m", "pip", "install", "-e", f"{clone}[bench]"])
    assert profile.main(["--out", str(tmp_path / "out"), "--sections", "batch", "accuracy"], TINY) == 0
    said = capsys.readouterr().err.splitlines()
    assert said == [
        "matplotlib is not installed: no pictures",
        "numpyro is not installed: no comparison with NumPyro",
        f"install what is missing: {command}",
        f"no pictures: matplotlib is not installed: {command}",
    ]
    assert f"matplotlib is not installed: {command}" in Page((tmp_path / "out" / "report.html").read_text()).text


def test_a_single_cpu_is_measured_as_several_devices_by_a_child(monkeypatch, capsys):
    one = jax.local_devices()[:1]
    monkeypatch.setattr(jax, "local_devices", lambda: one)
    monkeypatch.setattr(timing, "SHORTEST_TURN", 1e-3)
    asked = TINY._replace(virtual_devices=2, folder="")
    # What the child does with its order, in this process.
    assert profile.main(["--child", json.dumps(asked._asdict())]) == 0
    assert list(json.loads(capsys.readouterr().out)) == ["1"]
    monkeypatch.setattr(variants, "virtual", lambda plan: {"2": result(1.0)})
    found = variants.devices(asked)
    assert (found["child"], list(found["results"])) == (True, ["2"])


def test_a_child_that_fails_says_so(monkeypatch):
    monkeypatch.setattr(variants.sys, "executable", "false")
    with pytest.raises(RuntimeError, match="the process with several devices failed"):
        variants.virtual(TINY._replace(virtual_devices=2))


def test_plans_are_larger_in_full_and_on_a_gpu():
    quick, full = plan.make(True, "cpu", "x"), plan.make(False, "cpu", "x")
    gpu = plan.make(True, "gpu", "x")
    assert (gpu.on_gpu, quick.on_gpu) == (True, False)
    for name in ("count", "batch", "draws", "rounds"):
        assert getattr(full, name) > getattr(quick, name)
    assert gpu.count > quick.count
    assert max(gpu.sweep) > max(quick.sweep)


def test_about_every_section_something_is_said():
    assert set(report.ABOUT) == set(findings.SECTIONS) == set(tables.TABLES) == set(plan.SECTIONS)
    assert {section for section, *_ in pictures.PICTURES.values()} == set(plan.SECTIONS) - {"log"}
