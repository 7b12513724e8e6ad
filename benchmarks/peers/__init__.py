"""Who is timed: ours and what it is compared with, a class each with a method for every task that it can do.

All work about 0. A peer that lacks a task says why in `Peer.lacks`.
"""

from benchmarks.peers.common import OURS, Peer, Ready, Unavailable
from benchmarks.peers.on_jax import TFP, JaxNormal, JaxScipy, NumPyro, Ours
from benchmarks.peers.others import CuPy, NumPy, SciPy, Torch

__all__ = ["OURS", "PEERS", "Peer", "Ready", "Unavailable"]

PEERS = (Ours(), JaxNormal(), JaxScipy(), NumPy(), SciPy(), NumPyro(), TFP(), Torch(), CuPy())
