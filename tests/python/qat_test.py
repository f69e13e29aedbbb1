"""celer.torch.prepare_qat and convert, where PyTorch, onnx and scikit-learn are installed."""
import copy
import os
import sys
import tempfile
import unittest

import tiny

try:
    import onnx
    import torch
except ImportError as error:
    print(f"skipped: {error.name} is not installed")
    sys.exit(77)

import celer
from celer.torch import convert, prepare_qat

nn, F = torch.nn, torch.nn.functional
torch.set_num_threads(1)


class Digits(nn.Module):
    """Depthwise convolutions and a residual, for pictures of 8 x 8."""

    def __init__(self, classes=10):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU())
        self.depth = nn.Sequential(nn.Conv2d(8, 8, 3, padding=1, groups=8, bias=False), nn.BatchNorm2d(8), nn.ReLU6())
        self.point = nn.Sequential(nn.Conv2d(8, 8, 1, bias=False), nn.BatchNorm2d(8))
        self.down = nn.Conv2d(8, 12, 3, stride=2, padding=1)
        self.pool = nn.MaxPool2d(2)
        self.head = nn.Linear(12, classes)

    def forward(self, x):
        x = self.stem(x)
        x = F.relu(x + self.point(self.depth(x)))
        x = self.pool(F.silu(self.down(x)))
        return self.head(torch.flatten(F.adaptive_avg_pool2d(x, 1), 1))


class Everything(nn.Module):
    """Two inputs, two outputs, and every operator that has a form."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding="same", dilation=2), nn.Conv2d(3, 8, 3, padding=(1, 1), stride=1)
        self.grouped = nn.Conv2d(16, 12, 3, padding=1, groups=4)
        self.squeeze, self.excite = nn.Conv2d(12, 4, 1), nn.Conv2d(4, 12, 1)
        self.functions = nn.ModuleList([nn.Hardswish(), nn.GELU(), nn.LeakyReLU(0.1), nn.ELU(), nn.Tanh(), nn.Hardsigmoid(), nn.Sigmoid(),
                                        nn.SiLU()])
        self.mean = nn.AvgPool2d(3, 2, 1)
        self.drop, self.dense, self.norm, self.last = nn.Dropout(0.5), nn.Linear(12, 9), nn.BatchNorm1d(9), nn.Linear(9, 5)

    def forward(self, x, y):
        x = torch.cat([self.a(x), self.b(y)], 1).relu()
        x = self.grouped(x)
        gate = torch.sigmoid(self.excite(F.relu(self.squeeze(x.mean((2, 3), keepdim=True)))))
        x = x * gate
        for one in self.functions:
            x = one(x)
        image = F.hardtanh(self.mean(x), -0.4, 0.6) if False else nn.functional.relu6(self.mean(x))
        rows = image.mean((2, 3)).view(x.size(0), -1)
        rows = self.drop(self.norm(self.dense(rows)))
        return self.last(F.relu(rows)), image


def shaken(module, seed=0):
    """Batch norms and biases as training leaves them."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for one in module.modules():
            if isinstance(one, (nn.BatchNorm1d, nn.BatchNorm2d)):
                one.running_mean.copy_(torch.randn(one.running_mean.shape, generator=generator) * 0.3)
                one.running_var.copy_(torch.rand(one.running_var.shape, generator=generator) + 0.3)
                one.weight.copy_(torch.rand(one.weight.shape, generator=generator) + 0.3)
    return module.eval()


