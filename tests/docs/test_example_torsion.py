"""Test the torsion angle example: its data, the reader of structures, and the scores with their standard errors."""

import itertools

import numpy as np
import pytest

from docs.examples import torsion_angles as example
from jax_von_mises import Mixture, SineBivariateVonMises

# Bond lengths in angstrom and bond angles in degrees of a backbone, by the last atom of the bond or angle.
LENGTHS = {"N": 1.329, "CA": 1.458, "C": 1.525}
ANGLES = {"N": 116.2, "CA": 121.7, "C": 111.0}


def backbone(pairs):
    """Return the atoms N, CA and C of a chain with these torsion angles in degrees and planar peptide bonds."""
    atoms = [("N", np.zeros(3)), ("CA", np.array([1.458, 0, 0])), ("C", np.array([2.0, 1.42, 0]))]
    for (_, psi), (phi, _) in itertools.pairwise(pairs):
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
    # Between a quarter and a half of the residues are in right-handed helices.
    helix = (np.abs(degrees - [-63, -43]) < 20).all(1)
    assert 0.25 < helix.mean() < 0.5


@pytest.mark.slow
@pytest.mark.parametrize("ending", [".pdb", ".cif"])
def test_structures_are_read(tmp_path, ending):
    """The angles of a made-up chain are read, except in its first and last residues, which have only one angle."""
    bio = pytest.importorskip("Bio.PDB", reason="Biopython is not installed")
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
    """Blocks of ten equal gains have the same standard error as blocks of one."""
    gains = np.random.default_rng(0).normal(size=example.BLOCKS)
    mean, error = example.mean_gain(np.repeat(gains, 10))
    np.testing.assert_allclose([mean, error], [gains.mean(), gains.std(ddof=1) / np.sqrt(len(gains))])


def test_bic_counts_the_parameters():
    """BIC counts one weight fewer than components, and four or five parameters per component."""
    fitted = np.tile([-2.0, -1.0], (100, 1))
    expected = np.array([2.0, 1.0]) + np.array([5, 11]) * np.log(100) / 200
    np.testing.assert_allclose(example.bic("dependent", fitted, (1, 2)), expected)
    expected = np.array([2.0, 1.0]) + np.array([4, 9]) * np.log(100) / 200
    np.testing.assert_allclose(example.bic("independent", fitted, (1, 2)), expected)


def test_the_mean_of_psi_crosses_the_cut():
    pairs = np.deg2rad(np.float32([[-120, 170], [-120, -170]]))
    parts = SineBivariateVonMises([-2.1, -1.1], [3.14, -0.8], [20.0, 20.0], [20.0, 20.0], correlation=[0.0, 0.0])
    circular, ordinary = example.psi_of_sheets(Mixture(probs=[0.5, 0.5], components=parts), pairs)
    assert abs(circular) == pytest.approx(180, abs=0.01)
    assert ordinary == pytest.approx(0, abs=0.01)


@pytest.mark.slow
def test_main(capsys, tmp_path):
    """The fits of dependent pairs are at least as likely as those of independent angles, from which they start."""
    pytest.importorskip("matplotlib")
    example.main(["--quick", "--out", str(tmp_path / "picture.svg")])
    rows = [line.strip("| ").split(" | ") for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    for row, number in zip(rows[2:4], (2, 3), strict=True):
        bic, bic_of_pairs = (float(row[j].strip("*")) for j in (1, 3))
        assert int(row[0]) == number
        assert bic_of_pairs <= bic + number * np.log(868) / (2 * 868) + 0.001
    assert sum(float(row[0]) for row in rows[6:]) == pytest.approx(1, abs=0.002)
    assert (tmp_path / "picture.svg").stat().st_size > 10_000
