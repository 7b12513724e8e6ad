"""The command line: draws, counts, keeps what was counted, and says what it means."""

import argparse
import io
import json
import signal
import sys
import time
import zipfile

import numpy as np

from benchmarks import environment
from benchmarks.exactness import pictures, plan, report, verdicts
from benchmarks.files import new_file, rounded, whole_file, write_json, write_text
from benchmarks.text import environment_text
from jax_von_mises.sampling import counter
from jax_von_mises.streams import safe_files

__all__ = ["main"]

FORMAT = 2  # of the result file, and of the state
SAVE_SECONDS = 30.0
SEED = 20261121
# Bytes that no array of a state reaches, and no state, and arrays in it; one of all laws has 2^23 bytes in 200.
LARGEST, WHOLE, MEMBERS = 2**24, 2**25, 2_000
ABOUT = "about.npy"  # tells of which run a state is


def whole(text):
    """Read a number of angles, which may be written as 1e10."""
    value = float(text)
    if not (value >= 1 and value == int(value)):
        raise argparse.ArgumentTypeError(f"{text} is not a whole number of at least 1")
    return int(value)


def parser():
    """Make the command line."""
    from benchmarks.exactness.damage import DAMAGES

    made = argparse.ArgumentParser(
        prog="python -m benchmarks.exactness", description="Whether the angles follow the law."
    )
    made.add_argument("--quick", action="store_true", help=f"{plan.QUICK:,} angles, under a minute on two cores")
    made.add_argument("--angles", type=whole, help="how many; 1e10 on a CPU and 1e12 on a GPU if not told")
    made.add_argument("--seed", type=int, default=SEED, help="of the key; %(default)s")
    told = "look up the angle of some tail probabilities or of every one; some with --quick, else every"
    made.add_argument("--words", choices=plan.WORDS, help=told)
    told = "keep what is counted in this file, and go on with what is there"
    made.add_argument("--state", metavar="FILE", type=new_file, help=told)
    made.add_argument("--json", metavar="FILE", type=new_file, help="write the verdicts and what the pictures need")
    made.add_argument("--report", metavar="FILE", type=new_file, help="write a page of HTML with pictures")
    names = ", ".join(f"{name!r}" for name in DAMAGES)
    told = f"test a sampler that is damaged instead, which must be reported: {names}, or all"
    made.add_argument("--damage", choices=[*DAMAGES, "all"], metavar="NAME", help=told)
    return made


class State:
    """Sums of all laws, in memory and, where a file is given, on the disk."""

    def __init__(self, path, about):
        self.path, self.about = path, about
        self.sums = {}
        self.saved = time.monotonic()
        if path is not None and path.exists():
            self.load()

    def load(self):
        """Go on with the file; ValueError where it is none, or of another run."""
        try:
            about, found = self.read()
        except Exception as error:  # zipfile, NumPy and their decompressors each have their own
            raise ValueError(f"--state {self.path} is no state of this program: {error}. Name another file.") from error
        if about != self.about:
            differs = [name for name in self.about if about.get(name) != self.about[name]]
            raise ValueError(
                f"--state {self.path} is of another run: {', '.join(differs)} differ. Name another file, or give the "
                "options that it was begun with."
            )
        for name, value in found.items():
            law, _, field = name.rpartition("/")
            self.sums.setdefault(law, {})[field] = value if value.ndim else value.item()

    def read(self):
        """What the file says of its run, and its arrays by name if it is this run."""
        content = safe_files.read_plain(self.path, WHOLE)
        # Before zipfile lists them: it makes half a kilobyte of each.
        if content.count(b"PK\1\2") > MEMBERS:
            raise ValueError(f"it has more than {MEMBERS} arrays")
        with zipfile.ZipFile(io.BytesIO(content)) as file:

            def array(name):
                return safe_files.read_npy(io.BytesIO(safe_files.read_member(file, name, LARGEST)))

            about = json.loads(str(array(ABOUT)))
            if not isinstance(about, dict):
                raise ValueError("it does not say of which run it is")
            if about != self.about:
                return about, {}
            size = sum(each.file_size for each in file.infolist())
            if size > WHOLE:  # what others have packed may be far more than the file
                raise ValueError(f"it unpacks to {size} bytes, and may to {WHOLE}")
            return about, {name.removesuffix(".npy"): array(name) for name in file.namelist() if name != ABOUT}

    def add(self, law, counts):
        """Add the counts of a block."""
        if law not in self.sums:
            self.sums[law] = dict(counts)
            return
        kept = self.sums[law]
        for name, value in counts.items():
            kept[name] = kept[name] + value

    def save(self, now=False):
        """Write the file, whole or not at all, if the last time is long enough ago."""
        if self.path is None or not (now or time.monotonic() - self.saved > SAVE_SECONDS):
            return
        arrays = {f"{law}/{name}": value for law, sums in self.sums.items() for name, value in sums.items()}
        with whole_file(self.path, "wb", permissions=0o600) as file:
            np.savez(file, about=np.array(json.dumps(self.about)), **arrays)
        self.saved = time.monotonic()


