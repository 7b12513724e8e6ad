"""The von Mises-Fisher distribution on spheres."""
