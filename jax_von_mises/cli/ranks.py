"""Which process of a job this is: found by `jax.distributed`, kept where it can do no harm.

All that a job's processes need of each other is who they are: process 2 of 4 draws the third quarter of the blocks, and
the store tells the rest. `jax.distributed` finds that out on SLURM, Open MPI and Kubernetes, or from addresses. But it
ties the processes together: when one dies it aborts the others (SIGABRT, no exception), and one that is started again
alone is refused or ends the job.

So the connection lives in a small **keeper** process beside each process that computes. The keepers join through
`jax.distributed`, with tasks that may come back (``jax_enable_recoverability``), tell their number, and stay, so that
a process that is started again finds the others there. When the coordinator dies, the keepers abort, and nobody else:
each is started again, and they meet once process 0 is back. The computing process itself never connects; for its JAX
there is one process, and its own devices.
"""

import contextlib
import json
import math
import os
import re
import subprocess
import sys
import tempfile
import threading
import time

import jax

from jax_von_mises.runtime import child

# Seconds until JAX takes a silent keeper for dead; and between two tries to join.
HEARTBEAT = 20
PAUSE = 0.5

# The devices that JAX found to be this process's own, where a cluster starts one process for each.
# Beside them, the variables by which a launcher shows a process some devices only.
SHOWN = {
    "jax_cuda_visible_devices": ("CUDA_VISIBLE_DEVICES",),
    "jax_rocm_visible_devices": ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES"),
}


class JoinError(Exception):
    """The other processes were not found."""


