"""Define the timed samplers and functions: a class for each library, with a method for each task that it supports."""

from benchmarks.peers.common import OURS, Peer, Ready, Unavailable
from benchmarks.peers.on_jax import TFP, JaxNormal, JaxScipy, NumPyro, Ours, OursByKernels, OursEager
from benchmarks.peers.others import MKL, CuPy, NumPy, SciPy, Torch

__all__ = ["LABELS", "OURS", "PEERS", "Peer", "Ready", "Unavailable"]

PEERS = (
    *(Ours(), OursByKernels(), OursEager(), JaxNormal(), JaxScipy()),
    *(NumPy(), MKL(), SciPy(), NumPyro(), TFP(), Torch(), CuPy()),
)
LABELS = {peer.name: peer.label for peer in PEERS}
