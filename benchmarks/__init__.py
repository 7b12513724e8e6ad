"""Speed and accuracy of ``jax_von_mises`` beside what people use today.

``python -m benchmarks.simple_profile`` looks over one machine in half a minute, ``python -m benchmarks.guard`` gives a
verdict in a few. ``python -m benchmarks.performance_benchmark --quick`` measures and prints, ``python -m
benchmarks.plots`` draws; ``python -m benchmarks.startup`` measures the first call of fresh processes;
``python -m benchmarks.streaming --quick`` does so for long streams to the host and to the disk.
``python -m benchmarks.profile_gpu --quick`` writes one page of where time and memory go on this machine.
``python -m benchmarks.exactness --quick`` and ``python -m benchmarks.words`` look for errors of the angles and of their
words. Run them from the root of the repository; ``pip install -e ".[bench]"`` brings what they need.
"""
