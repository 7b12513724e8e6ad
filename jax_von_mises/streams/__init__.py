"""Long streams of angles: keys, batches, copies to the host, and files that are resumed to the same bytes.

A stream is drawn by `jax_von_mises.sampling`; what is here knows positions in it, and where they are stored.
"""