class Bits(tiny.Case):
    def same(self, module, *inputs, seeds=3):
        """In celer the bits of the fake-quantized forward pass, for other inputs and other batches, too."""
        prepared = prepare_qat(module).calibrate([inputs] * 2).eval()
        network = convert(prepared)
        for seed in range(seeds):
            generator = torch.Generator().manual_seed(seed)
            other = [torch.randn(seed + 1, *one.shape[1:], generator=generator) * 2 for one in inputs]
            with torch.no_grad():
                mine, theirs = prepared(*other), network(*other)
            for one, two in zip(*([mine], [theirs]) if isinstance(mine, torch.Tensor) else (mine, theirs)):
                self.assertTrue(torch.equal(one, two), (one - two).abs().max())
        return prepared, network

    def test_digits(self):
        for seed in range(4):
            torch.manual_seed(seed)
            self.same(shaken(Digits(), seed), torch.randn(4, 1, 8, 8))

    def test_everything(self):
        torch.manual_seed(0)
        module = shaken(Everything())
        x, y = torch.randn(2, 3, 11, 9), torch.randn(2, 3, 11, 9)
        prepared, network = self.same(module, x, y)
        with torch.no_grad():
            for one, two in zip(network(x, y), module(x, y)):
                self.assertLess((one - two).abs().max(), 0.15 * two.abs().max())
        operators = {node.op_type for node in onnx.load_from_string(network.onnx).graph.node}
        self.assertLessEqual({"QuantizeLinear", "DequantizeLinear", "Conv", "Concat", "Mul", "AveragePool", "Gemm"}, operators)

    def test_after_steps_of_training(self):
        torch.manual_seed(0)
        x = torch.randn(8, 1, 8, 8)
        prepared = prepare_qat(shaken(Digits()), distill=True).calibrate([x])
        optimizer = torch.optim.Adam(prepared.parameters(), 1e-2)
        for _ in range(5):
            prepared.train()
            optimizer.zero_grad()
            loss = F.cross_entropy(prepared(x), torch.arange(8)) + prepared.distillation()
            loss.backward()
            self.assertTrue(all(one.grad is not None and one.grad.abs().max() > 0 for one in prepared.parameters()))
            optimizer.step()
            prepared.eval()
            network = convert(prepared)
            with torch.no_grad():
                self.assertTrue(torch.equal(prepared(x), network(x)))

    def test_weights_of_odd_size(self):
        """A channel that is nearly constant, a dead one, and one with a large bias."""
        torch.manual_seed(0)
        module = nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 3, 1)).eval()
        with torch.no_grad():
            module[0].weight[0] *= 1e-7
            module[0].weight[1] = 0
            module[0].bias[2] = 1000
        self.same(module, torch.randn(2, 2, 6, 6))

    def test_files(self):
        torch.manual_seed(0)
        x = torch.randn(3, 1, 8, 8)
        prepared = prepare_qat(shaken(Digits())).calibrate([x])
        network = convert(prepared.eval())
        with tempfile.TemporaryDirectory() as folder:
            path = os.path.join(folder, "net.onnx")
            network.save(path)
            options = celer.SessionOptions()
            options.integers = True
            made = celer.InferenceSession(path, options).run(None, {"x": x})[0]
        self.assertEqual(made.tobytes(), network(x).numpy().tobytes())
        again = prepare_qat(shaken(Digits()))
        again.load_state_dict(prepared.state_dict())
        with torch.no_grad():
            self.assertTrue(torch.equal(again.eval()(x), prepared(x)))
        try:
            import onnxruntime
        except ImportError:
            return
        theirs = onnxruntime.InferenceSession(network.onnx, providers=["CPUExecutionProvider"]).run(None, {"x": x.numpy()})[0]
        self.assertLess(abs(theirs - made).max(), 0.05 * abs(made).max())

    def test_what_has_no_form_is_named(self):
        class Odd(nn.Module):
            def __init__(self):
                super().__init__()
                self.conv, self.norm = nn.Conv1d(2, 2, 3), nn.LayerNorm(4)

            def forward(self, x):
                return torch.softmax(self.norm(self.conv(x)) + 1, 1)

        class Branches(nn.Module):
            def forward(self, x):
                return x if x.sum() > 0 else -x
        self.assert_error(NotImplementedError, ["Conv1d", "LayerNorm", "softmax", "add"], lambda: prepare_qat(Odd()))
        self.assert_error(NotImplementedError, "torch.fx", lambda: prepare_qat(Branches()))
        self.assert_error(NotImplementedError, "follow", lambda: prepare_qat(nn.Sequential(nn.BatchNorm2d(2))))
        self.assert_error(TypeError, "torch.nn.Module", lambda: prepare_qat(3))
        self.assert_error(TypeError, "distill", lambda: prepare_qat(nn.Linear(2, 2), distil=True))
        self.assert_error(TypeError, "prepare_qat", lambda: convert(nn.Linear(2, 2)))
        prepared = prepare_qat(nn.Linear(2, 2))
        self.assert_error(ValueError, "calibrate", lambda: convert(prepared))
        self.assert_error(ValueError, "calibrate", lambda: prepared.eval()(torch.zeros(1, 2)))
        self.assert_error(ValueError, "batch", lambda: prepared.calibrate([]))
        self.assert_error(ValueError, "distill=True", prepared.distillation)
        self.assert_error(TypeError, "1 tensors", lambda: prepared(torch.zeros(1, 2), torch.zeros(1, 2)))
        self.assert_error(ValueError, "finite", lambda: prepared.calibrate([torch.full((1, 2), float("nan"))]))


