"""InferenceSession beside ONNX Runtime."""
import gc
import pickle
import tempfile
import threading
import unittest

import numpy as np
import onnx
import onnxruntime
import tiny
from onnx import TensorProto, helper, numpy_helper

import celer


def network(nodes, inputs, outputs, constants=(), opset=17):
    """Bytes of a model; ports are (name, type, shape)."""
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info(*one) for one in inputs],
                              [helper.make_tensor_value_info(*one) for one in outputs],
                              [numpy_helper.from_array(array, name) for name, array in constants])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=9).SerializeToString()


def options(kind):
    made = kind.SessionOptions()
    made.intra_op_num_threads = 1
    return made


def pair(model):
    return celer.InferenceSession(model, options(celer)), onnxruntime.InferenceSession(model, options(onnxruntime))


RANDOM = np.random.default_rng(1)
F32 = TensorProto.FLOAT
DENSE = network(
    [helper.make_node("Gemm", ["x", "w", "b"], ["h"]), helper.make_node("Relu", ["h"], ["r"]), helper.make_node("Softmax", ["r"], ["y"])],
    [("x", F32, ["n", 16])], [("y", F32, ["n", 8]), ("h", F32, ["n", 8])],
    [("w", RANDOM.standard_normal((16, 8), np.float32)), ("b", RANDOM.standard_normal(8, np.float32))])
CONV = network(
    [helper.make_node("Conv", ["x", "w"], ["c"], pads=[1, 1, 1, 1]), helper.make_node("Relu", ["c"], ["r"]),
     helper.make_node("GlobalAveragePool", ["r"], ["y"])],
    [("x", F32, [1, 3, 17, 13])], [("y", F32, [1, 5, 1, 1])], [("w", RANDOM.standard_normal((5, 3, 3, 3), np.float32))])


