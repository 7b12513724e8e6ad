"""What the numbers mean, in words, each with what to do. Every word is decided by the data.

Nothing is said of what was too noisy, but that it was.
"""

from typing import NamedTuple

from benchmarks.profile_gpu import measuring, sizes
from benchmarks.text import time_text
from jax_von_mises.streams.checkpoint import readable

__all__ = ["Finding", "of_section"]

# The best rates of a roofline that are called near it, and far from it.
NEAR, FAR = 0.6, 0.3
UNLIKELY = 1e-6  # a fit that is worse than chance allows in so many runs
ERRORS = 5.0  # standard errors
REMADE = 1.5  # times the integer operations of the words, from where they must be made more than once
RESOURCES = {
    "bytes": "memory traffic",
    "floats": "floating-point arithmetic",
    "integers": "integer arithmetic",
}
AGAIN = "Run it again on a machine that does nothing else, without --quick."


class Finding(NamedTuple):
    """A sentence that follows from the data; its `kind` is "good", "act", "note" or "noisy"."""

    kind: str
    text: str
    todo: str = ""
    # It is about copies, cores or units that are different on a GPU.
    device_bound: bool = False


def of_section(name, data):
    """The findings of one section; what failed is one."""
    if "error" in data:
        return [Finding("act", f"Failed: {data['error']}", hint(data["error"]))]
    found = [finding for finding in SECTIONS[name](data) if finding is not None]
    unclear = [finding.text for finding in found if finding.kind == "noisy"]
    clear = [finding for finding in found if finding.kind != "noisy"]
    return clear + [Finding("noisy", f"{'; '.join(unclear)}: too noisy to say.", AGAIN)] * bool(unclear)


def hint(error):
    """What may help against an error."""
    if "RESOURCE_EXHAUSTED" in error or "MemoryError" in error or "out of memory" in error.lower():
        return "Memory ran out: run with --quick, end other programs on the device, or leave this section out."
    if error.startswith(("ImportError", "ModuleNotFoundError")):
        return 'Install what is missing: pip install -e ".[bench]" in the clone.'
    return "The other sections are not concerned. Run this one alone with --sections to see it again."


def times(ratio):
    """A ratio for a reader."""
    return f"{ratio:.2f} times" if ratio < 10 else f"{ratio:.0f} times"


def rate(value):
    """A rate of angles for a reader."""
    return f"{value / 1e9:.3g} G/s" if value >= 1e9 else f"{value / 1e6:.3g} M/s"


def noisy(what):
    """The finding that there is none; a section puts all of them into one sentence."""
    return Finding("noisy", what)


def compiling(data):
    """Compiling against running."""
    for row in data["rows"]:
        what = f"{row['count']:,} angles"
        if row["noisy"]:
            yield noisy(what)
            continue
        ratio = row["plain"]["median"] / row["jit"]["median"]
        calls = row["calls_of_compiling"]
        said = f"{what}: compiling takes as long as {calls:,.0f} calls. "
        if row["pays_from"] is None:
            yield Finding("act", f"{said}It never pays: without jit a call takes {ratio:.2f} times as long.", AGAIN)
            continue
        first = row["firsts"]["jit"]["median"] < row["firsts"]["plain"]["median"]
        since = "at the first call already" if row["pays_from"] == 1 else f"from call {row['pays_from']:,} on"
        why = ", because without it JAX compiles every operation for itself" if first else ""
        yield Finding(
            "good",
            f"{said}Against no jit, where a call takes {times(ratio)} as long, it pays {since}{why}.",
            "Keep shapes the same from call to call, and keep what is compiled: initialize_compilation_cache() for "
            "later processes, runtime.warmup() before the first request.",
        )