class Place:
    """The number of this process in a job. Close it when the job is done.

    Parameters
    ----------
    coordinator : str, optional
        Address ``host:port`` of process 0. What is not given is found by JAX.
    processes, process_id : int, optional
        How many processes there are, and which this is. Where both are given and no coordinator, nothing needs to be
        found: then there is no connection at all.
    timeout : float
        Seconds to wait for the others.
    say : callable, optional
        Told, in a sentence, when the connection is lost and found again.

    Raises
    ------
    JoinError
        JAX finds no job here, or not all processes came in time.
    """

    def __init__(self, coordinator=None, processes=None, process_id=None, timeout=300.0, say=None):
        self._closing = threading.Event()
        self._say = say or (lambda text: None)
        self._keeper: subprocess.Popen | None = None
        self._watcher: threading.Thread | None = None
        self.connected = coordinator is not None or processes is None or process_id is None
        if not self.connected:
            self.part, self.parts = process_id, processes
            return
        self._options = {
            "coordinator_address": coordinator,
            "num_processes": processes,
            "process_id": process_id,
            "initialization_timeout": max(1, int(timeout)),
            "heartbeat_timeout_seconds": HEARTBEAT,
        }
        if None not in (coordinator, processes, process_id):
            self._options["cluster_detection_method"] = "deactivate"  # it would overrule, and may fail
        try:
            found = self._join(timeout)
        except BaseException:
            self.close()
            raise
        self.part, self.parts = found["part"], found["parts"]
        show_devices(found["visible"])
        self._watcher = threading.Thread(target=self._stay, name="keeper", daemon=True)
        self._watcher.start()

    def __enter__(self):
        return self

    def __exit__(self, *exception):
        self.close()

    def close(self):
        """Leave the job."""
        self._closing.set()
        if self._watcher is not None:
            while self._watcher.is_alive():
                self._send_away()  # it may just have started another one
                self._watcher.join(PAUSE)
        elif self._keeper is not None:
            self._dismiss()

    def _send_away(self):
        """Have the keeper end."""
        with contextlib.suppress(OSError):
            self._keeper.stdin.close()  # at whose end it leaves

    def _dismiss(self):
        """Wait for the keeper to end, and close what was shared with it."""
        self._send_away()
        try:
            self._keeper.wait(5)
        except subprocess.TimeoutExpired:
            self._keeper.kill()
            self._keeper.wait()
        self._keeper.stdout.close()
        self._words.close()

    def _start(self):
        """Start a keeper; what it says goes to a file, since a crash of JAX is long."""
        self._words = tempfile.TemporaryFile()  # noqa: SIM115
        self._keeper = subprocess.Popen(
            [*child.PYTHON, "-m", "jax_von_mises.cli.ranks", json.dumps(self._options)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._words,
            env=child.environment(JAX_PLATFORMS="cpu", TF_CPP_MIN_LOG_LEVEL="1"),
            start_new_session=os.name == "posix",  # an interrupt is for the process that computes
        )

    def _answer(self, timeout):
        """What the keeper found, or None if it ended first; it is killed when the time is up."""
        timer = threading.Timer(timeout, self._keeper.kill)
        timer.start()
        try:
            line = self._keeper.stdout.readline()
        finally:
            timer.cancel()
        if line:
            return json.loads(line)
        self._keeper.wait()
        return None

    def _join(self, timeout):
        deadline = time.monotonic() + timeout
        reason = ""
        while True:
            self._start()
            found = self._answer(max(0.1, deadline - time.monotonic()))
            if found is not None:
                return found
            final, reason = last_words(self._words, reason)
            self._dismiss()
            if final:
                raise JoinError(reason)
            if time.monotonic() >= deadline:
                many = self._options["num_processes"] or "the"
                where = self._options["coordinator_address"] or "the address that JAX found"
                raise JoinError(
                    f"{many} processes did not all meet within {timeout:g} s; start them, and see that process 0 can "
                    f"be reached at {where}" + (f" ({reason})" if reason else "")
                )
            time.sleep(PAUSE)

    def _stay(self):
        """Hold the place: start another keeper when one ends, as all do when process 0 dies."""
        while True:
            self._keeper.stdout.read()  # until it ends
            self._dismiss()
            if self._closing.wait(PAUSE):
                return
            self._say("the connection to process 0 is lost; this process goes on, and joins again")
            self._start()
            while self._answer(self._options["initialization_timeout"]) is None:
                self._dismiss()
                if self._closing.wait(PAUSE):
                    return
                self._start()
            self._say("joined again")


def last_words(file, before):
    """Why a keeper ended: whether there is no use in another try, and what it said, or what was said `before`."""
    file.seek(0)
    lines = [line.strip() for line in file.read().decode(errors="replace").splitlines() if line.strip()]
    last = lines[-1] if lines else ""
    if last.startswith("CannotJoin: "):
        return True, last.removeprefix("CannotJoin: ")
    if last.startswith(("ModuleNotFoundError: ", "ImportError: ", "SyntaxError: ")):
        return True, f"the helper process cannot run: {last}"
    status = [line.split("absl::Status: ")[-1] for line in lines if "absl::Status: " in line]
    if not status and re.match(r"\w+: ", last) and "Traceback (most recent call last):" in lines:
        status = [last]
    return False, (status[-1] if status else before)[:200]


def show_devices(visible):
    """Leave this process the devices that are its own, before its JAX starts.

    JAX numbers them within the machine. A launcher that shows each process its own device alone has chosen already:
    there the number means nothing.
    """
    for name, value in visible.items():
        shown = [os.environ[variable] for variable in SHOWN[name] if variable in os.environ]
        fewest = min((len(text.split(",")) for text in shown), default=math.inf)
        if all(int(number) < fewest for number in str(value).split(",")):
            with contextlib.suppress(AttributeError):  # an option of other releases
                jax.config.update(name, value)


def keep_place(options):
    """Body of the keeper: join, tell the number, and stay until the computing process ends."""
    threading.Thread(target=leave_with_parent, daemon=True).start()
    with contextlib.suppress(ImportError, ValueError, OSError):  # POSIX alone has limits
        import resource

        # JAX aborts it when process 0 leaves, which is no reason to write its memory to a file.
        resource.setrlimit(resource.RLIMIT_CORE, (0, resource.getrlimit(resource.RLIMIT_CORE)[1]))
    jax.config.update("jax_enable_recoverability", True)
    jax.config.update("jax_enable_preemption_service", False)
    jax.config.update("jax_cpu_collectives_implementation", None)
    before = {name: jax.config.read(name) for name in SHOWN}
    try:
        jax.distributed.initialize(**options)
    except (ValueError, TypeError) as error:
        # JAX found no job, or only a part of what it needs: it would find no more at another try.
        print(
            f"CannotJoin: JAX finds no job here ({' '.join(str(error).split())}); give --coordinator HOST:PORT, "
            "--processes N and --process-id I",
            file=sys.stderr,
        )
        sys.exit(1)
    after = {name: jax.config.read(name) for name in SHOWN}
    found = {
        "part": jax.process_index(),
        "parts": jax.process_count(),
        "visible": {name: value for name, value in after.items() if value != before[name]},
    }
    os.write(1, json.dumps(found).encode() + b"\n")
    threading.Event().wait()


def leave_with_parent():
    """End at once when the computing process has ended, however it did: then its end of the pipe is closed."""
    with contextlib.suppress(OSError):
        while os.read(0, 1):
            pass
    os._exit(0)


if __name__ == "__main__":
    keep_place(json.loads(sys.argv[1]))
