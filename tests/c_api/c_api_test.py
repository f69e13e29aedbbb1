#!/usr/bin/env python3
"""libceler.so through ctypes: what it exports, a model, a network, limits, and what it says about bad arguments.

  python3 c_api_test.py build/libceler.so build/celer
"""
import ctypes
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import unittest

LIBRARY, CELER = sys.argv[1:3]
ROOT = pathlib.Path(__file__).resolve().parents[2]
HEADER = (ROOT / "include/celer/celer.h").read_text()

C_TYPES = {"size_t": ctypes.c_size_t, "int32_t": ctypes.c_int32, "int64_t": ctypes.c_int64, "uint64_t": ctypes.c_uint64,
           "float": ctypes.c_float, "double": ctypes.c_double, "celer_finish": ctypes.c_int,
           "const char*": ctypes.c_char_p, "const void*": ctypes.c_void_p, "const int64_t*": ctypes.POINTER(ctypes.c_int64),
           "const int32_t*": ctypes.POINTER(ctypes.c_int32), "const char* const*": ctypes.POINTER(ctypes.c_char_p)}


def struct_of(name):
    """The ctypes structure of a struct in the header, from its text: what a generator of bindings would do."""
    text = re.sub(r"/\*.*?\*/", "", HEADER, flags=re.S)
    body = re.search(rf"typedef struct {name} {{(.*?)}} {name};", text, re.S).group(1)
    fields = []
    for line in body.split(";"):
        match = re.match(r"(const char\* const\*|const \w+\*|\w+)\s+(.*)", line.strip(), re.S)
        if match:
            fields += [(field.strip(), C_TYPES[match.group(1)]) for field in match.group(2).split(",")]
    return type(name, (ctypes.Structure,), {"_fields_": fields})


Options, Info, Request, Event, GraphOptions, Tensor, Limits = (
    struct_of("celer_" + name) for name in
    ("model_options", "model_info", "request", "event", "graph_options", "tensor", "limits"))
OK, INVALID, NOT_FOUND, CORRUPT, TIMEOUT = 0, 1, 2, 3, 10

celer = ctypes.CDLL(LIBRARY)
celer.celer_last_error.restype = celer.celer_version.restype = ctypes.c_char_p
celer.celer_graph_input_count.restype = celer.celer_graph_output_count.restype = ctypes.c_size_t
celer.celer_poll.argtypes = [ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p]
celer.celer_cancel.argtypes = [ctypes.c_void_p, ctypes.c_int64]


def error():
    return celer.celer_last_error().decode()


class Symbols(unittest.TestCase):
    def test_exports_the_functions_of_the_header_and_no_other(self):
        declared = set(re.findall(r"CELER_API [^;]*?(celer_\w+)\(", HEADER))
        listed = set(re.findall(r"^    (celer_\w+);", (ROOT / "cmake/libceler.map").read_text(), re.M))
        self.assertEqual(declared, listed)
        symbols = subprocess.run(["nm", "-D", "--defined-only", LIBRARY], capture_output=True, text=True, check=True).stdout
        found = {line.split()[2].split("@")[0] for line in symbols.splitlines()}
        self.assertEqual(found - {"CELER_0"}, declared)

    def test_soname(self):
        said = subprocess.run(["readelf", "-d", LIBRARY], capture_output=True, text=True, check=True).stdout
        self.assertIn("soname: [libceler.so.0]", said)

    def test_version(self):
        self.assertRegex(celer.celer_version().decode(), r"^\d+\.\d+\.\d+(-dev)?$")