def roofline(data):
    """How near the ceilings each stage comes."""
    lacking = [RESOURCES[name] for name, ceiling in data["ceilings"].items() if ceiling is None]
    if lacking:
        said = f"No program that measures the ceiling of {', '.join(lacking)} ran, so no stage has a bound."
        yield Finding("act", said, "See the table of the programs that measure ceilings.")
    words = data["stages"].get("words", {})
    for name, stage in data["stages"].items():
        yield of_stage(stage, name.startswith("sample"))
        made = stage.get("integers", 0) / max(1, words.get("integers", 0))
        if words and stage is not words and made > REMADE and "failed" not in stage:
            yield Finding(
                "act",
                f"{capital(stage['label'])}: the program has {times(made)} the integer operations of the words alone: "
                "the compiler makes the words more than once.",
                "Report it with this page: once is enough.",
                True,
            )


def capital(label):
    """A label at the start of a sentence; names of functions stay as they are."""
    return label if label.split()[0] in ("cdf", "icdf", "log_prob") else label[:1].upper() + label[1:]


def of_stage(stage, whole):
    """How near the ceilings one stage comes; of a `whole` sampler that is far from them something is to be done."""
    label = capital(stage["label"])
    if "failed" in stage:
        return Finding("act", f"{label} failed: {stage['failed']}", hint(stage["failed"]))
    if stage["wide"]:
        return noisy(label)
    share = stage["share"]
    if share is None:
        return None
    by = RESOURCES[stage["bound_by"]]
    said = f"{label}: {share:.0%} of what {by} allows ({rate(stage['rate'])})"
    if share > 1.1:
        return Finding(
            "note",
            f"{said}, more than can be: fewer operations run than the program's text has, as where the compiler shares "
            "work between neighbours, or the ceiling was measured too low.",
            "Take this number for no measure.",
            True,
        )
    if share >= NEAR:
        todo = {
            "integers": "A key whose cipher does less work is the only large gain: see the section on keys.",
            "floats": "Only fewer operations help: the table route, where one concentration serves for many angles.",
            "bytes": "Only fewer bytes help: use the angles in the same jitted function, or draw bfloat16.",
        }[stage["bound_by"]]
        return Finding("good", f"{said}: near its ceiling.", todo, True)
    if share >= FAR:
        return Finding("note", f"{said}.", "", True)
    return Finding(
        "act" if whole else "note",
        f"{said}: something that is not counted binds, such as look-ups or operations that wait for each other.",
        "Look at the trace. If a call is short, more angles a call may help: see the section on that." if whole else "",
        True,
    )


def batch(data):
    """The size of a call."""
    for method, line in data["lines"].items():
        size = data["recommended"][method]
        if size is None:
            yield noisy(f"The best size of a call, {method} route")
            continue
        result = line[data["sizes"].index(size)]
        more = "" if size < data["sizes"][-1] else " The rate still grew at the largest size that was tried."
        smaller = zip(data["sizes"][: data["sizes"].index(size)], line, strict=False)
        unclear = [f"{count:,}" for count, each in smaller if "failed" not in each and each["wide"]]
        hidden = f" Whether {' or '.join(unclear)} would do was too noisy to say." if unclear else ""
        yield Finding(
            "good" if not more else "note",
            f"{method.capitalize()} route: {size:,} angles a call reach {rate(result['rate'])}, at least "
            f"{sizes.ENOUGH:.0%} of the best seen.{more}{hidden}",
            f"Draw at least {size:,} angles a call; more only takes memory."
            if not more
            else "Run without --quick, and draw as many as fit.",
            True,
        )
    yield crossing(data)


def crossing(data):
    """From which size on the table route is the faster one, beside where "auto" takes it."""
    both = list(zip(data["sizes"], data["lines"]["table"], data["lines"]["direct"], strict=True))
    compared = [(size, measuring.against(table, direct)["state"]) for size, table, direct in both]
    ahead = [size for size, state in compared if state == "faster"]
    wrong = [
        size
        for size, state in compared
        if (state == "slower" and size >= data["table_from"]) or (state == "faster" and size < data["table_from"])
    ]
    unclear = [size for size, state in compared if state not in ("faster", "slower", "same")]
    if len(unclear) == len(compared):
        return noisy("Where the table route overtakes the direct one")
    said = f'"auto" takes the table route from {data["table_from"]:,} angles on; here it is the faster one '
    said += f"at {', '.join(f'{size:,}' for size in ahead)}" if ahead else "at no size that was tried"
    said += f"; at {', '.join(f'{size:,}' for size in unclear)} that cannot be told." if unclear else "."
    if wrong:
        where = ", ".join(f"{size:,}" for size in wrong)
        return Finding("act", said, f'Name the method yourself at {where} angles: "auto" takes the slower one there.')
    if unclear:
        return Finding("note", said, 'Leave method="auto": where it could be told, it takes the faster one.')
    return Finding("good", said, 'Leave method="auto".')


