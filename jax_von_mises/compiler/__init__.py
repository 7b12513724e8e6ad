"""Keep XLA from slowing down the package's programs, and place arrays on meshes."""
