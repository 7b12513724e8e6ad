"""Long streams of angles: keys, batches, copies to the host, and files whose resumed runs give identical bytes.

`jax_von_mises.engine` draws; the modules here manage positions in streams and the storage of rows.
"""
