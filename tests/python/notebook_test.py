"""docs/python.ipynb runs from its first cell to its last."""
import os
import sys
import unittest

import tiny

try:
    import ipykernel  # noqa: F401
    import nbclient
    import nbformat
except ImportError as error:
    print(f"skipped: {error.name} is not installed")
    sys.exit(77)


class Notebook(tiny.Case):
    def test_every_cell(self):
        os.environ.update(CELER_MODEL=tiny.model(), CELER_NETWORK=str(tiny.ROOT / "tests/golden/networks/mixed.onnx"))
        notebook = nbformat.read(tiny.ROOT / "docs/python.ipynb", as_version=4)
        for cell in notebook.cells:
            self.assertFalse(cell.get("outputs"), "the notebook is kept without its outputs")
        nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3").execute()
        shown = [data for cell in notebook.cells if cell.cell_type == "code" for one in cell.outputs for data in one.get("data", {})]
        self.assertGreaterEqual(shown.count("text/html"), 2)  # the model and the limits
        self.assertIn("image/svg+xml", shown)


if __name__ == "__main__":
    unittest.main(verbosity=2)