def sampler(law):
    """Ours, for blocks: ``draw(key, k, start, count)``."""
    import jax.numpy as jnp

    import jax_von_mises as jvm

    def draw(key, k, start, count):
        return jvm.sample_block(key, jnp.float32(0), k, start, (count,), law.dtype, method=law.method)

    return draw


def count(law, blocks, draw, keys, state, say):
    """Draw and count the blocks of a law that the state lacks; returns what is expected of them."""
    import jax

    from benchmarks.exactness import counting
    from benchmarks.exactness import law as expectation

    k = float(np.float32(law.concentration))
    expected = expectation.expect(k, law.dtype, plan.BINS)
    tails = expectation.thresholds(k) if law.dtype == "float32" else expectation.NO_TAILS
    mean = expectation.moments(k, (1,), law.dtype)["versine"][0, 0]
    if law.name in state.sums:
        try:
            counting.must_fit(state.sums[law.name], len(expected.mass), len(tails.mass))
        except ValueError as error:
            raise ValueError(f"--state {state.path} is damaged: {error}. Name another file.") from error
    done = state.sums.get(law.name, {}).get("angles", 0) // plan.BLOCK
    start = time.perf_counter()
    at_once = counting.AT_ONCE.get(jax.default_backend(), 1)

    def one(number, _):
        x, other = (draw(key, np.float32(k), counter.halves(number * plan.BLOCK), plan.BLOCK) for key in keys)
        return counting.block_counts(x, other, expected, tails.places, k, mean)

    with jax.enable_x64(law.dtype == "float64"):
        many = (draw, keys, expected, tails.places, k, mean, plan.BLOCK)
        counts = one if at_once == 1 else counting.many_blocks(*many)
        for block in range(done, blocks, at_once):
            state.add(law.name, counts(block, min(at_once, blocks - block)))
            state.save()
    seconds = time.perf_counter() - start
    new = (blocks - done) * plan.BLOCK
    rate = f"{new / seconds / 1e6:.0f} million a second" if new else "all from the state"
    say(f"  {law.name}: {blocks * plan.BLOCK:,} angles, {rate}", flush=True)
    return expected, tails, k


def streams(key, law):
    """Two keys for a law, whose streams are compared: one of its own, and what `split` makes of it."""
    import jax

    from jax_von_mises import derive_key

    mine = derive_key(key, law.name)
    return mine, jax.random.split(mine)[0]


def judge(laws, draws, key, blocks, state, say=print):
    """Count and judge all laws; returns rows of law and verdict, and what the pictures need of each law."""
    rows, shown = [], {}
    for law in laws:
        expected, tails, k = count(law, blocks[law], draws(law), streams(key, law), state, say)
        sums = state.sums[law.name]
        rows += [(law, verdict) for verdict in verdicts.of_law(sums, expected, tails, k, law.dtype)]
        shown[law.name] = pictures.summary(sums, expected, tails)
    return rows, shown


def check_stream(draw, key, k):
    """The verdict on the stream of one law."""
    import jax

    from benchmarks.exactness import stream

    data = [int(each) for each in jax.random.key_data(key)]
    k = np.float32(k)
    return stream.check(lambda start, count: draw(key, k, counter.halves(start), count), data, float(k))


def look_up(law, number, state, say):
    """Compare the angles of chunks of all tail probabilities with their quantiles, as far as the state lacks them."""
    from benchmarks.exactness import every_word

    name = f"{law.name}, words"
    kept = dict(state.sums.get(name, {}))
    done = kept.pop("done", 0)
    chosen = every_word.chunks(number)
    if done or kept:
        fields = dict.fromkeys(every_word.Worst._fields, (every_word.OCTAVES,))
        if {field: np.shape(value) for field, value in kept.items()} != fields or done not in range(len(chosen) + 1):
            raise ValueError(f"--state {state.path} is damaged: what it says of {name} is not of this program.")
    start = time.perf_counter()

    def said(chunk, worst):
        state.sums[name] = {"done": int(np.searchsorted(chosen, chunk)) + 1, **worst._asdict()}
        state.save()

    worst = every_word.Worst(**kept) if done else None
    worst = every_word.check(float(np.float32(law.concentration)), law.method, chosen[done:], worst, said)
    new = (len(chosen) - done) * every_word.CHUNK
    rate = f"{new / (time.perf_counter() - start) / 1e6:.0f} million a second" if new else "all from the state"
    say(f"  {law.name}: {len(chosen) * every_word.CHUNK:,} tail probabilities, {rate}", flush=True)
    return worst, every_word.verdict(worst, len(chosen))