class Session(tiny.Case):
    def test_equals_onnxruntime(self):
        for model, feed in ((DENSE, {"x": RANDOM.standard_normal((7, 16), np.float32)}),
                            (CONV, {"x": RANDOM.standard_normal((1, 3, 17, 13), np.float32)})):
            ours, theirs = pair(model)
            for mine, yours in zip(ours.run(None, feed), theirs.run(None, feed)):
                self.assertEqual((mine.dtype, mine.shape), (yours.dtype, yours.shape))
                np.testing.assert_allclose(mine, yours, rtol=1e-4, atol=1e-5)
            for mine, yours in ((ours.get_inputs(), theirs.get_inputs()), (ours.get_outputs(), theirs.get_outputs())):
                self.assertEqual([(one.name, one.type, one.shape) for one in mine], [(one.name, one.type, one.shape) for one in yours])

    def test_element_types(self):
        for name in ("float32", "float64", "float16", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "bool"):
            kind = helper.np_dtype_to_tensor_dtype(np.dtype(name))
            model = network([helper.make_node("Concat", ["x", "x"], ["y"], axis=0)], [("x", kind, ["n", 3])], [("y", kind, ["m", 3])])
            x = (RANDOM.standard_normal((4, 3)) * 9).astype(name)
            ours, theirs = pair(model)
            (mine,), (yours,) = ours.run(None, {"x": x}), theirs.run(None, {"x": x})
            self.assertEqual(mine.dtype, yours.dtype)
            np.testing.assert_array_equal(mine, yours, name)
            self.assertEqual(ours.get_inputs()[0].type, theirs.get_inputs()[0].type)

    def test_shapes_change_from_run_to_run(self):
        ours, theirs = pair(DENSE)
        for rows in (1, 5, 2, 0, 64, 5):
            x = RANDOM.standard_normal((rows, 16), np.float32)
            np.testing.assert_allclose(ours.run(["y"], {"x": x})[0], theirs.run(["y"], {"x": x})[0], rtol=1e-4, atol=1e-5)

    def test_outputs_by_name_and_their_own_memory(self):
        ours, _ = pair(DENSE)
        x = RANDOM.standard_normal((3, 16), np.float32)
        h, y = ours.run(["h", "y"], {"x": x})
        kept = h.copy()
        ours.run(None, {"x": x + 1})
        np.testing.assert_array_equal(h, kept)
        self.assertEqual(ours.run(["y"], {"x": x})[0].shape, y.shape)
        self.assertTrue(h.flags.writeable and h.flags.c_contiguous)

    def test_whatever_holds_numbers(self):
        ours, _ = pair(DENSE)
        x = RANDOM.standard_normal((4, 16), np.float32)
        expected = ours.run(["y"], {"x": x})[0]

        class Foreign:  # speaks DLPack alone, as tensors of PyTorch do
            def __dlpack__(self, **kwargs):
                return x.__dlpack__(**kwargs)

            def __dlpack_device__(self):
                return x.__dlpack_device__()
        for value in (x.tolist(), np.asfortranarray(x), np.repeat(x, 2, 0)[::2], Foreign(), celer.OrtValue.ortvalue_from_numpy(x)):
            np.testing.assert_array_equal(ours.run(["y"], {"x": value})[0], expected)
        read_only = x.copy()
        read_only.flags.writeable = False
        np.testing.assert_array_equal(ours.run(["y"], {"x": read_only})[0], expected)

    def test_io_binding(self):
        ours, theirs = pair(DENSE)
        x = RANDOM.standard_normal((4, 16), np.float32)
        y = np.zeros((4, 8), np.float32)
        binding = ours.io_binding()
        binding.bind_cpu_input("x", x)
        binding.bind_ortvalue_output("y", celer.OrtValue(y))
        ours.run_with_iobinding(binding)
        np.testing.assert_allclose(y, theirs.run(["y"], {"x": x})[0], rtol=1e-4, atol=1e-5)
        self.assertTrue(np.shares_memory(binding.get_outputs()[0].numpy(), y))
        binding.bind_output("h")
        x += 1
        binding.run()
        for mine, yours in zip(binding.copy_outputs_to_cpu(), theirs.run(["y", "h"], {"x": x})):
            np.testing.assert_allclose(mine, yours, rtol=1e-4, atol=1e-5)
        self.assertTrue(np.shares_memory(np.from_dlpack(binding.get_outputs()[0]), y))

    def test_files_and_bytes(self):
        x = RANDOM.standard_normal((2, 16), np.float32)
        expected = celer.InferenceSession(DENSE).run(None, {"x": x})
        with tempfile.TemporaryDirectory() as folder:
            path = folder + "/net.onnx"
            with open(path, "wb") as file:
                file.write(DENSE)
            session = celer.InferenceSession(path, providers=["CUDAExecutionProvider", "CPUExecutionProvider"])
        np.testing.assert_array_equal(session.run(None, {"x": x})[0], expected[0])
        self.assertEqual(session.parameters, 16 * 8 + 8)
        self.assertEqual(session.get_providers(), celer.get_available_providers())

    def test_strings(self):
        model = network([helper.make_node("Equal", ["x", "w"], ["y"])], [("x", TensorProto.STRING, ["n"])],
                        [("y", TensorProto.BOOL, ["n"])], [("w", np.asarray(["cat"], object))], opset=19)
        ours, theirs = pair(model)
        x = np.asarray(["cat", "dog", "cat"], object)
        self.assertEqual(ours.get_inputs()[0].type, theirs.get_inputs()[0].type)
        np.testing.assert_array_equal(ours.run(None, {"x": x})[0], theirs.run(None, {"x": x})[0])

    def test_threads_share_a_session(self):
        ours, _ = pair(DENSE)
        inputs = [RANDOM.standard_normal((i + 1, 16), np.float32) for i in range(8)]
        expected = [ours.run(["y"], {"x": x})[0] for x in inputs]
        wrong = []

        def work(i):
            for _ in range(50):
                if not np.array_equal(ours.run(["y"], {"x": inputs[i]})[0], expected[i]):
                    wrong.append(i)
        threads = [threading.Thread(target=work, args=(i,)) for i in range(8)]
        for one in threads:
            one.start()
        for one in threads:
            one.join()
        self.assertEqual(wrong, [])

    def test_optimization_levels_agree(self):
        x = RANDOM.standard_normal((1, 3, 17, 13), np.float32)
        plain = options(celer)
        plain.graph_optimization_level = celer.GraphOptimizationLevel.ORT_DISABLE_ALL
        np.testing.assert_allclose(celer.InferenceSession(CONV, plain).run(None, {"x": x})[0],
                                   celer.InferenceSession(CONV).run(None, {"x": x})[0], rtol=1e-5, atol=1e-6)

    def test_networks_of_files(self):
        """Every network of tests/golden, at the sizes that the file says and at 2 where it leaves one open."""
        files = sorted((tiny.ROOT / "tests/golden/networks").glob("*.onnx"))
        self.assertGreaterEqual(len(files), 7)
        for file in files:
            ours, theirs = celer.InferenceSession(file, options(celer)), onnxruntime.InferenceSession(str(file), options(onnxruntime))
            feed = {}
            for port in ours.get_inputs():
                shape = [size if isinstance(size, int) else 2 for size in port.shape]
                whole = port.dtype.startswith(("i", "u"))
                feed[port.name] = RANDOM.integers(0, 9, shape).astype("int64") if whole else RANDOM.standard_normal(shape, np.float32)
            for port, mine, yours in zip(ours.get_outputs(), ours.run(None, feed), theirs.run(None, feed)):
                with self.subTest(file=file.name, output=port.name):
                    self.assertEqual((mine.dtype, mine.shape), (yours.dtype, yours.shape))
                    np.testing.assert_allclose(mine, yours, rtol=1e-4, atol=1e-4 * max(1.0, float(np.abs(yours).max(initial=0))))

    @unittest.skipIf(tiny.SANITIZED, "sanitizers keep memory that was freed")
    def test_sessions_come_and_go(self):
        def rss():
            with open("/proc/self/statm", encoding="ascii") as file:
                return int(file.read().split()[1]) * 4096
        x = RANDOM.standard_normal((1, 16), np.float32)
        for i in range(1200):
            if i == 200:
                before = rss()
            celer.InferenceSession(DENSE, options(celer)).run(None, {"x": x})
        self.assertLess(rss() - before, 8 << 20)

    @unittest.skipIf(tiny.SANITIZED, "sanitizers keep memory that was freed")
    def test_del_gives_memory_back(self):
        """Of a network with 64 MB of weights, to 5 %: what was mapped, what was packed, and what values took."""
        def rss():
            gc.collect()
            with open("/proc/self/statm", encoding="ascii") as file:
                return int(file.read().split()[1]) * 4096
        model = network([helper.make_node("MatMul", ["x", "w"], ["y"])], [("x", F32, ["n", 4096])], [("y", F32, ["n", 4096])],
                        [("w", RANDOM.standard_normal((4096, 4096), np.float32))])
        x = RANDOM.standard_normal((64, 4096), np.float32)
        found = []
        for _ in range(3):
            session = celer.InferenceSession(model, options(celer))
            session.run(None, {"x": x})
            found.append(rss())
            del session
            found.append(rss())
        with self.subTest(megabytes=[one / 1e6 for one in found]):
            self.assertGreater(found[2] - found[1], 60e6)
            self.assertLess(abs(found[3] / found[1] - 1), 0.05)
            self.assertLess(abs(found[5] / found[1] - 1), 0.05)

    def test_bad_arguments(self):
        session = celer.InferenceSession(DENSE)
        x = np.zeros((2, 16), np.float32)
        binding = session.io_binding()

        def bound(array):
            binding.bind_cpu_input("x", x)
            binding.bind_ortvalue_output("y", celer.OrtValue(array))
            binding.run()
        unknown = network([helper.make_node("NoSuchOperator", ["x"], ["y"], domain="nowhere")], [("x", F32, [1])], [("y", F32, [1])])
        cut = DENSE[:len(DENSE) // 2]
        wrong = options(celer)
        wrong.precision = "f8"
        for kind, words, call in [
                (ValueError, "not given", lambda: session.run(None, {})), (ValueError, "it has x", lambda: session.run(None, {"z": x, "x": x})),
                (ValueError, "no output 'q'", lambda: session.run(["q"], {"x": x})),
                (ValueError, "float64", lambda: session.run(None, {"x": x.astype(np.float64)})),
                (ValueError, "[2, 4]", lambda: session.run(None, {"x": x[:, :4]})), (ValueError, "[16]", lambda: session.run(None, {"x": x[0]})),
                (ValueError, "string to float", lambda: session.run(None, {"x": [["a"] * 16]})),
                (FileNotFoundError, "/no/such.onnx", lambda: celer.InferenceSession("/no/such.onnx")),
                (ValueError, "the bytes", lambda: celer.InferenceSession(b"junk")), (ValueError, "the bytes", lambda: celer.InferenceSession(cut)),
                (NotImplementedError, "NoSuchOperator", lambda: celer.InferenceSession(unknown)),
                (NotImplementedError, "NoSuchOperat", lambda: celer.InferenceSession(unknown.replace(b"NoSuchOperator", b"NoSuchOperat\xff\xfe"))),
                (ValueError, "CPUExecutionProvider alone", lambda: celer.InferenceSession(DENSE, providers=["CUDAExecutionProvider"])),
                (TypeError, "sess_options", lambda: celer.InferenceSession(DENSE, session_options=None)),
                (TypeError, "SessionOptions", lambda: celer.InferenceSession(DENSE, onnxruntime.SessionOptions())),
                (ValueError, "precision", lambda: celer.InferenceSession(DENSE, wrong)),
                (TypeError, "intra_op_num_threads", lambda: setattr(options(celer), "intra_op_num_threads", "2")),
                (ValueError, "GraphOptimizationLevel", lambda: setattr(options(celer), "graph_optimization_level", 7)),
                (TypeError, "path_or_bytes", lambda: celer.InferenceSession(None)),
                (ValueError, "zero byte", lambda: celer.InferenceSession("net\0.onnx")),
                (ValueError, "float32", lambda: session.run(None, {"x": x.astype(">f4")})),
                (ValueError, "complex64", lambda: session.run(None, {"x": x.astype(np.complex64)})),
                (TypeError, "input_feed", lambda: session.run(None, [x])),
                (TypeError, "output_names", lambda: session.run(3, {"x": x})),
                (TypeError, "output_names", lambda: session.run("y", {"x": x})),
                (ValueError, "no options", lambda: celer.InferenceSession(DENSE, provider_options=[{"a": 1}])),
                (AttributeError, "it has", lambda: setattr(options(celer), "threads", 2)),
                (ValueError, "bound output", lambda: bound(np.empty((3, 8), np.float32))),
                (ValueError, "not contiguous", lambda: bound(np.empty((2, 16), np.float32)[:, ::2])),
                (NotImplementedError, "device_type", lambda: binding.bind_output("y", "cuda")),
                (TypeError, "pickled", lambda: pickle.dumps(session))]:
            with self.subTest(words=words):
                self.assert_error(kind, words, call)
        self.assertEqual(session.run(None, {"x": x})[0].shape, (2, 8))


class Conformance(tiny.Case):
    """The ONNX project's own tests of operators through the session; the whole suite runs in C++ (tests/conformance)."""

    def test_nodes(self):
        import os

        folder = os.path.join(os.path.dirname(onnx.__file__), "backend/test/data/node")
        if not os.path.isdir(folder):
            self.skipTest("this onnx has no test data")
        with open(tiny.ROOT / "tests/conformance/passing.txt", encoding="utf-8") as file:
            passing = {line.strip() for line in file}
        ran = 0
        for name in sorted(os.listdir(folder)):
            data = os.path.join(folder, name, "test_data_set_0")
            if "bernoulli" in name:
                continue  # draws at random
            if "node/" + name not in passing or not os.path.isdir(data):
                continue
            session = celer.InferenceSession(os.path.join(folder, name, "model.onnx"))
            ports = session.get_inputs()
            if any(not port.type.startswith("tensor(") or "string" in port.type or port.dtype not in celer._session._TYPES
                   or port.dtype == "bf16" for port in [*ports, *session.get_outputs()]):
                continue
            read = lambda kind, i: numpy_helper.to_array(onnx.load_tensor(os.path.join(data, f"{kind}_{i}.pb")))  # noqa: E731
            inputs = {port.name: read("input", i) for i, port in enumerate(ports)}
            for i, made in enumerate(session.run(None, inputs)):
                np.testing.assert_allclose(made, read("output", i), rtol=1e-3, atol=1e-6, err_msg=name)
            ran += 1
        self.assertGreater(ran, 500)


if __name__ == "__main__":
    unittest.main(verbosity=2)
