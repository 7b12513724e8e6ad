"""Draw any distribution, in any shape and on any device: what the folders of the distributions share.

`counter` computes words from a key and positions, and `numbers` finds those of a draw. `tails` converts them to tail
probabilities. `request` checks the arguments of a draw and chooses the route, and `draws` draws it. `base` defines the
classes, with `pytrees`. `samples` prepares data for fits, and `em` fits mixtures.
"""