class Model(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        folder = tempfile.TemporaryDirectory(prefix="celer-c-")
        cls.addClassCleanup(folder.cleanup)
        cls.path = pathlib.Path(folder.name) / "tiny.gguf"
        subprocess.run([CELER, "synth", "smollm2-135m", "--weights", "q8_0", "--layers", "2", "--hidden", "64", "--intermediate", "96",
                        "--vocab", "512", "--heads", "2", "--kv-heads", "1", "--head-dim", "32", "-o", cls.path],
                       check=True, capture_output=True)
        cls.model = cls.load()
        cls.addClassCleanup(lambda: celer.celer_model_free(cls.model))

    @classmethod
    def load(cls, **settings):
        options = Options()
        celer.celer_model_options_init(ctypes.byref(options))
        options.model = str(cls.path).encode()
        options.threads, options.sequences, options.context = 1, 4, 256
        for name, value in settings.items():
            setattr(options, name, value)
        model = ctypes.c_void_p()
        status = celer.celer_model_load(ctypes.byref(options), ctypes.byref(model))
        if status != OK:
            raise ValueError(status, error())
        return model

    def encode(self, text):
        count = ctypes.c_size_t()
        self.assertEqual(celer.celer_encode(self.model, text.encode(), None, 0, ctypes.byref(count)), OK, error())
        tokens = (ctypes.c_int32 * count.value)()
        self.assertEqual(celer.celer_encode(self.model, text.encode(), tokens, count.value, ctypes.byref(count)), OK, error())
        return list(tokens)

    def submit(self, tokens, model=None, **settings):
        request = Request()
        celer.celer_request_init(ctypes.byref(request))
        request.prompt, request.prompt_count = (ctypes.c_int32 * len(tokens))(*tokens), len(tokens)
        for name, value in settings.items():
            setattr(request, name, value)
        id = ctypes.c_int64()
        status = celer.celer_submit(model or self.model, ctypes.byref(request), ctypes.byref(id))
        if status != OK:
            raise ValueError(status, error())
        return id.value

    def events(self, model=None):
        event = Event(struct_size=ctypes.sizeof(Event))
        while celer.celer_poll(model or self.model, -1, ctypes.byref(event)) == OK:
            yield event

    def answer(self, tokens, **settings):
        id = self.submit(tokens, **settings)
        text, ids = b"", []
        for event in self.events():
            self.assertEqual(event.request, id)
            text += event.text
            if event.token >= 0:
                ids.append(event.token)
        return text.decode(), ids

    def test_info(self):
        info = Info(struct_size=ctypes.sizeof(Info))
        self.assertEqual(celer.celer_model_get_info(self.model, ctypes.byref(info)), OK, error())
        self.assertEqual((info.vocab, info.hidden, info.layers, info.context, info.threads), (512, 64, 2, 256, 1))
        self.assertEqual(info.device, b"cpu")

    def test_a_program_with_an_older_header(self):
        """Only the first fields are known to it: nothing behind them is read or written."""
        size = Info.hidden.offset
        memory = (ctypes.c_byte * 256)(*[7] * 256)
        info = ctypes.cast(memory, ctypes.POINTER(Info)).contents
        info.struct_size = size
        self.assertEqual(celer.celer_model_get_info(self.model, ctypes.byref(info)), OK, error())
        self.assertEqual(info.vocab, 512)
        self.assertEqual(bytes(memory)[size:], b"\x07" * (256 - size))

    def test_greedy_is_what_the_command_says(self):
        text, ids = self.answer(self.encode("hello"), max_tokens=24)
        said = subprocess.run([CELER, "run", self.path, "hello", "--raw", "-q", "-n", "24", "--temperature", "0", "--device", "cpu",
                               "--threads", "1", "--context", "256"], capture_output=True, text=True, check=True).stdout
        self.assertEqual(text.strip(), said.strip())
        self.assertEqual(len(ids), 24)

    def test_text_of_tokens(self):
        tokens = self.encode("hello")
        count = ctypes.c_size_t()
        text = ctypes.create_string_buffer(64)
        ids = (ctypes.c_int32 * len(tokens))(*tokens)
        self.assertEqual(celer.celer_decode(self.model, ids, len(tokens), text, 64, ctypes.byref(count)), OK, error())
        self.assertEqual(text.value.decode().strip(), "hello")
        self.assertEqual(count.value, len(text.value))

    def test_several_requests_and_answers(self):
        ids = [self.submit([5, 6, 7 + i], max_tokens=4 + i, n=2, temperature=1.0, seed=i) for i in range(5)]
        lengths, last = {}, set()
        for event in self.events():
            lengths[event.request, event.answer] = lengths.get((event.request, event.answer), 0) + (event.token >= 0)
            if event.last:
                last.add(event.request)
        self.assertEqual(last, set(ids))
        self.assertEqual(len(lengths), 10)
        for (request, _), length in lengths.items():
            self.assertLessEqual(length, 4 + ids.index(request))

    def test_stop_strings_end_an_answer(self):
        text, _ = self.answer(self.encode("hello"), max_tokens=40)
        stop = text[len(text) // 2:][:3]
        shorter, _ = self.answer(self.encode("hello"), max_tokens=40, stop=(ctypes.c_char_p * 1)(stop.encode()), stop_count=1)
        self.assertEqual(shorter, text[:text.index(stop)])

    def test_cancel(self):
        id = self.submit([5, 6, 7], max_tokens=250, ignore_end=1)
        self.assertEqual(celer.celer_cancel(self.model, id), OK)
        finish = [event.finish for event in self.events() if event.last]
        self.assertEqual(len(finish), 1)
        self.assertIn(finish[0], (2, 3))
        self.assertEqual(celer.celer_cancel(self.model, id), NOT_FOUND)

    def test_poll_from_another_thread(self):
        """Submit waits for nobody; the poller sees each request's end."""
        model, done = self.load(), []
        stop = threading.Event()

        def poll():
            event = Event(struct_size=ctypes.sizeof(Event))
            while not stop.is_set() or celer.celer_poll(model, 0, ctypes.byref(event)) == OK:
                if celer.celer_poll(model, 20, ctypes.byref(event)) == OK and event.last:
                    done.append(event.request)

        poller = threading.Thread(target=poll)
        poller.start()
        ids = [self.submit([1 + i, 2, 3], model, max_tokens=3) for i in range(20)]
        while len(done) < 20 and poller.is_alive():
            stop.wait(0.01)
        stop.set()
        poller.join()
        celer.celer_model_free(model)
        self.assertEqual(sorted(done), sorted(ids))

    def test_free_with_requests_in_flight(self):
        for _ in range(5):
            model = self.load()
            self.submit([5, 6, 7], model, max_tokens=250)
            celer.celer_model_free(model)
        celer.celer_model_free(None)

    def test_bad_arguments_are_sentences(self):
        null = ctypes.c_void_p()
        count = ctypes.c_size_t()
        self.assertEqual(celer.celer_model_load(None, ctypes.byref(null)), INVALID)
        self.assertIn("null", error())
        self.assertEqual(celer.celer_encode(self.model, None, None, 0, ctypes.byref(count)), INVALID)
        self.assertEqual(celer.celer_encode(None, b"x", None, 0, ctypes.byref(count)), INVALID)
        self.assertEqual(celer.celer_encode_chat(self.model, b"[{", None, None, 0, ctypes.byref(count)), INVALID)
        ids = (ctypes.c_int32 * 1)(512)
        self.assertEqual(celer.celer_decode(self.model, ids, 1, None, 0, ctypes.byref(count)), INVALID)
        self.assertIn("512", error())
        event = Event(struct_size=0)
        self.assertEqual(celer.celer_poll(self.model, 0, ctypes.byref(event)), INVALID)
        event.struct_size = ctypes.sizeof(Event)
        self.assertEqual(celer.celer_poll(self.model, 0, ctypes.byref(event)), TIMEOUT)
        for status, word, settings in [(INVALID, "int3", {"weights": b"int3"}), (INVALID, "f12", {"kv": b"f12"}),
                                       (INVALID, "tpu", {"device": b"tpu"}), (INVALID, "threads", {"threads": -1}),
                                       (NOT_FOUND, "/no/such", {"model": b"/no/such.gguf"}), (INVALID, "context", {"context": -5}),
                                       (INVALID, "kv_memory", {"kv_memory": b"many"}), (INVALID, "struct_size", {"struct_size": 0})]:
            with self.subTest(word=word), self.assertRaises(ValueError) as raised:
                self.load(**settings)
            self.assertEqual(raised.exception.args[0], status)
            self.assertIn(word, raised.exception.args[1])
        for word, tokens, settings in [("prompt", [512], {}), ("prompt", [], {}), ("temperature", [1], {"temperature": -1.0}),
                                       ("top-p", [1], {"top_p": 2.0}), ("max tokens", [1], {"max_tokens": 0}),
                                       ("stop", [1], {"stop_count": 1}), ("timeout", [1], {"timeout_seconds": -1.0})]:
            with self.subTest(word=word), self.assertRaises(ValueError) as raised:
                self.submit(tokens, **settings)
            self.assertEqual(raised.exception.args[0], INVALID)
            self.assertIn(word, raised.exception.args[1])
        self.assertEqual(self.answer([1, 2, 3], max_tokens=2)[1].__len__(), 2)  # all is as before


class Graph(unittest.TestCase):
    def test_runs_as_onnxruntime_does(self):
        try:
            import numpy as np
            import onnx
            from onnx import TensorProto, helper
        except ImportError as missing:
            self.skipTest(str(missing))
        network = helper.make_model(helper.make_graph(
            [helper.make_node("MatMul", ["x", "w"], ["m"]), helper.make_node("Relu", ["m"], ["y"])], "g",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["n", 3])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n", 2])],
            [helper.make_tensor("w", TensorProto.FLOAT, [3, 2], [1, -1, 2, -2, 3, -3])]),
            opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
        with tempfile.TemporaryDirectory() as folder:
            path = folder + "/net.onnx"
            onnx.save(network, path)
            graph = ctypes.c_void_p()
            self.assertEqual(celer.celer_graph_load(path.encode(), None, ctypes.byref(graph)), OK, error())
        self.assertEqual((celer.celer_graph_input_count(graph), celer.celer_graph_output_count(graph)), (1, 1))
        port = Tensor(struct_size=ctypes.sizeof(Tensor))
        self.assertEqual(celer.celer_graph_input(graph, ctypes.c_size_t(0), ctypes.byref(port)), OK, error())
        self.assertEqual((port.name, port.dtype, port.shape[:port.rank]), (b"x", b"f32", [-1, 3]))
        x = np.arange(12, dtype=np.float32).reshape(4, 3) - 5
        tensor = Tensor(struct_size=ctypes.sizeof(Tensor), name=b"x", dtype=b"f32", shape=(ctypes.c_int64 * 2)(4, 3), rank=2,
                        bytes=x.ctypes.data, byte_count=x.nbytes)
        out = Tensor(struct_size=ctypes.sizeof(Tensor))
        self.assertEqual(celer.celer_graph_run(graph, ctypes.byref(tensor), ctypes.c_size_t(1), ctypes.byref(out)), OK, error())
        self.assertEqual(out.shape[:out.rank], [4, 2])
        made = np.frombuffer((ctypes.c_byte * out.byte_count).from_address(out.bytes), np.float32).reshape(4, 2)
        np.testing.assert_allclose(made, np.maximum(x @ np.float32([[1, -1], [2, -2], [3, -3]]), 0))
        tensor.name = b"z"
        self.assertEqual(celer.celer_graph_run(graph, ctypes.byref(tensor), ctypes.c_size_t(1), ctypes.byref(out)), INVALID)
        self.assertIn("no input 'z'", error())
        self.assertEqual(celer.celer_graph_input(graph, ctypes.c_size_t(1), ctypes.byref(port)), INVALID)
        celer.celer_graph_free(graph)

    def test_bad_files(self):
        graph = ctypes.c_void_p()
        self.assertEqual(celer.celer_graph_load(b"/no/such.onnx", None, ctypes.byref(graph)), NOT_FOUND)
        self.assertIn("/no/such.onnx", error())
        self.assertEqual(celer.celer_graph_load(__file__.encode(), None, ctypes.byref(graph)), CORRUPT)


class LimitsTest(unittest.TestCase):
    def test_decode_of_a_preset(self):
        limits = Limits()
        celer.celer_limits_init(ctypes.byref(limits))
        limits.weight_bits = 8
        self.assertEqual(celer.celer_limits_compute(b"llama-3.1-8b", b"rtx4090", ctypes.byref(limits)), OK, error())
        self.assertAlmostEqual(limits.weight_bytes, 7.504e9, delta=1e7)
        self.assertEqual(limits.decode_bound_by, b"reading weights")
        self.assertGreater(limits.tokens_per_second, 100)
        self.assertEqual(celer.celer_limits_compute(b"llama-3.1-9b", b"rtx4090", ctypes.byref(limits)), NOT_FOUND)
        self.assertIn("llama-3.1-8b", error())
        limits.batch = 0
        self.assertEqual(celer.celer_limits_compute(b"llama-3.1-8b", b"rtx4090", ctypes.byref(limits)), INVALID)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1], verbosity=2)
