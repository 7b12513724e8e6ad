"""Processes joined by `jax.distributed` draw the shards of one array without communication."""

import json
import os
import re
import socket
import subprocess
import sys

import jax
import numpy as np
import pytest

import jax_von_mises
from tests import children

PROGRAM = """
import json, sys
import jax, numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec as P
from jax_von_mises import sample_shard, sample_von_mises

port, process = sys.argv[1], int(sys.argv[2])
jax.config.update("jax_num_cpu_devices", 2)
jax.distributed.initialize(f"127.0.0.1:{port}", 2, process, cluster_detection_method="deactivate")
assert jax.process_count() == 2 and jax.device_count() == 4 and len(jax.local_devices()) == 2
key, loc = jax.random.key(3), np.linspace(-3, 3, 8, dtype=np.float32)
results = {}

def record(name, draw):
    text = jax.jit(draw).lower(key).compile().as_text()
    array = draw(key)
    assert not array.is_fully_addressable
    shards = [([[s.start, s.stop] for s in shard.index], np.asarray(shard.data).tolist())
              for shard in array.addressable_shards]
    results[name] = {"text": text, "shards": shards}

for kind in (AxisType.Auto, AxisType.Explicit):
    mesh = jax.make_mesh((2, 2), ("x", "y"), axis_types=(kind, kind))
    with jax.set_mesh(mesh):
        for name, spec in (("rows", P(("x", "y"))), ("columns", P(None, ("x", "y"))), ("both", P("x", "y"))):
            sharding = NamedSharding(mesh, spec)
            record(f"{kind.name} {name}",
                 lambda key: sample_von_mises(key, loc, 4.0, (12, 8), method="direct", out_sharding=sharding))
        record(f"{kind.name} table",
             lambda key: sample_von_mises(key, 0.5, 4.0, (12, 8), method="table",
                                          out_sharding=NamedSharding(mesh, P(("x", "y")))))
mesh = jax.make_mesh((4,), ("x",), axis_types=(AxisType.Auto,))
record("shard_map", jax.shard_map(lambda key: sample_shard(key, loc, 4.0, (3, 8), "x", method="direct"),
                                mesh=mesh, in_specs=P(), out_specs=P("x")))
sharding = NamedSharding(mesh, P("x"))
mean = jax.jit(lambda key: sample_von_mises(key, 0.5, 4.0, (12,), out_sharding=sharding).mean())
results["mean"] = mean.lower(key).compile().as_text()
with open(sys.argv[3], "w") as file:
    json.dump(results, file)
jax.distributed.shutdown()
"""

COLLECTIVE = re.compile(r"\b(all-|reduce-scatter|collective-|send|recv)[\w-]*\(")


@pytest.fixture(scope="module")
def reports(tmp_path_factory):
    """Return the draws of two processes with two devices each."""
    folder = tmp_path_factory.mktemp("processes")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    without_proxy = {name: None for name in os.environ if name.lower().endswith("_proxy")}
    environment = children.environment(JAX_PLATFORMS="cpu", **without_proxy)
    pipes = dict(env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    names = [folder / f"{process}.json" for process in range(2)]
    command = [sys.executable, "-W", "error", "-c", PROGRAM, port]
    both = [subprocess.Popen([*command, str(i), str(name)], **pipes) for i, name in enumerate(names)]
    try:
        outputs = [process.communicate(timeout=180)[0] for process in both]
    finally:
        for process in both:
            process.kill()
            process.wait()
    assert [process.returncode for process in both] == [0, 0], "\n".join(outputs)
    return [json.loads(name.read_text()) for name in names]


CASES = [f"{kind} {name}" for kind in ("Auto", "Explicit") for name in ("rows", "columns", "both", "table")]


@pytest.mark.slow
@pytest.mark.parametrize("name", [*CASES, "shard_map"])
def test_each_process_draws_its_shards(reports, name):
    """The shards equal the array of a single process bit for bit, without overlap, and no program communicates."""
    key, loc = jax.random.key(3), np.linspace(-3, 3, 8, dtype=np.float32)
    if "table" in name:
        expected = jax_von_mises.sample_von_mises(key, 0.5, 4.0, (12, 8), method="table")
    else:
        expected = jax_von_mises.sample_von_mises(key, loc, 4.0, (12, 8), method="direct")
    assembled = np.full((12, 8), np.nan, np.float32)
    for process in reports:
        assert len(process[name]["shards"]) == 2
        for index, data in process[name]["shards"]:
            box = tuple(slice(*bounds) for bounds in index)
            assert np.isnan(assembled[box]).all()
            assembled[box] = data
        assert not COLLECTIVE.search(process[name]["text"])
        assert COLLECTIVE.search(process["mean"])  # the control: communication would appear in this form
    np.testing.assert_array_equal(assembled, np.asarray(expected))
