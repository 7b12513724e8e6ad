"""Profile time and memory on this machine: one HTML page with tables, pictures and findings.

``python -m benchmarks.profile_gpu --quick`` writes ``profile.html``. `sections` and `roofline` measure and return plain
rows; `pictures` and `page` show them.
"""
