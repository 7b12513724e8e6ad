"""Speed and accuracy of ``jax_von_mises`` beside what people use today.

``python -m benchmarks.performance_benchmark --quick`` measures and prints, ``python -m benchmarks.plots`` draws;
``python -m benchmarks.streaming --quick`` and ``python -m benchmarks.streaming_plots`` do so for long streams, to the
host and to the disk, and ``python -m benchmarks.scaling`` tells time and cost for many processes from such a result.
``python -m benchmarks.profile_gpu --quick`` writes one page of where time and memory go on this machine.
Run them from the root of the repository; ``pip install "jax_von_mises[bench]"`` brings what they need.
"""