def memory(data):
    """Memory of a call."""
    rows = [row for row in data["rows"] if row["output_bytes"]]
    if not rows:
        yield Finding("note", "This backend does not tell the memory of its programs.")
        return
    largest = rows[-1]["count"]
    for row in (row for row in rows if row["count"] == largest):
        share = row["temporary_bytes"] / row["output_bytes"]
        said = f"{row['method'].capitalize()} route, {largest:,} angles: the result takes "
        said += f"{readable(row['output_bytes'])}, and the program {readable(row['temporary_bytes'])} more on the way"
        if share < 0.1:
            yield Finding("good", f"{said}: nothing to speak of.", "A batch may take nearly all memory that is free.")
        else:
            yield Finding(
                "act",
                f"{said}, {share:.0%} of it: the program does not run in one piece.",
                f"Count {1 + share:.1f} times the result for each call; the direct route, or batches, need less."
                if row["method"] == "table"
                else f"Count {1 + share:.1f} times the result for each call, or draw in batches.",
                True,
            )
    if "failed" in data["fits"]:
        yield Finding("act", f"No batch fits: {data['fits']['failed']}", "Free memory on the device.")
        return
    for method, fit in data["fits"].items():
        yield Finding(
            "note",
            f"{method.capitalize()} route: {data['in_flight']} batches of {fit:,} angles fit into what is free now "
            f"({readable(data['device']['free'])} on {data['device']['device']}).",
            "runtime.suggest_batch_size() gives this number for your arguments. Smaller batches can be as fast: "
            "see the section on angles in one call.",
        )


def donation(data):
    """Donation on and off."""
    kept, donated = (data["results"][name] for name in ("kept", "donated"))
    compared = data["compare"]
    places = f"Batches took {donated['buffers']} places in memory with donation, {kept['buffers']} without"
    if compared["state"] in ("noisy", "missing"):
        yield noisy("The speed of donation")
        yield Finding("note", f"{places}.", "", True)
        return
    ratio = compared["ratio"]
    if compared["state"] == "faster":
        yield Finding("good", f"{places}; it draws {times(ratio)} as fast.", "sample_batches(..., donate=True).", True)
    elif compared["state"] == "slower":
        yield Finding("act", f"{places}; it draws only {ratio:.2f} times as fast.", "Leave donate=False.", True)
    else:
        fewer = donated["buffers"] < kept["buffers"]
        todo = "Donate where memory is short; for speed alone it is not worth a rule about which batch is valid."
        yield Finding(
            "note",
            f"{places}; for speed it gains nothing here: {ratio:.2f} times.",
            todo if fewer else "Leave donate=False.",
            True,
        )


def prefetch(data):
    """Prefetch on and off."""
    compared, best = data["compare"], data["best"]
    if best is None or compared["state"] in ("noisy", "missing"):
        yield noisy("Prefetch")
        return
    label = data["results"][best]["label"]
    reached = ""
    if data["bound"]:
        share = data["results"][best]["rate"] / data["bound"]
        reached = f" It reaches {share:.0%} of the slower side alone, which no overlap can beat."
    if compared["state"] == "faster":
        yield Finding(
            "good",
            f"{label} is {times(compared['ratio'])} as fast as sample_batches without it, with a host as busy as the "
            f"device.{reached}",
            f"prefetch_to_host(batches, depth={best.split()[-1]}).",
            True,
        )
    else:
        state = "gains nothing" if compared["state"] == "same" else "loses"
        yield Finding(
            "note",
            f"{label}, the best, {state} here: {compared['ratio']:.2f} times sample_batches without it.{reached}",
            "Loop over sample_batches itself, which draws the next batch while the host works on this one.",
            True,
        )


