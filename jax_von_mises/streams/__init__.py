"""Long streams of angles: keys, batches, copies to the host, and files that can be resumed to identical bytes.

`jax_von_mises.sampling` draws the angles; the modules here know positions in streams and where rows are stored.
"""
