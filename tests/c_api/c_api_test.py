#!/usr/bin/env python3
"""libceler.so through ctypes: what it exports, a model, a network, limits, and what it says about bad arguments.

  python3 c_api_test.py build/libceler.so build/celer
"""
import ctypes
import os
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
OK, INVALID, NOT_FOUND, CORRUPT, DEVICE, TIMEOUT = 0, 1, 2, 3, 7, 10
Log = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int, ctypes.c_char_p)

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

    def test_nothing_prints_exits_or_takes_a_signal(self):
        """By what it imports. abort() is base/check.cc's, which no input reaches; fprintf(), too, which says where."""
        imported = subprocess.run(["nm", "-D", "--undefined-only", LIBRARY], capture_output=True, text=True, check=True).stdout
        names = {line.split()[-1].split("@")[0] for line in imported.splitlines()}
        self.assertIn("abort", names)
        if b".nv_fatbin" in pathlib.Path(LIBRARY).read_bytes():
            names -= {"exit", "kill"}  # CUDA's own runtime
        self.assertEqual(names & {"exit", "_exit", "_Exit", "quick_exit", "raise", "kill", "signal", "sigaction", "sigprocmask", "printf",
                                  "__printf_chk", "puts", "putchar", "vprintf", "perror", "stdout", "_ZSt4cout", "_ZSt4cerr", "_ZSt4clog",
                                  "system", "execve", "fork"}, set())

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
        celer.celer_model_options_init(ctypes.byref(options), ctypes.c_size_t(ctypes.sizeof(options)))
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
        celer.celer_request_init(ctypes.byref(request), ctypes.c_size_t(ctypes.sizeof(request)))
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
        for init, kind, field in ((celer.celer_model_options_init, Options, "threads"), (celer.celer_request_init, Request, "n"),
                                  (celer.celer_graph_options_init, GraphOptions, "optimize"), (celer.celer_limits_init, Limits, "batch")):
            for size in (0, getattr(kind, field).offset, 240):  # 240: a newer header
                memory = (ctypes.c_byte * 256)(*[7] * 256)
                init(memory, ctypes.c_size_t(size))
                self.assertEqual(bytes(memory)[size:], b"\x07" * (256 - size))
                if size:
                    self.assertEqual(ctypes.cast(memory, ctypes.POINTER(kind)).contents.struct_size, size)
            self.assertEqual(bytes(memory)[ctypes.sizeof(kind):size], bytes(size - ctypes.sizeof(kind)))
            before = bytes(memory)
            init(memory, ctypes.c_size_t(2**63))
            self.assertEqual(bytes(memory)[8:], before[8:])

    def test_no_struct_ends_within_a_field(self):
        options = Options()
        celer.celer_model_options_init(ctypes.byref(options), ctypes.c_size_t(ctypes.sizeof(options)))
        options.model = str(self.path).encode()
        for size in (1, 7, 12, Options.weights.offset + 3, ctypes.sizeof(Options) + 8, 2**63, 2**64 - 1):
            options.struct_size = size
            model = ctypes.c_void_p(1)
            self.assertEqual(celer.celer_model_load(ctypes.byref(options), ctypes.byref(model)), INVALID)
            self.assertIn("struct_size", error())
            self.assertIsNone(model.value)

    def test_messages_go_where_they_are_sent_and_nowhere_else(self):
        """A GGUF file with a pre-tokenizer that nobody knows is a warning."""
        script = """
import ctypes, sys
__file__ = sys.argv[4]
exec(open(sys.argv[4]).read().split("class Symbols")[0])
said = []
log = Log(lambda user, level, text: said.append((level, text)))
if sys.argv[5] == "1":
    celer.celer_set_log(log, None, 2)
options = Options()
celer.celer_model_options_init(ctypes.byref(options), ctypes.c_size_t(ctypes.sizeof(options)))
options.model, options.threads = sys.argv[3].encode(), 1
options.context = 64
model = ctypes.c_void_p()
assert celer.celer_model_load(ctypes.byref(options), ctypes.byref(model)) == OK, error()
celer.celer_model_free(model)
celer.celer_set_log(None, None, 2)
assert bool(said) == (sys.argv[5] == "1"), said
assert all(level == 2 and b"pre-tokenizer 'zpt-2'" in text for level, text in said), said
"""
        odd = self.path.with_name("odd.gguf")
        odd.write_bytes(self.path.read_bytes().replace(b"gpt-2", b"zpt-2"))
        for wanted in "10":
            done = subprocess.run([sys.executable, "-c", script, LIBRARY, CELER, odd, __file__, wanted], capture_output=True, text=True)
            self.assertEqual((done.returncode, done.stdout, done.stderr), (0, "", ""))

    def test_fork(self):
        """Whatever a child calls is refused or does nothing; nothing waits for a thread that is gone."""
        self.encode("x")
        child = os.fork()
        if child == 0:
            code = 1
            try:
                event, id, count, null = Event(struct_size=ctypes.sizeof(Event)), ctypes.c_int64(), ctypes.c_size_t(), ctypes.c_void_p()
                options, request = Options(struct_size=ctypes.sizeof(Options)), Request(struct_size=ctypes.sizeof(Request))
                every = [celer.celer_poll(self.model, 0, ctypes.byref(event)), celer.celer_cancel(self.model, 1),
                         celer.celer_submit(self.model, ctypes.byref(request), ctypes.byref(id)),
                         celer.celer_encode(self.model, b"x", None, 0, ctypes.byref(count)),
                         celer.celer_model_load(ctypes.byref(options), ctypes.byref(null)),
                         celer.celer_graph_load(b"/no/such", None, ctypes.byref(null))]
                celer.celer_model_free(self.model)
                code = 0 if set(every) == {DEVICE} and "forked" in error() else 2
            finally:
                os._exit(code)
        self.assertEqual(os.waitpid(child, 0)[1], 0)
        self.assertEqual(len(self.answer([1, 2], max_tokens=2)[1]), 2)

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

    def test_every_null_is_a_sentence(self):
        """Each function with each of its pointers null."""
        count, id, info = ctypes.c_size_t(), ctypes.c_int64(), Info(struct_size=ctypes.sizeof(Info))
        tokens, text = (ctypes.c_int32 * 2)(1, 2), ctypes.create_string_buffer(8)
        request, event, size = Request(), Event(struct_size=ctypes.sizeof(Event)), ctypes.c_size_t
        celer.celer_request_init(ctypes.byref(request), size(ctypes.sizeof(request)))
        request.prompt, request.prompt_count = tokens, 2
        ref, model = ctypes.byref, self.model
        for function, arguments in [
                (celer.celer_model_load, (ref(Options()), None)), (celer.celer_model_load, (None, ref(ctypes.c_void_p()))),
                (celer.celer_model_get_info, (None, ref(info))), (celer.celer_model_get_info, (model, None)),
                (celer.celer_encode, (None, b"x", None, size(0), ref(count))), (celer.celer_encode, (model, None, None, size(0), ref(count))),
                (celer.celer_encode, (model, b"x", None, size(0), None)), (celer.celer_encode, (model, b"x", None, size(4), ref(count))),
                (celer.celer_encode_chat, (None, b"[]", None, None, size(0), ref(count))),
                (celer.celer_encode_chat, (model, None, None, None, size(0), ref(count))),
                (celer.celer_decode, (None, tokens, size(2), text, size(8), ref(count))),
                (celer.celer_decode, (model, None, size(2), text, size(8), ref(count))),
                (celer.celer_decode, (model, tokens, size(2), None, size(8), ref(count))),
                (celer.celer_decode, (model, tokens, size(2), text, size(8), None)),
                (celer.celer_submit, (None, ref(request), ref(id))), (celer.celer_submit, (model, None, ref(id))),
                (celer.celer_submit, (model, ref(request), None)), (celer.celer_cancel, (None, 1)),
                (celer.celer_poll, (None, 0, ref(event))), (celer.celer_poll, (model, 0, None)),
                (celer.celer_graph_load, (None, None, ref(ctypes.c_void_p()))), (celer.celer_graph_load, (b"x.onnx", None, None)),
                (celer.celer_graph_input, (None, size(0), ref(Tensor()))), (celer.celer_graph_output, (None, size(0), ref(Tensor()))),
                (celer.celer_graph_run, (None, None, size(0), ref(Tensor()))), (celer.celer_limits_compute, (None, b"rtx4090", ref(Limits()))),
                (celer.celer_limits_compute, (b"llama-3.1-8b", None, ref(Limits()))), (celer.celer_limits_compute, (b"llama-3.1-8b", b"rtx4090", None))]:
            with self.subTest(function=function.__name__, arguments=arguments):
                self.assertEqual(function(*arguments), INVALID)
                self.assertIn("null", error())
        for init in (celer.celer_model_options_init, celer.celer_request_init, celer.celer_graph_options_init, celer.celer_limits_init):
            init(None, size(64))
        celer.celer_graph_free(None)
        self.assertEqual((celer.celer_graph_input_count(None), celer.celer_graph_output_count(None)), (0, 0))

    def test_numbers_of_any_size(self):
        nan, big = float("nan"), 2**62
        for word, settings in [
                ("prompt_count", {"prompt_count": 2**63}), ("prompt_count", {"prompt_count": 256}), ("stop_tokens", {"stop_token_count": 1}),
                ("max tokens", {"max_tokens": -big}), ("min tokens", {"min_tokens": -1}), ("min tokens", {"min_tokens": big}),
                ("n is", {"n": 0}), ("n is", {"n": 2**31 - 1}), ("n is", {"n": -1}), ("top-k", {"top_k": -5}), ("temperature", {"temperature": nan}),
                ("temperature", {"temperature": float("inf")}), ("top-p", {"top_p": nan}), ("min-p", {"min_p": -1.0}),
                ("repetition penalty", {"repetition_penalty": 0.0}), ("presence penalty", {"presence_penalty": nan}),
                ("frequency penalty", {"frequency_penalty": float("inf")}), ("timeout", {"timeout_seconds": nan}), ("timeout", {"timeout_seconds": 1e300})]:
            with self.subTest(word=word, settings=settings), self.assertRaises(ValueError) as raised:
                self.submit([1, 2], **settings)
            self.assertEqual(raised.exception.args[0], INVALID)
            self.assertIn(word, raised.exception.args[1])
        for word, settings in [("threads", {"threads": 2**31 - 1}), ("context", {"context": big}), ("sequences", {"sequences": -1})]:
            with self.subTest(word=word), self.assertRaises(ValueError) as raised:
                self.load(**settings)
            self.assertIn(word, raised.exception.args[1])
        self.assertIn(len(self.answer([1, 2], max_tokens=big, ignore_end=1)[1]), (254, 255))  # to the end of the context
        self.assertEqual(celer.celer_cancel(self.model, -1), NOT_FOUND)


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
        good = {"struct_size": ctypes.sizeof(Tensor), "name": b"x", "dtype": b"f32", "shape": (ctypes.c_int64 * 2)(4, 3), "rank": 2,
                "bytes": x.ctypes.data, "byte_count": x.nbytes}
        run = lambda array, number=1: celer.celer_graph_run(graph, array, ctypes.c_size_t(number), ctypes.byref(out))  # noqa: E731
        for word, wrong in [("name", {"name": None}), ("null", {"dtype": None}), ("null", {"shape": None}), ("null", {"bytes": None}),
                            ("f7", {"dtype": b"f7"}), ("f64", {"dtype": b"f64"}), ("rank", {"rank": 2**60}), ("rank", {"rank": 65}),
                            ("struct_size", {"struct_size": 0}), ("struct_size", {"struct_size": 20}), ("struct_size", {"struct_size": 2**40}),
                            ("x", {"shape": (ctypes.c_int64 * 2)(-4, 3)}), ("x", {"shape": (ctypes.c_int64 * 2)(2**62, 3)}),
                            ("x", {"shape": (ctypes.c_int64 * 2)(2**40, 2**40)}), ("x", {"byte_count": 1}), ("x", {"byte_count": 2**63}), ("x", {"rank": 1})]:
            with self.subTest(word=word, wrong=wrong):
                self.assertEqual(run((Tensor * 1)(Tensor(**(good | wrong)))), INVALID, error())
                self.assertIn(word, error())
        self.assertEqual(run((Tensor * 2)(Tensor(**good), Tensor(**good)), 2), INVALID)
        self.assertIn("twice", error())
        for size in (0, 12, 2**63):
            out.struct_size = size
            self.assertEqual(run((Tensor * 1)(Tensor(**good))), INVALID)
            self.assertIn("struct_size", error())
        out.struct_size = ctypes.sizeof(Tensor)
        self.assertEqual(run((Tensor * 1)(Tensor(**good))), OK, error())
        celer.celer_graph_free(graph)

    def test_bad_files(self):
        graph = ctypes.c_void_p()
        self.assertEqual(celer.celer_graph_load(b"/no/such.onnx", None, ctypes.byref(graph)), NOT_FOUND)
        self.assertIn("/no/such.onnx", error())
        self.assertEqual(celer.celer_graph_load(__file__.encode(), None, ctypes.byref(graph)), CORRUPT)


class LimitsTest(unittest.TestCase):
    def test_decode_of_a_preset(self):
        limits = Limits()
        celer.celer_limits_init(ctypes.byref(limits), ctypes.c_size_t(ctypes.sizeof(limits)))
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