def transfer(data):
    """Dispatch, compute and copies."""
    if data["shared"]:
        yield Finding(
            "note",
            "Host and device are one memory here: a result is handed over and not copied, so the time to the host is "
            "that of a call of NumPy.",
            "Measure on the GPU before deciding where angles are used.",
            True,
        )
    usable = [row for row in data["rows"] if all(measuring.usable(row[name]) for name in ("dispatch", "compute"))]
    if not usable:
        yield noisy("Dispatch against compute")
    else:
        yield dispatched(usable)
    if data["shared"]:
        return
    row, size = data["rows"][-1], data["sizes"][-1]
    if not all(measuring.usable(row[name]) for name in ("dispatch", "compute", "to_host")):
        yield noisy("Transfer against compute")
        return
    share = row["to_host"]["median"] / (row["compute"]["median"] + row["dispatch"]["median"])
    speed = size * data["item"] / row["to_host"]["median"]
    said = f"{size:,} angles: bringing them to the host takes {times(share)} the time of drawing them "
    said += f"({speed / 1e9:.3g} GB/s)."
    if share > 1:
        yield Finding("act", said, "Use the angles on the device, in the same jitted function; bring results home.")
    else:
        yield Finding("good", said, "prefetch_to_host hides that behind the next draw.")


def dispatched(rows):
    """Which share of a small call is not computing."""
    small = rows[0]
    spent, computed = small["dispatch"]["median"], small["compute"]["median"]
    count = small["dispatch"]["count"]
    share = spent / (spent + computed)
    # A small program may run within the call, on a CPU above all: so this is at most what a call costs.
    said = f"A call of {count:,} angles returns after {time_text(spent)}, when {share:.0%} of its time is over"
    if share > 0.5:
        return Finding(
            "act",
            f"{said}: starting it costs more than waiting for it.",
            "Put small draws inside a jitted function with what uses them, or draw many at once.",
            True,
        )
    return Finding("good", f"{said}: computing is most of it.", "", True)


def precision(data):
    """Speed and loss of each dtype."""
    first = next(iter(data["results"]))
    for name, result in data["results"].items():
        if name == first:
            continue
        losses = [loss for loss in data["losses"] if loss["dtype"] == name]
        fewest = min(losses, key=lambda loss: loss["distinct"])
        lost = f"{fewest['distinct']:,} distinct values in {data['draws']:,} draws at concentration "
        lost += f"{fewest['concentration']:g}, probabilities off by up to {max(loss['step'] for loss in losses):.1e}"
        state, ratio = result["compare"]["state"], result["compare"]["ratio"]
        if state == "missing":
            yield Finding("act", f"{name} failed: {result.get('failed', first + ' failed')}", "")
        elif state == "noisy":
            yield noisy(f"The speed of {name}")
        elif state == "faster":
            yield Finding(
                "good", f"{name}: {times(ratio)} as fast as {first}; {lost}.", "Take it if that is enough.", True
            )
        else:
            word = "no faster" if state == "same" else "slower"
            yield Finding(
                "note",
                f"{name}: {word} than {first} ({ratio:.2f} times); {lost}.",
                f"For speed stay with {first}; take {name} where memory is what counts.",
                True,
            )
    unfair = [loss for loss in data["losses"] if loss["fair"] > loss["noise"]]
    for loss in unfair:
        yield Finding(
            "act",
            f"{loss['dtype']}, concentration {loss['concentration']:g}: values are not drawn as often as the law says "
            f"({loss['fair']:.1e} off, chance allows {loss['noise']:.1e}).",
            "This is a defect: report it with this page.",
        )
    if not unfair:
        names = ", ".join(dict.fromkeys(loss["dtype"] for loss in data["losses"]))
        yield Finding("good", f"Each value of {names} is drawn as often as the law says, within chance.", "")


