"""Profile time and memory on this machine: one HTML page with findings, tables and pictures.

``python -m benchmarks.profile_gpu --quick`` writes ``profile.html``. `sections` measures, and returns plain rows and
findings; `pictures` and `page` show them.
"""
