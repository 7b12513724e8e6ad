"""Test the timing with a fake clock, and the intervals with simulated rounds."""

import math

import numpy as np
import pytest

from benchmarks import timing
from tests.made_up import FakeClock


@pytest.fixture
def clock():
    return FakeClock()


def test_the_first_call_and_the_making_of_inputs_are_not_counted(clock):
    competitor = clock.competitor("a", 8.0, 0.5, making=100.0)
    assert timing.first_call(competitor, clock) == 8.0
    assert timing.rounds({"a": competitor}, 3, clock=clock)["a"].seconds == (0.5, 0.5, 0.5)


def test_competitors_take_turns_in_changing_order(clock):
    noise = {name: np.exp(np.random.default_rng(seed).normal(size=40)) for seed, name in enumerate("abc")}
    competitors = {name: clock.competitor(name, *seconds) for name, seconds in noise.items()}
    timing.rounds(competitors, 25, clock=clock)
    turns = "".join(name for name, _ in clock.log)
    orders = [turns[i : i + 3] for i in range(3, len(turns), 3)]
    assert all(sorted(order) == ["a", "b", "c"] for order in orders)
    assert len(set(orders)) == 6


def test_every_call_has_a_new_input(clock):
    competitor = clock.competitor("a", 1e-3)
    timing.first_call(competitor, clock)
    timing.rounds({"a": competitor}, 4, clock=clock)
    inputs = [i for _, i in clock.log]
    assert inputs == list(range(len(inputs)))


def test_a_short_call_is_repeated_and_warmed_up_in_each_turn(clock):
    clock.now = 1.0
    seconds = timing.rounds({"a": clock.competitor("a", 2.0**-10)}, 2, clock=clock)["a"].seconds
    assert seconds == (2.0**-10, 2.0**-10)
    assert len(clock.log) == 1 + 2 * (1 + math.ceil(timing.SHORTEST_TURN * 2**10))


def test_ratios_are_formed_within_a_round(clock):
    """A machine that slows down tenfold changes no ratio, and a steady ratio ends after the fewest rounds."""
    slowing = np.geomspace(1.0, 10.0, 30)
    found = timing.rounds(
        {"ours": clock.competitor("ours", *slowing), "peer": clock.competitor("peer", *(3 * slowing))}, clock=clock
    )
    assert found["ours"].ratio is None
    assert found["peer"].ratio == pytest.approx((3.0, 3.0, 3.0))
    assert len(found["peer"].seconds) == len(found["ours"].seconds) == timing.FEWEST_ROUNDS


def test_a_settled_peer_leaves_and_an_unsettled_one_goes_on(clock):
    noisy = 0.5 * np.exp(np.random.default_rng(0).normal(size=40))
    competitors = {
        "ours": clock.competitor("ours", 0.5),
        "steady": clock.competitor("steady", 1.0),
        "noisy": clock.competitor("noisy", *noisy),
    }
    found = timing.rounds(competitors, clock=clock)
    rounds = {name: len(times.seconds) for name, times in found.items()}
    assert rounds == {"ours": timing.MOST_ROUNDS, "steady": timing.FEWEST_ROUNDS, "noisy": timing.MOST_ROUNDS}


def test_the_time_limit_leaves_the_fewest_rounds(clock):
    noisy = np.exp(np.random.default_rng(0).normal(size=40))
    competitors = {"ours": clock.competitor("ours", 1.0), "peer": clock.competitor("peer", *noisy)}
    found = timing.rounds(competitors, seconds=1.0, clock=clock)
    assert len(found["peer"].seconds) == timing.FEWEST_ROUNDS


def test_fewer_elements_are_counted(clock):
    competitors = {
        "ours": clock.competitor("ours", 1.0, count=100),
        "peer": clock.competitor("peer", 1.0, count=10),
    }
    found = timing.rounds(competitors, clock=clock)
    assert found["ours"].typical == 0.01
    assert found["peer"].ratio.middle == pytest.approx(10.0)


def test_a_competitor_may_measure_itself(clock):
    values = iter([3.0, 1.0, 2.0, 5.0, 4.0])
    competitor = timing.Competitor(lambda i: next(values), measures=True)
    assert timing.rounds({"a": competitor}, 5, clock=clock)["a"].seconds == (3.0, 1.0, 2.0, 5.0, 4.0)


def test_what_a_competitor_measures_is_not_divided_by_its_elements(clock):
    competitor = timing.Competitor(lambda i: 3.0, measures=True, count=1000)
    assert timing.rounds({"a": competitor}, 5, clock=clock)["a"].typical == 3.0


@pytest.mark.parametrize("count", [5, 8, 25])
def test_intervals_contain_the_median_as_often_as_they_say(count):
    samples = np.random.default_rng(count).exponential(size=(4000, count))
    inside = [low <= math.log(2) <= high for _, low, high in map(timing.interval, samples)]
    assert timing.LEVEL - 0.01 <= np.mean(inside) < 1


@pytest.mark.parametrize("spread", [0.12, *(pytest.param(each, marks=pytest.mark.more) for each in (0.02, 0.4))])
def test_rounds_that_end_at_a_narrow_interval_miss_the_median_little_more_often(spread):
    """Looking at the interval after each round costs up to 2 % of the probability."""
    generator = np.random.default_rng(0)
    draws = {
        "a": timing.Competitor(lambda i: 1.0, measures=True),
        "b": timing.Competitor(lambda i: math.exp(spread * generator.standard_normal()), measures=True),
    }
    inside = [low <= 1 <= high for _, low, high in (timing.rounds(draws)["b"].ratio for _ in range(600))]
    # Two standard errors of the frequency are 0.025.
    assert timing.LEVEL - 0.02 - 0.025 <= np.mean(inside) < 1


def test_intervals_narrow_with_more_rounds():
    generator = np.random.default_rng(0)
    few, many = (timing.interval(np.exp(generator.normal(0, 0.1, n))) for n in (5, 25))
    assert many.high / many.low < few.high / few.low
    assert timing.Interval(2.0, 1.9, 2.1).narrow
    assert not timing.Interval(2.0, 1.7, 2.1).narrow
    assert timing.Interval(math.inf, math.inf, math.inf).narrow


def test_stages_are_distinguished(clock):
    def draw(i):
        clock.now += 0.125
        return i

    def wait(result):
        clock.now += 0.5

    def fetch(result):
        clock.now += 0.25

    assert timing.stages(timing.Competitor(draw, wait=wait), fetch, 3, clock) == (0.125, 0.5, 0.25)