def keys(data):
    """Speed of the implementations of keys."""
    results, usual = data["results"], data["usual"]
    compared = {name: result["compare"] for name, result in results.items() if name != usual}
    faster = {name: each["ratio"] for name, each in compared.items() if each["state"] == "faster"}
    told = [name for name, each in compared.items() if each["state"] in ("same", "slower")]
    for name, each in compared.items():
        if each["state"] == "missing":
            yield Finding("note", f"{name}: {results[name].get('failed', usual + ' did not run')}", "")
    unclear = [name for name, each in compared.items() if each["state"] == "noisy"]
    if unclear:
        yield noisy(f"{', '.join(unclear)} keys against {usual}")
    if faster:
        best = max(faster, key=faster.get)
        alike = [name for name in faster if measuring.against(results[name], results[best])["state"] == "same"]
        best = alike[0]
        yield Finding(
            "good",
            f"{best} keys draw {times(faster[best])} as fast as {usual}, the usual ones.",
            f"jax.random.key(seed, impl='{best}'), if another stream of words is no matter"
            + ("; one of those that were too noisy may be faster still." if unclear else "."),
            True,
        )
    elif told:
        if unclear:
            yield Finding("note", f"No faster than {usual} here: {', '.join(told)}.", "", True)
        else:
            yield Finding("good", f"No kind of key is faster than {usual} here.", "Stay with the usual keys.", True)


def devices(data):
    """Several devices."""
    results = {int(name): result for name, result in data["results"].items()}
    most = max(results)
    if data["shared"]:
        how = "made by a child process out of one CPU" if data["child"] else "of one CPU"
        yield Finding("note", f"The devices are {how}: they share its cores, so they cannot scale.", "", True)
    if most == 1:
        yield Finding("note", "There is one device.", "Nothing to share out.")
        return
    compared = results[most]["compare"]
    if compared["state"] == "noisy":
        yield noisy(f"{most} devices against one")
    elif compared["state"] == "missing":
        yield Finding("act", f"{most} devices failed: {results[most].get('failed', 'so did one')}", "")
    else:
        efficiency = compared["ratio"] / most
        said = f"{most} devices draw {compared['ratio']:.2f} times as fast as one ({efficiency:.0%} of {most} times)."
        if efficiency >= 0.8:
            yield Finding("good", said, "out_sharding= shares a draw out without communication.", True)
        else:
            todo = "Draw more angles a call: each device gets its share of them." if not data["shared"] else ""
            yield Finding("note" if data["shared"] else "act", said, todo, True)


def trace(data):
    """Where a trace lies, and what it shows."""
    where = f"The folder {data['folder']} beside this page holds a trace of {data['calls']} calls."
    how = f"TensorBoard with XProf: pip install xprof; xprof --logdir {data['folder']}."
    if data["perfetto"]:
        how += f" Perfetto: open {data['perfetto']} at ui.perfetto.dev, which reads it in the browser."
    yield Finding("note", where, how)
    if not data["longest"]:
        yield Finding("note", "The trace names no operation of XLA, so it cannot be summed up here.", "Open it.")
        return
    first = data["longest"][0]
    share = first["seconds"] / data["traced_seconds"]
    yield Finding(
        "good" if share > 0.5 else "note",
        f"{data['operations']} operations take {time_text(data['traced_seconds'])} in all; the longest, "
        f"{first['operation']}, {share:.0%} of it.",
        "It is one fused program, as it should be." if share > 0.5 else "Open the trace to see what runs between them.",
    )


def log(data):
    """What was compiled when."""
    programs = data["programs"]
    if not any(programs.values()):
        yield Finding(
            "act", "JAX's log names no compiled program: its wording may have changed.", "Read the log itself."
        )
        return
    for step in ("the same again", "another key", "another concentration"):
        again = programs.get(step, [])
        if again:
            names = ", ".join(each["program"] for each in again)
            yield Finding("act", f"For {step} JAX compiled again: {names}.", "Report this: it should compile nothing.")
    if not any(programs.get(step) for step in ("the same again", "another key", "another concentration")):
        yield Finding("good", "Another key and another concentration compile nothing.", "")
    seconds = sum(each["seconds"] for each in programs.get("another size", []))
    if seconds:
        yield Finding(
            "note",
            f"Another size is another program: {time_text(seconds)} for XLA alone.",
            "Draw sizes that repeat, and cut: element i does not depend on the size.",
        )