def about(given):
    """What a state must agree with to be gone on with."""
    words = plan.WORDS[given.words or ("some" if given.quick else "every")]
    return {"format": FORMAT, "seed": given.seed, "block": plan.BLOCK, "bins": plan.BINS, "chunks": words}


def run(given, say=print, laws=None):
    """Draw, count and judge; returns rows of law and verdict, what the pictures need, and how many were drawn.

    `laws` are those of the plan if not told; their weights share the angles.
    """
    import jax

    laws = plan.LAWS if laws is None else laws

    platform = jax.default_backend()
    angles = given.angles or (plan.QUICK if given.quick else plan.FULL.get(platform, plan.FULL["cpu"]))
    blocks = plan.shares(angles, laws)
    identity = about(given)
    state = State(given.state, identity)
    key = jax.random.key(given.seed)
    try:
        rows, shown = judge(laws, sampler, key, blocks, state, say)
        for law in laws:
            if law.dtype == "float32":
                rows.append((law, check_stream(sampler(law), streams(key, law)[0], law.concentration)))
                worst, verdict = look_up(law, identity["chunks"], state, say)
                rows.append((law, verdict))
                shown[law.name]["worst"] = {name: each.tolist() for name, each in worst._asdict().items()}
    finally:
        state.save(now=True)
    return rows, shown, sum(blocks.values()) * plan.BLOCK


def main(arguments=None):
    """Run; returns 0 if nothing is reported, 1 if something is, 2 for a state that does not fit, 130 if interrupted."""
    given = parser().parse_args(arguments)
    start = time.perf_counter()
    found = environment.describe()
    print(environment_text(found))
    if given.damage:
        return damaged(given)
    try:
        rows, shown, drawn = run(given)
    except ValueError as error:
        print(error, file=sys.stderr)
        return 2
    except KeyboardInterrupt:
        kept = f"; go on with --state {given.state}" if given.state else "; with --state it could be gone on with"
        print(f"\ninterrupted{kept}", file=sys.stderr)
        return 128 + signal.SIGINT
    reported = verdicts.alarms([verdict for _, verdict in rows])
    result = {
        "format": FORMAT,
        "program": "exactness",
        "environment": found,
        "options": {"mode": "quick" if given.quick else "full", "rounds": 1, "seed": given.seed},
        "angles": drawn,
        "seconds": time.perf_counter() - start,
        "false_alarm": verdicts.FALSE_ALARM,
        "reported": len(reported),
        "verdicts": [{"law": law.name, **verdict._asdict()} for law, verdict in rows],
        "laws": shown,
    }
    result = rounded(result)
    print(f"\n{report.told(result)}\n")
    for law, verdict in rows:
        if verdict in reported:
            print(f"REPORTED: {law.name}, {verdict.test}: {verdict.found} (p < {verdict.p:.1e})")
    print(report.sentence(result))
    if given.json is not None:
        write_json(given.json, result)
        print(f"written to {given.json}")
    if given.report is not None:
        write_text(given.report, report.page(result, pictures.svg(result)))
        print(f"written to {given.report}")
    return 1 if reported else 0


def damaged(given):
    """Test damaged samplers; 0 if each was reported."""
    import jax

    from benchmarks.exactness.damage import DAMAGES

    angles = given.angles or plan.QUICK
    key = jax.random.key(given.seed)
    passed = []
    for name in DAMAGES if given.damage == "all" else [given.damage]:
        damage = DAMAGES[name]
        law = plan.Law(5.0 if damage.concentration is None else damage.concentration)
        state = State(None, {})
        try:
            draw = jax.jit(damage.draw, static_argnums=3)
            draws = lambda law, draw=draw: draw  # noqa: E731
            rows, _ = judge([law], draws, key, plan.shares(angles, [law]), state)
        except ImportError as error:
            print(f"{name}: {damage.about}: not tested, {error}")
            continue
        rows.append((law, check_stream(draw, streams(key, law)[0], law.concentration)))
        reported = verdicts.alarms([verdict for _, verdict in rows])
        print(f"{name}: {damage.about}: " + ("; ".join(each.test for each in reported) or "NOT REPORTED"), flush=True)
        if not reported:
            passed.append(name)
    if passed:
        print(f"\nNOT REPORTED: {', '.join(passed)}")
    return 1 if passed else 0


if __name__ == "__main__":
    sys.exit(main())
