"""Read and join XLA's flags, and try them on the installed jaxlib before they can end a process.

XLA reads ``XLA_FLAGS`` when JAX starts. A flag that it does not know, or a value that it cannot read, ends the process
at once, without an exception, and each release knows other flags. `refused` therefore lets a child process read them.
"""

import os
import re
from typing import NamedTuple

from jax_von_mises.runtime import child

# Lets XLA read its flags, by compiling the smallest of programs.
START = "import jax; jax.block_until_ready(jax.jit(lambda: 0.0)())"

# One flag as XLA splits them: a value may be quoted as a whole.
WORD = re.compile(r"""--([^\s=]+)(?:(=)("[^"]*"|'[^']*'|\S*))?|(\S+)""")


class Refused(NamedTuple):
    """A flag that the installed jaxlib does not take, and why."""

    flag: str
    reason: str


class Advice(NamedTuple):
    """How bad it is to set a flag to anything but the values that are `fine`, and what to do."""

    level: str
    text: str
    fine: tuple[str, ...] = ()


GONE, HARMFUL, USELESS = "problem", "warning", "note"
OFF = ("false", "0")
ON = ("true", "1", "")

FAST_MIN_MAX = Advice(HARMFUL, "lets XLA lose NaN, which marks bad arguments; leave it out", OFF)
PRODUCTS = Advice(USELESS, "concerns products of matrices, of which the sampler has none; leave it out")

# Flags that guides recommend and that are wrong, as trials on jaxlib 0.10 to 0.12 showed.
ADVICE = {
    "xla_gpu_autotune": Advice(GONE, "does not exist; the nearest is --xla_gpu_autotune_level=0 to 4"),
    "xla_gpu_platform_id": Advice(GONE, "does not exist; take CUDA_VISIBLE_DEVICES or JAX_PLATFORMS=cuda"),
    "xla_gpu_fuse_operations": Advice(GONE, "does not exist; XLA always fuses"),
    "xla_gpu_enable_priority_fusion": Advice(GONE, "does not exist any more; it is how XLA fuses"),
    "xla_gpu_kernel_lazy_compilation_threshold": Advice(GONE, "does not exist; leave it out"),
    "xla_gpu_enable_cudnn_frontend": Advice(GONE, "does not exist any more; leave it out"),
    "xla_gpu_enable_async_collectives": Advice(GONE, "does not exist any more; collectives are asynchronous"),
    "xla_gpu_enable_pipelined_collectives": Advice(
        GONE, "does not exist; --xla_gpu_enable_pipelined_all_reduce and its like do"
    ),
    "xla_gpu_enable_llvm_module_compilation_parallelism": Advice(GONE, "only up to jaxlib 0.10; leave it out"),
    "xla_gpu_enable_fast_min_max": FAST_MIN_MAX,
    "xla_cpu_enable_fast_min_max": FAST_MIN_MAX,
    "xla_cpu_enable_fast_math": Advice(HARMFUL, "changes the last digits of angles, so streams too; leave it out", OFF),
    "xla_cpu_fast_math_honor_nans": Advice(
        HARMFUL, "where it is false, bad concentrations give plausible angles instead of NaN; leave it out", ON
    ),
    "xla_cpu_fast_math_honor_infs": Advice(
        HARMFUL, "where it is false, an infinite concentration gives garbage; leave it out", ON
    ),
    "xla_gpu_cuda_data_dir": Advice(USELESS, "not needed with CUDA from pip; leave it out"),
    "xla_gpu_triton_gemm_any": PRODUCTS,
    "xla_gpu_autotune_level": PRODUCTS,
    "xla_gpu_force_compilation_parallelism": Advice(
        USELESS, "changes the time to compile alone; leave it out if that does not matter"
    ),
    "xla_gpu_enable_latency_hiding_scheduler": Advice(
        USELESS, "hides communication between devices, of which the sampler has none; leave it out unless you have some"
    ),
}


class Flag(NamedTuple):
    """A flag in ``XLA_FLAGS``; its value is None if it has none, which is not the empty one."""

    name: str
    value: str | None

    def __str__(self):
        if self.value is None:
            return f"--{self.name}"
        if not re.search(r"""[\s"']""", self.value):
            return f"--{self.name}={self.value}"
        quote = "'" if '"' in self.value else '"'
        return f"--{self.name}={quote}{self.value}{quote}"


def advice(flag):
    """Return the `Advice` on setting a `Flag` so, or None."""
    found = ADVICE.get(flag.name)
    return None if found is None or (flag.value or "").lower() in found.fine else found


def parse(text, strict=False):
    """Return the flags in `text`, as ``XLA_FLAGS`` has them, or in the file that it names, in order.

    XLA ignores other words; `strict` refuses them.
    """
    text = text.strip()
    if text and not text.startswith("--"):
        with open(text, encoding="utf-8") as file:
            text = file.read()
    found = []
    for name, equals, value, other in WORD.findall(text):
        if name:
            value = value[1:-1] if value[:1] in ("'", '"') else value
            found.append(Flag(name, value if equals else None))
        elif strict:
            raise ValueError(f"{other!r} is not a flag; write --name=value")
    return found


def join(flags):
    """Return the text for ``XLA_FLAGS``."""
    return " ".join(map(str, flags))


def current():
    """Return the flags in the environment of this process."""
    return parse(os.environ.get("XLA_FLAGS", ""))


def refusals(words):
    """Return the flags that XLA refused, by the last words of a child: all the unknown ones, or one bad value."""
    unknown = re.search(r"Unknown flags? in XLA_FLAGS: (.*)", words)
    if unknown:
        names = dict.fromkeys(name for name, *_ in WORD.findall(unknown[1]))
        return [Refused(name, "the installed jaxlib does not know it") for name in names]
    bad = re.search(r"Couldn't interpret value (?P<value>.*) for flag (?P<flag>\S+?)\.\s", words) or re.search(
        r"Illegal value for --(?P<flag>\S+) '(?P<value>[^']*)'", words
    )
    if bad:
        return [Refused(bad["flag"], f"its value {bad['value']!r} is not one that it takes")]
    other = re.search(r"parse_flags_from_env.*?\] (.*)", words)
    return [Refused("", other[1][:200])] if other else []


def refused(flags, timeout=120.0):
    """Try `flags` in child processes; return a list of `Refused`, of all that the installed jaxlib does not take.

    Where JAX does not start for another reason, such as a platform that is not there, it may not have read its flags
    yet: then a child on the CPU reads them, which no such reason stops.
    """
    found: list[Refused] = []
    left = list(flags)
    planned = child.configuration()
    while left:
        ended = child.run("-c", START, timeout=timeout, **{**planned, "XLA_FLAGS": join(left)})
        news = refusals(ended.err) if ended.code != 0 else []
        names = {item.flag for item in news}
        rest = [flag for flag in left if flag.name not in names]
        found += news
        if len(rest) < len(left):
            left = rest
        elif ended.code != 0 and not news and planned["JAX_PLATFORMS"] != "cpu":
            planned["JAX_PLATFORMS"] = "cpu"
        else:
            break
    return found