def accuracy(data):
    """Shape, tails and distinct values, ours and the peers'."""
    labels, ours = data["labels"], data["ours"]
    for peer, reason in data["missing"].items():
        yield Finding("note", f"{labels[peer]} was not compared: {reason}")
    for peer, label in labels.items():
        shapes = [shape for shape in data["shapes"] if shape["peer"] == peer]
        tails = [tail for tail in data["drawn_tails"] if tail["peer"] == peer]
        if not shapes and not tails:
            continue
        wrong = [f"{shape['concentration']:g}" for shape in shapes if shape["p_value"] < UNLIKELY]
        off = [f"{tail['concentration']:g}" for tail in tails if tail["worst"] > ERRORS]
        yield of_peer(label, peer == ours, wrong, off, data["draws"])
    yield from promise(data)
    yield from distinct(data)


def of_peer(label, mine, wrong, off, draws):
    """Whether the draws of a peer follow the law."""
    if not wrong and not off:
        return Finding("good", f"{label}: {draws:,} draws agree with the law in shape and tails.", "")
    parts = []
    if wrong:
        parts.append(f"shape at concentration {', '.join(wrong)}")
    if off:
        parts.append(f"tails at concentration {', '.join(off)}")
    said = f"{label}: {draws:,} draws do not follow the law: {' and '.join(parts)}."
    todo = "This is a defect: report it with this page." if mine else "Do not take it there."
    return Finding("act" if mine else "note", said, todo)


def promise(data):
    """Our angles against their promise."""
    worst = max(data["exact_tails"], key=lambda tail: tail["worst"], default=None)
    if worst is None:
        return
    said = "Tail probability of our angles, from 1/2 down to 2^-33: at worst "
    said += f"{worst['worst']:.0%} of the promised error (concentration {worst['concentration']:g}, {worst['method']})."
    if worst["worst"] <= 1:
        yield Finding("good", said, "")
    else:
        yield Finding("act", said, "This is a defect: report it with this page.")


def distinct(data):
    """Distinct values at a large concentration, beside the speed."""
    counts = {row["peer"]: row for row in data["distinct"]}
    mine = counts.get(data["ours"])
    if mine is None:
        return
    exact = {peer: row for peer, row in counts.items() if row["distinct"] >= 0.5 * mine["distinct"]}
    coarse = {peer: row for peer, row in counts.items() if peer not in exact}
    for peer, row in coarse.items():
        values = f"{row['distinct']:,} distinct value" + "s" * (row["distinct"] != 1)
        yield Finding(
            "note",
            f"{data['labels'][peer]}: {values} in {row['draws']:,} draws at concentration {row['concentration']:g}; "
            f"ours {mine['distinct']:,}.",
            "It rounds through arccos or the like: do not take it for large concentrations.",
        )
    yield from faster(data)


def faster(data):
    """Our speed against the peers'."""
    speed, ours = data["speed"], data["ours"]
    if ours not in speed:
        return
    unclear = []
    for peer, result in speed.items():
        if peer == ours:
            continue
        compared = measuring.against(speed[ours], result)
        if compared["state"] == "noisy":
            unclear.append(data["labels"][peer])
        elif compared["state"] == "missing":
            yield Finding("note", f"{data['labels'][peer]}: {result.get('failed', 'ours failed')}")
        else:
            ratio, kind = compared["ratio"], "good" if compared["state"] != "slower" else "note"
            yield Finding(kind, f"Ours has {times(ratio)} the rate of {data['labels'][peer]}.", "", True)
    if unclear:
        yield noisy(f"Our speed against {', '.join(unclear)}")


SECTIONS = {
    "compile": compiling,
    "roofline": roofline,
    "batch": batch,
    "memory": memory,
    "donation": donation,
    "prefetch": prefetch,
    "transfer": transfer,
    "precision": precision,
    "keys": keys,
    "devices": devices,
    "trace": trace,
    "log": log,
    "accuracy": accuracy,
}
