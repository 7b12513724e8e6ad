"""Provide a fake clock for the timing of competitors."""

from benchmarks import timing


class FakeClock:
    """A clock that advances only when a test adds seconds, with a log of events."""

    def __init__(self):
        self.now = 0.0
        self.log = []

    def __call__(self):
        """Return the time."""
        return self.now

    def competitor(self, name, *durations, making=0.0, **more):
        """Return a competitor whose call ``i`` takes the i-th duration; further calls take the last one."""

        def fresh(i):
            self.now += making
            return i

        def draw(i):
            self.log.append((name, i))
            return durations[min(i, len(durations) - 1)]

        def wait(seconds):
            self.now += seconds

        return timing.Competitor(draw, fresh, wait, **more)
