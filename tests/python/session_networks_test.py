"""The networks of tests/networks through celer.InferenceSession, beside ONNX Runtime: session_networks_test.py [--all]

Every family of small ones: operators of ONNX Runtime's own domain and of ai.onnx.ml, what scikit-learn, LightGBM and XGBoost
export, what ONNX Runtime's tools rewrote. Of those with real weights the ones that are quick, where `celer pull` reaches or has
them; --all: all of them, and PyTorch's exports where `make test-networks` has made them."""
import pathlib
import sys
import unittest

import numpy as np
import onnxruntime
import tiny

import celer

sys.path.insert(0, str(tiny.ROOT / "tests/networks"))
import beside_ort  # noqa: E402
import microsoft_test  # noqa: E402
import ml_test  # noqa: E402
import networks_test  # noqa: E402
import optimized_test  # noqa: E402

ALL = "--all" in sys.argv
TOLERANCE = networks_test.TOLERANCE


def open_session(model, optimize=True):
    options = celer.SessionOptions()
    if not optimize:
        options.graph_optimization_level = celer.GraphOptimizationLevel.ORT_DISABLE_ALL
    return celer.InferenceSession(model, options)


def run_session(_, model, feeds, *flags):
    """What beside_ort.run_celer does with the program."""
    try:
        session = open_session(model if isinstance(model, (str, pathlib.Path)) else model.SerializeToString(), "--no-optimize" not in flags)
        return {port.name.replace("/", "_"): made for port, made in zip(session.get_outputs(), session.run(None, feeds))}
    except (ValueError, NotImplementedError) as error:
        return f"{type(error).__name__}: {error}"


beside_ort.run_celer = run_session


class Small(tiny.Case):
    def test_operators_of_onnx_runtime(self):
        self.assertEqual(beside_ort.main(microsoft_test.FAMILIES, "InferenceSession"), 0)

    def test_operators_of_machine_learning(self):
        self.assertEqual(beside_ort.main(ml_test.FAMILIES, "InferenceSession"), 0)

    def test_exports_of_machine_learning(self):
        self.assertEqual(ml_test.exports("InferenceSession"), 0)

    def test_what_its_tools_rewrote(self):
        self.assertEqual(optimized_test.main("InferenceSession", ""), 0)


def run_theirs(path, feeds, level):
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = level
    options.log_severity_level = 4
    return onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"]).run(None, feeds)


def error(ours, theirs):
    """The largest difference, relative to the scale; infinite where types or shapes differ."""
    worst = 0.0
    for mine, yours in zip(ours, theirs, strict=True):
        if (mine.dtype, mine.shape) != (yours.dtype, yours.shape):
            return float("inf")
        if yours.size == 0:
            continue
        if yours.dtype.kind not in "fiub":
            worst = max(worst, 0.0 if (mine == yours).all() else float("inf"))
            continue
        mine, yours = mine.astype(np.float64), yours.astype(np.float64)
        scale = np.abs(yours).max()
        worst = max(worst, float(np.abs(mine - yours).max() / (scale if scale > 0 else 1)))
    return worst


def verdict(path, feeds, rounded):
    """"equal" and the error, or what else it is, by the rules of networks_test.py."""
    level = onnxruntime.GraphOptimizationLevel
    plain = run_theirs(path, feeds, level.ORT_DISABLE_ALL)
    made = [open_session(path, optimize).run(None, feeds) for optimize in (True, False)]
    worst = max(error(one, plain) for one in made)
    if worst <= TOLERANCE:
        return "equal", worst
    if rounded and worst <= rounded[0]:
        return "rounded", worst
    if error(run_theirs(path, feeds, level.ORT_ENABLE_ALL), plain) > TOLERANCE:
        return "unsteady", worst
    names = [port.name for port in open_session(path).get_outputs()]
    kind, why = networks_test.beside_exact(path, feeds, lambda: (dict(zip(names, one)) for one in made)) or ("WRONG", "")
    return (f"{kind} ({why})" if why else kind), worst


class RealWeights(tiny.Case):
    def test_every_network(self):
        ran = 0
        for name in networks_test.NETWORKS if ALL else networks_test.QUICK:
            path, why = networks_test.pull([sys.executable, "-m", "celer"], name, True)
            if not path:
                print(f"{name}: skipped, {why}", flush=True)
                with self.subTest(network=name):
                    self.assertFalse(ALL, why)
                continue
            ran += 1
            for i, case in enumerate(networks_test.NETWORKS[name]):
                random = np.random.default_rng(7)
                kind, worst = verdict(path, {key: make(random) for key, make in case.items()}, networks_test.ROUNDED.get(name))
                print(f"{name} {i}: {kind}, {worst:.1e}", flush=True)
                with self.subTest(network=name, shapes=i):
                    self.assertNotEqual(kind, "WRONG")
        if not ran:
            self.skipTest("no network is here, and none could be fetched")

    @unittest.skipUnless(ALL, "only with --all")
    def test_exports_of_pytorch(self):
        import exports_test

        folder = pathlib.Path.home() / ".cache/celer/bench-graphs/networks"
        names = [name for name in exports_test.NAMES if (folder / f"{name}.y.npy").exists()]
        if not names:
            self.skipTest("make test-networks makes them")
        for name in names:
            expected = np.load(folder / f"{name}.y.npy")
            inputs = [np.load(path) for path in sorted(folder.glob(f"{name}.x*.npy"))]
            for form in (f"{name}.onnx", f"{name}.pnnx.param"):
                for optimize in (True, False):
                    session = open_session(folder / form, optimize)
                    feeds = dict(zip([port.name for port in session.get_inputs()], inputs))
                    with self.subTest(network=form, optimize=optimize):
                        self.assertLessEqual(error(session.run(None, feeds)[:1], [expected]), TOLERANCE)


if __name__ == "__main__":
    unittest.main(argv=[one for one in sys.argv if one != "--all"], verbosity=2)
