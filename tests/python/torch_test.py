"""celer.compile and torch.compile(backend="celer"), where PyTorch is installed."""
import sys
import unittest
import warnings

import tiny

try:
    import torch
except ImportError:
    print("skipped: PyTorch is not installed")
    sys.exit(77)

import celer
from celer.torch import CelerWarning, dynamo_backend

nn = torch.nn


def small_cnn():
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(8, 16, 3, stride=2),
                         nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)).eval()


class Two(nn.Module):
    """Two inputs, and a dict of outputs."""

    def __init__(self):
        super().__init__()
        self.dense = nn.Linear(4, 4)

    def forward(self, left, right):
        return {"sum": left + self.dense(right), "pair": (left * 2, right)}


class Odd(nn.Module):
    """An operator that networks have not."""

    def forward(self, x):
        return torch.linalg.eigvals(x).abs()


class Mixed(nn.Module):
    """Such an operator between others."""

    def __init__(self):
        super().__init__()
        self.before, self.after = nn.Linear(4, 4), nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x):
        y = torch.relu(self.before(x))
        return self.after(torch.linalg.eigvals(y @ y.T).abs().sort().values) + x.sum()


class Compile(tiny.Case):
    def test_a_network(self):
        module = small_cnn()
        x = torch.randn(2, 3, 17, 15)
        fast = celer.compile(module, x, threads=1)
        self.assertTrue(fast.in_celer, fast.fallbacks)
        with torch.no_grad():
            torch.testing.assert_close(fast(x), module(x), rtol=1e-4, atol=1e-5)
            y = torch.randn(5, 3, 9, 9)  # other shapes are exported in their turn
            torch.testing.assert_close(fast(y), module(y), rtol=1e-4, atol=1e-5)
        self.assertEqual(fast.fallbacks, [])

    def test_forms_of_inputs_and_outputs(self):
        module = Two().eval()
        left, right = torch.randn(3, 4), torch.randn(3, 4)
        fast = celer.compile(module, (left, right))
        self.assertTrue(fast.in_celer, fast.fallbacks)
        with torch.no_grad():
            torch.testing.assert_close(fast(left, right), module(left, right))
            torch.testing.assert_close(fast(left=left, right=right), module(left, right))  # by name: PyTorch

    def test_what_cannot_run_stays_and_is_named(self):
        x = torch.randn(4, 4)
        with self.assertWarnsRegex(CelerWarning, "Odd stays with PyTorch"):
            fast = celer.compile(Odd().eval(), x)
        self.assertFalse(fast.in_celer)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("error")
            torch.testing.assert_close(fast(x), Odd()(x))
        self.assertIn("Odd", fast.fallbacks[0])

    def test_the_rest_of_a_module_runs(self):
        module = Mixed().eval()
        x = torch.randn(4, 4)
        with self.assertWarnsRegex(CelerWarning, "Mixed is cut into parts: .*eigvals.* stays with PyTorch"):
            fast = celer.compile(module, x)
        self.assertTrue(fast.in_celer)
        self.assertNotIn("Linear", fast.fallbacks[0].split(" stays ")[0])
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("error", CelerWarning)
            torch.testing.assert_close(fast(x), module(x), rtol=1e-4, atol=1e-4)
            y = torch.randn(4, 4)
            torch.testing.assert_close(fast(y), module(y), rtol=1e-4, atol=1e-4)
            module.before.weight += 1  # is exported again
            warnings.simplefilter("ignore", CelerWarning)
            torch.testing.assert_close(fast(y), module(y), rtol=1e-4, atol=1e-4)

    def test_gradients_and_changed_weights(self):
        module = nn.Linear(4, 2).eval()
        fast = celer.compile(module, torch.randn(1, 4))
        x = torch.randn(3, 4)
        fast(x).sum().backward()
        self.assertIsNotNone(module.weight.grad)
        with torch.no_grad():
            module.weight += 1
            torch.testing.assert_close(fast(x), module(x))

    def test_bad_arguments(self):
        self.assert_error(ValueError, "eval()", lambda: celer.compile(nn.Linear(2, 2)))
        self.assert_error(TypeError, "torch.nn.Module", lambda: celer.compile(lambda x: x))
        self.assert_error(TypeError, "example_inputs", lambda: celer.compile(nn.Linear(2, 2).eval(), (1,)))
        self.assert_error(TypeError, "example_inputs", lambda: celer.compile(nn.Linear(2, 2).eval(), example_input=1))


class Backend(tiny.Case):
    def test_torch_compile(self):
        module = small_cnn()
        x = torch.randn(2, 3, 17, 15)
        fast = torch.compile(module, backend=dynamo_backend, dynamic=False)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("error", CelerWarning)
            torch.testing.assert_close(fast(x), module(x), rtol=1e-4, atol=1e-5)
            torch.testing.assert_close(fast(x + 1), module(x + 1), rtol=1e-4, atol=1e-5)

    def test_by_name(self):
        if "celer" not in torch._dynamo.list_backends():
            self.skipTest("the package is not installed, so that its entry point is not there")
        fast = torch.compile(nn.Linear(3, 3).eval(), backend="celer", dynamic=False)
        with torch.no_grad():
            self.assertEqual(fast(torch.zeros(2, 3)).shape, (2, 3))

    def test_graphs_that_break(self):
        dense = nn.Linear(4, 4).eval()

        def function(x):
            y = dense(x)
            print(end="")  # PyTorch cuts the graph here
            return torch.linalg.eigvals(y @ y.T).abs().sum() + dense(y).sum()
        x = torch.randn(4, 4)
        fast = torch.compile(function, backend=dynamo_backend, dynamic=False)
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", CelerWarning)
            torch.testing.assert_close(fast(x), function(x), rtol=1e-4, atol=1e-5)

    def test_a_graph_is_cut(self):
        module = Mixed().eval()
        fast = torch.compile(module, backend=dynamo_backend, dynamic=False)
        x = torch.randn(4, 4)
        with torch.no_grad(), self.assertWarnsRegex(CelerWarning, "is cut into parts: .*eigvals.* stays with PyTorch"):
            torch.testing.assert_close(fast(x), module(x), rtol=1e-4, atol=1e-4)

    def test_weights_that_change(self):
        dense = nn.Linear(4, 4).eval()
        fast = torch.compile(dense, backend=dynamo_backend, dynamic=False)
        x = torch.randn(2, 4)
        with torch.no_grad():
            fast(x)
            dense.weight += 1
            torch.testing.assert_close(fast(x), dense(x))
        fast(x).sum().backward()
        self.assertIsNotNone(dense.weight.grad)


if __name__ == "__main__":
    unittest.main(verbosity=2)
