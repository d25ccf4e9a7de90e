"""What was proven on a GPU is proven for the sources that lie here; see docs/proofs.md."""

from __future__ import annotations

from forge_core.testing.proofs import assert_proven
from forge_core.testing.proofs.check import records_in
from forge_core.testing.proofs.declare import discover
from forge_core.testing.proofs.table import BEGIN, END, table


def test_every_kernel_is_proven(root):
    assert_proven(root)


def test_the_readme_has_the_state(root):
    text = (root / "README.md").read_text(encoding="utf-8")
    written = text.partition(f"{BEGIN}\n")[2].partition(END)[0]
    now = table(root, discover(), records_in(root / "docs" / "records"))
    assert written == now, "run `forge-cute prove table --into README.md`"
