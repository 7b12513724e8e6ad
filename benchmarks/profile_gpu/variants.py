"""The same draws in other dtypes, with other keys, on more devices."""

import json
import math
import os
import subprocess
import sys
from pathlib import Path

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

import jax_von_mises as jvm
from benchmarks import timing
from benchmarks.profile_gpu import exactness, measuring
from benchmarks.profile_gpu.roofline import keys
from benchmarks.profile_gpu.sizes import sampler

__all__ = ["devices", "key_implementations", "precision", "sharded"]

ROOT = Path(__file__).parents[2]
USUAL = "threefry2x32"
CHILD_SECONDS = 300


def entry(label, count, draw, fresh=keys):
    """An entry that draws."""
    return measuring.Entry(label, count, timing.Competitor(draw, fresh, jax.block_until_ready))


def precision(plan):
    """Each dtype: its speed, and what is left of the law after rounding."""
    names = [name for name in plan.dtypes if name != "float64" or jax.config.jax_enable_x64]
    results = measuring.race(
        {name: entry(name, plan.count, sampler(plan, plan.count, dtype=name)) for name in names}, plan.rounds
    )
    for name, result in results.items():
        result["itemsize"] = jax.numpy.dtype(name).itemsize
        result["compare"] = measuring.against(result, results[names[0]])
    losses = [
        exactness.rounded(name, concentration, plan.draws) for name in names for concentration in exactness.ROUNDED
    ]
    missing = {} if "float64" in names else {"float64": "needs JAX_ENABLE_X64=1"}
    return {"count": plan.count, "results": results, "losses": losses, "draws": plan.draws, "missing": missing}


def key_implementations(plan):
    """Each implementation of keys, with the table route, where the words are most of the work."""
    entries, missing = {}, {}
    for name in plan.keys:
        try:
            root = jax.random.key(1, impl=name)
        except (ValueError, TypeError) as error:
            missing[name] = measuring.failure(error)
            continue
        ready = [jax.block_until_ready(jax.random.fold_in(root, i)) for i in range(8)]
        entries[name] = entry(name, plan.count, sampler(plan, plan.count), lambda i, ready=ready: ready[i % 8])
    results = measuring.race(entries, plan.rounds)
    usual = results.get(USUAL)
    for result in results.values():
        result["compare"] = measuring.against(result, usual)
    return {"count": plan.count, "results": results, "usual": USUAL, "missing": missing}


def sharded(plan, found):
    """One result over the first 1, 2, ... of the devices `found`."""
    numbers = [n for n in range(1, len(found) + 1) if n == len(found) or n & (n - 1) == 0]
    # The same work for each number, in equal parts.
    step = math.lcm(*numbers)
    count = plan.count // step * step
    law = np.float32(0), np.float32(plan.concentration)
    entries = {}
    for number in numbers:
        sharding = NamedSharding(Mesh(np.array(found[:number]), ("devices",)), PartitionSpec("devices"))

        def draw(key, sharding=sharding):
            return jvm.sample_von_mises(key, *law, (count,), out_sharding=sharding)

        entries[str(number)] = entry(f"{number} device" + "s" * (number > 1), count, draw)
    results = measuring.race(entries, plan.rounds)
    for result in results.values():
        result["compare"] = measuring.against(result, results["1"])
    return results


def virtual(plan):
    """`sharded` in a child process, whose CPU counts as several devices."""
    order = json.dumps({**plan._asdict(), "folder": ""})
    environment = os.environ | {
        "JAX_PLATFORMS": "cpu",
        "JAX_NUM_CPU_DEVICES": str(plan.virtual_devices),
        "PYTHONPATH": os.pathsep.join(filter(None, sys.path)),
    }
    command = [sys.executable, "-m", "benchmarks.profile_gpu", "--child", order]
    process = subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    with process:
        try:
            out, err = process.communicate(timeout=CHILD_SECONDS)
        except BaseException:  # an interrupt, or its time is up
            process.kill()
            raise
    if process.returncode:
        raise RuntimeError(f"the process with several devices failed: {(err.strip().splitlines() or ['?'])[-1]}")
    return json.loads(out.splitlines()[-1])


def devices(plan):
    """One result over 1, 2, ... devices; over virtual ones in a child process where there is a single CPU."""
    found = jax.local_devices()
    cpu = found[0].platform == "cpu"
    child = cpu and len(found) == 1 and plan.virtual_devices > 1
    results = virtual(plan) if child else sharded(plan, found)
    # Devices of one CPU share its cores.
    return {"count": plan.count, "results": results, "child": child, "shared": cpu, "kind": found[0].device_kind}
