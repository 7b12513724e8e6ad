"""The example of torsion angles: its data, the loader of structures, the scores and their standard error."""

import jax.numpy as jnp
import numpy as np
import pytest

from docs.examples import torsion_angles as example
from jax_von_mises import Mixture, SineBivariateVonMises, Torus, VonMises

# Lengths in angstrom and angles in degrees of a backbone, from each atom to the next one.
LENGTHS = {"N": 1.329, "CA": 1.458, "C": 1.525}
ANGLES = {"N": 116.2, "CA": 121.7, "C": 111.0}


def backbone(pairs):
    """Return the atoms N, CA and C of a chain with these torsion angles in degrees and flat peptide bonds."""
    atoms = [("N", np.zeros(3)), ("CA", np.array([1.458, 0, 0])), ("C", np.array([2.0, 1.42, 0]))]
    for (_, psi), (phi, _) in zip(pairs, pairs[1:], strict=False):
        for name, torsion in (("N", psi), ("CA", 180.0), ("C", phi)):
            a, b, c = (place for _, place in atoms[-3:])
            along = (c - b) / np.linalg.norm(c - b)
            normal = np.cross(b - a, along)
            normal /= np.linalg.norm(normal)
            bend, turn = np.deg2rad(180 - ANGLES[name]), np.deg2rad(torsion)
            step = np.cos(bend) * along
            step = step + np.sin(bend) * (np.cos(turn) * np.cross(normal, along) + np.sin(turn) * normal)
            atoms.append((name, c + LENGTHS[name] * step))
    return atoms


def pdb_text(atoms):
    lines = [
        f"ATOM  {serial + 1:5d}  {name:<3} ALA A{serial // 3 + 1:4d}    "
        f"{x:8.3f}{y:8.3f}{z:8.3f}  1.00  0.00           {name[0]}"
        for serial, (name, (x, y, z)) in enumerate(atoms)
    ]
    return "\n".join([*lines, "END", ""])


def test_measured_residues():
    pairs, held_out = example.divide(example.measured())
    assert pairs.shape == held_out.shape == (868, 2)
    degrees = np.rad2deg(np.concatenate([pairs, held_out]))
    assert np.all(np.abs(degrees) <= 180.001)
    # Between a quarter and a half of them are in right-handed helices.
    helix = (np.abs(degrees - [-63, -43]) < 20).all(1)
    assert 0.25 < helix.mean() < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".pdb", ".cif"])
def test_structures_are_read(tmp_path, ending):
    """A chain that is built with known angles; the first and the last residue lack one of the two."""
    bio = pytest.importorskip("Bio.PDB", reason="structures are read by Biopython")
    angles = [(-60.0, -45.0), (-120.0, 130.0), (-65.0, 170.0), (60.0, 40.0), (-90.0, -175.0), (-70.0, 150.0)]
    path = tmp_path / "made.pdb"
    path.write_text(pdb_text(backbone(angles)))
    if ending == ".cif":
        file = bio.MMCIFIO()
        file.set_structure(bio.PDBParser(QUIET=True).get_structure("made", path))
        path = path.with_suffix(ending)
        file.save(str(path))
    np.testing.assert_allclose(np.rad2deg(example.read_structure(path)), angles[1:-1], atol=0.2)


def test_the_gain_has_the_standard_error_of_means_of_blocks():
    wide, narrow = (Mixture(probs=[1.0], components=Torus(VonMises(jnp.zeros((1, 2)), k))) for k in (1.0, 4.0))
    # Blocks of ten equal pairs: as many independent gains as blocks.
    places = np.random.default_rng(0).normal(size=(example.BLOCKS, 2)).astype(np.float32)
    mean, error = example.gain(wide, narrow, np.repeat(places, 10, axis=0))
    gains = np.asarray(narrow.log_prob(places) - wide.log_prob(places))
    np.testing.assert_allclose(mean, gains.mean(), rtol=1e-4)
    np.testing.assert_allclose(error, gains.std(ddof=1) / np.sqrt(example.BLOCKS), rtol=1e-4)


def test_the_mean_of_psi_crosses_the_cut():
    pairs = np.deg2rad(np.float32([[-120, 170], [-120, -170]]))
    parts = SineBivariateVonMises([-2.1, -1.1], [3.14, -0.8], [20.0, 20.0], [20.0, 20.0], correlation=[0.0, 0.0])
    circular, ordinary = example.psi_of_sheets(Mixture(probs=[0.5, 0.5], components=parts), pairs)
    assert abs(circular) == pytest.approx(180, abs=0.01)
    assert ordinary == pytest.approx(0, abs=0.01)


@pytest.mark.slow
def test_dependence_pays_on_held_out_residues(capsys, tmp_path):
    pytest.importorskip("matplotlib")
    example.main(["--quick", "--out", str(tmp_path / "picture.svg")])
    printed = capsys.readouterr().out
    assert "868 residues to fit, 868 held out" in printed
    rows = [line.strip("| ").split(" | ") for line in printed.splitlines() if line.startswith(("| 2 ", "| 3 "))]
    for _, bic, held_out, bic_dependent, held_out_dependent in rows:
        assert float(bic_dependent.strip("*")) < float(bic.strip("*"))
        assert float(held_out_dependent) > float(held_out)
    assert (tmp_path / "picture.svg").stat().st_size > 10_000