class Training(tiny.Case):
    """A network that is trained here, on scikit-learn's pictures of digits."""

    @classmethod
    def setUpClass(cls):
        try:
            from sklearn.datasets import load_digits
        except ImportError:
            raise unittest.SkipTest("scikit-learn is not installed") from None
        torch.manual_seed(0)
        digits = load_digits()
        order = torch.randperm(len(digits.images))
        pictures = torch.tensor(digits.images / 16.0, dtype=torch.float32)[order, None]
        labels = torch.tensor(digits.target)[order]
        cls.train, cls.test = (pictures[:1200], labels[:1200]), (pictures[1200:], labels[1200:])
        cls.net = Digits()
        cls.fit(cls.net, 12, 5e-3, lambda net, x, y: F.cross_entropy(net(x), y))
        cls.net.eval()

    @classmethod
    def fit(cls, net, epochs, rate, loss_of):
        optimizer = torch.optim.Adam(net.parameters(), rate)
        net.train()
        for _ in range(epochs):
            for x, y in zip(cls.train[0].split(50), cls.train[1].split(50)):
                optimizer.zero_grad()
                loss_of(net, x, y).backward()
                optimizer.step()

    def right(self, network):
        """Of all pictures, how many are told, and how far the answers are from the labels."""
        with torch.no_grad():
            made = network(self.test[0])
            return int((made.argmax(1) == self.test[1]).sum()), float(F.cross_entropy(made, self.test[1]))

    def test_int8_after_training_is_no_worse(self):
        whole, _ = self.right(self.net)
        self.assertGreater(whole, 0.9 * len(self.test[0]))
        prepared = prepare_qat(self.net, distill=True).calibrate(self.train[0].split(100))
        before, before_loss = self.right(convert(prepared.eval()))
        best, best_loss = before, before_loss
        self.fit(prepared, 3, 1e-3, lambda net, x, y: F.cross_entropy(net(x), y) + net.distillation())
        prepared.eval()
        network = convert(prepared)
        best, best_loss = self.right(network)
        print(f"right of {len(self.test[0])}: float {whole}, int8 {before} (loss {before_loss:.4f}), trained {best} (loss {best_loss:.4f})")
        self.assertGreaterEqual(best, before)
        self.assertLess(best_loss, before_loss)
        with torch.no_grad():
            self.assertTrue(torch.equal(network(self.test[0]), prepared(self.test[0])))

    def test_distillation_alone_needs_no_labels(self):
        prepared = prepare_qat(self.net, distill=True).calibrate(self.train[0].split(100))
        with torch.no_grad():
            prepared.eval()(self.train[0])  # what it learns from: on other pictures two rounds are noise
            before = float(prepared.distillation())
        teacher = copy.deepcopy(self.net)
        self.fit(prepared, 2, 5e-4, lambda net, x, _: (net(x), net.distillation())[1])
        with torch.no_grad():
            prepared.eval()(self.train[0])
            self.assertLess(float(prepared.distillation()), before)
        for one, other in zip(self.net.parameters(), teacher.parameters()):
            self.assertTrue(torch.equal(one, other))  # the module itself is left alone


if __name__ == "__main__":
    unittest.main(verbosity=2)
