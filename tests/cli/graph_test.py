#!/usr/bin/env python3
"""The commands of celer graph: graph_test.py CELER. Arrays, pictures, drawings, conversions, and what is said about
input that is wrong. The networks are those of tests/golden/networks."""
import json
import os
import pathlib
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml
import zlib

import numpy as np

from written_page import WrittenPage

CELER = None
ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
NETWORKS = ROOT / "tests" / "golden" / "networks"


def png(path, pixels):
    """Writes [height, width, 3] bytes."""
    height, width, _ = pixels.shape

    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    rows = b"".join(b"\0" + row.tobytes() for row in pixels.astype(np.uint8))
    path.write_bytes(b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
                     chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


def read_png(path):
    """[height, width, 3] of a PNG as stb writes it."""
    data, at, parts = path.read_bytes()[8:], 0, b""
    while at < len(data):
        size, kind = struct.unpack(">I4s", data[at:at + 8])
        if kind == b"IHDR":
            width, height = struct.unpack(">II", data[at + 8:at + 16])
        if kind == b"IDAT":
            parts += data[at + 8:at + 8 + size]
        at += size + 12
    raw = np.frombuffer(zlib.decompress(parts), np.uint8).reshape(height, 1 + 3 * width)
    out = np.zeros((height, width * 3), np.int64)
    for y in range(height):
        filter_, row = raw[y, 0], raw[y, 1:].astype(np.int64)
        above = out[y - 1] if y else np.zeros_like(row)
        for x in range(len(row)):
            a, b, c = (out[y, x - 3] if x >= 3 else 0), above[x], (above[x - 3] if x >= 3 else 0)
            if filter_ == 4:
                p = a + b - c
                guess = min((abs(p - a), 0, a), (abs(p - b), 1, b), (abs(p - c), 2, c))[2]
            else:
                guess = (0, a, b, (a + b) // 2)[filter_]
            out[y, x] = (row[x] + guess) % 256
    return out.reshape(height, width, 3)


class GraphCase(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="celer_graph_"))
        cls.addClassCleanup(shutil.rmtree, cls.folder, True)

    def run_celer(self, *args, **env):
        result = subprocess.run([CELER, "graph", *map(str, args)], text=True, capture_output=True, timeout=300,
                                stdin=subprocess.DEVNULL, env={**os.environ, "COLUMNS": "100", **env})
        if "build it with stb" in result.stderr:
            self.skipTest("built without stb: no pictures")
        return result

    def ok(self, *args, **env):
        result = self.run_celer(*args, **env)
        self.assertEqual(result.returncode, 0, result.stderr)
        return result

    def refused(self, *args, says, code=2, **env):
        result = self.run_celer(*args, **env)
        self.assertEqual(result.returncode, code, result.stdout + result.stderr)
        self.assertEqual(result.stdout, "")
        self.assertRegex(result.stderr, r"\Aerror: [^\n]+\n\Z")
        self.assertIn(says, result.stderr)

    def inputs(self, network):
        return json.loads(self.ok("inspect", NETWORKS / network, "--json").stdout)["inputs"]

    def golden(self, network):
        """Inputs and outputs that PyTorch gave."""
        from safetensors.numpy import load_file
        arrays = load_file(NETWORKS / (network + ".safetensors"))
        return arrays["x0"], arrays["y0"]


class Run(GraphCase):
    def save(self, name, array):
        path = self.folder / name
        np.save(path, array)
        return path

    def test_arrays_in_and_out(self):
        x, y = self.golden("resnet")
        name = self.inputs("resnet.onnx")[0]["name"]
        path = self.save("x.npy", x)
        for network in ("resnet.onnx", "resnet.pnnx.param"):
            port = self.inputs(network)[0]["name"]
            for more in ([], ["--no-optimize"]):
                self.ok("run", NETWORKS / network, "--input", f"{port}={path}", "--output", self.folder / "o.npz", *more)
                with np.load(self.folder / "o.npz") as out:
                    got = out[out.files[0]]
                np.testing.assert_allclose(got, y, atol=1e-5 * np.abs(y).max())
        # The only input needs no name, and the only output fits an .npy.
        self.ok("run", NETWORKS / "resnet.onnx", "--input", path, "--output", self.folder / "o.npy")
        np.testing.assert_allclose(np.load(self.folder / "o.npy"), y, atol=1e-5 * np.abs(y).max())
        # What NumPy makes by itself: f64, and Fortran order of a transposed array.
        for array in (x.astype(np.float64), np.asfortranarray(x), np.asfortranarray(x.astype(np.float64))):
            self.ok("run", NETWORKS / "resnet.onnx", "--input", self.save("other.npy", array), "--output", self.folder / "p.npy")
            np.testing.assert_array_equal(np.load(self.folder / "p.npy"), np.load(self.folder / "o.npy"))
        self.refused("run", NETWORKS / "resnet.onnx", "--input", f"{name}x={path}", says=f"did you mean '{name}'?")
        self.refused("run", NETWORKS / "resnet.onnx", says=f"the input '{name}' is not given; add --input {name}=FILE")
        self.refused("run", NETWORKS / "resnet.onnx", "--input", f"{name}={self.folder}/none.npy", says="none.npy")

    def test_arrays_that_do_not_fit(self):
        name = self.inputs("resnet.onnx")[0]["name"]
        x, _ = self.golden("resnet")
        for array, says in ((x.astype(np.int32), "is f32, and i32 is given"), (x[0], "is given"), (x[:, :2], "is given"),
                            (x.astype(np.float64) + 1e300, "too large for the f32")):
            self.refused("run", NETWORKS / "resnet.onnx", "--input", f"{name}={self.save('b.npy', array)}", says=says)
        (self.folder / "short.npy").write_bytes(self.save("w.npy", x).read_bytes()[:-5])
        self.refused("run", NETWORKS / "resnet.onnx", "--input", f"{name}={self.folder}/short.npy", says="short.npy")
        (self.folder / "text.npy").write_text("no array")
        self.refused("run", NETWORKS / "resnet.onnx", "--input", f"{name}={self.folder}/text.npy", says="text.npy")

    def test_pictures(self):
        name, shape = (self.inputs("resnet.onnx")[0][key] for key in ("name", "shape"))
        height, width = shape[2], shape[3]
        pixels = np.random.default_rng(1).integers(0, 256, (height, width, 3))
        png(self.folder / "p.png", pixels)
        mean, std = np.array([0.485, 0.456, 0.406]), np.array([0.229, 0.224, 0.225])
        want = ((pixels / 255 - mean) / std).transpose(2, 0, 1)[None].astype(np.float32)
        flags = ["--mean", "0.485,0.456,0.406", "--std", "0.229,0.224,0.225"]
        by_array = self.ok("run", NETWORKS / "resnet.onnx", "--input", f"{name}={self.save('p.npy', want)}",
                           "--output", self.folder / "a.npy")
        self.assertNotIn("%", by_array.stdout)
        (self.folder / "names.txt").write_text("".join(f"thing {i}\n" for i in range(1000)))
        by_picture = self.ok("run", NETWORKS / "resnet.onnx", "--input", f"{name}={self.folder}/p.png", *flags,
                             "--output", self.folder / "b.npy", "--labels", self.folder / "names.txt")
        a, b = np.load(self.folder / "a.npy"), np.load(self.folder / "b.npy")
        np.testing.assert_allclose(a, b, atol=1e-4 * np.abs(a).max())
        best = np.argsort(-b[0], kind="stable")[:5]
        shown = re.findall(r"% +(\d+)  thing (\d+)", by_picture.stdout)
        self.assertEqual([int(i) for i, _ in shown], best.tolist())
        self.assertEqual([i for i, _ in shown], [i for _, i in shown])
        probabilities = np.exp(b[0] - b[0].max()) / np.exp(b[0] - b[0].max()).sum()
        self.assertIn(f"{100 * probabilities[best[0]]:.2f} %", by_picture.stdout)
        # Other sizes are fitted; the channels may be the other way round.
        png(self.folder / "large.png", np.random.default_rng(2).integers(0, 256, (3 * height, 2 * width, 3)))
        for more in (["--fit", "crop"], ["--fit", "letterbox"], ["--channels", "bgr"], ["--top", "2"]):
            out = self.ok("run", NETWORKS / "resnet.onnx", "--input", f"{name}={self.folder}/large.png", *more)
            self.assertIn("%", out.stdout)

    def test_pictures_that_do_not_fit(self):
        name = self.inputs("resnet.onnx")[0]["name"]
        (self.folder / "bad.jpg").write_bytes(b"\xff\xd8 no picture")
        self.refused("run", NETWORKS / "resnet.onnx", "--input", f"{name}={self.folder}/bad.jpg",
                     says="bad.jpg: not a picture that can be read")
        png(self.folder / "p.png", np.zeros((8, 8, 3)))
        picture = f"{name}={self.folder}/p.png"
        for flags, says in ((["--mean", "1,2"], "--mean: 2 numbers; give one, or one for each of 3 channels"),
                            (["--std", "0"], "--std 0: expected more than 0"),
                            (["--size", "9,9"], "--size 9,9: the input"),
                            (["--layout", "nwhc"], "--layout"),
                            (["--labels", str(self.folder / "none.txt")], "none.txt")):
            self.refused("run", NETWORKS / "resnet.onnx", "--input", picture, *flags, says=says)
        words = self.inputs("minilm.onnx")[0]["name"]
        self.refused("run", NETWORKS / "minilm.onnx", "--input", f"{words}={self.folder}/p.png",
                     says="a picture needs an input of 3 or 4 dimensions")

    def test_outputs_as_pictures(self):
        import onnx
        from onnx import TensorProto, helper
        path = self.folder / "same.onnx"
        graph = helper.make_graph(
            [helper.make_node("Relu", ["x"], ["y"]), helper.make_node("ArgMax", ["x"], ["best"], axis=1, keepdims=1)], "same",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, "c", "h", "w"])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, "c", "h", "w"]),
             helper.make_tensor_value_info("best", TensorProto.INT64, [1, 1, "h", "w"])])
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
        pixels = np.random.default_rng(5).integers(0, 256, (6, 9, 3))
        png(self.folder / "in.png", pixels)
        for scale in ("1", str(1 / 255)):
            out = self.ok("run", path, "--input", f"x={self.folder}/in.png", "--scale", scale, "--output", self.folder / "out.png")
            self.assertIn("the output 'y' as a picture of 9 x 6 pixels", out.stderr)
            np.testing.assert_array_equal(read_png(self.folder / "out.png"), pixels)
        self.ok("run", path, "--input", f"x={self.folder}/in.png", "--output", self.folder / "out.jpg")
        self.assertEqual((self.folder / "out.jpg").read_bytes()[:3], b"\xff\xd8\xff")
        # Values of no picture: the map of the classes is one.
        scores = np.zeros((1, 3, 2, 2), np.float32)
        scores[0, 1, 0, 0], scores[0, 2, 1, 1] = 900, 900
        self.ok("run", path, "--input", self.save("scores.npy", scores), "--output", self.folder / "map.png")
        self.assertEqual(read_png(self.folder / "map.png").tolist(), [[[128, 0, 0], [0, 0, 0]], [[0, 0, 0], [0, 128, 0]]])
        for name, says in (("o.gif", "pictures are written as .png"), ("o.txt", "ends with .npz or .npy"), ("o.webp", ".png")):
            self.refused("run", path, "--input", f"x={self.folder}/in.png", "--output", self.folder / name, says=says)
        row, _ = self.golden("resnet")
        result = self.run_celer("run", NETWORKS / "resnet.onnx", "--input", self.save("row.npy", row), "--output",
                                self.folder / "row.png")
        self.assertEqual(result.returncode, 2)
        self.assertIn("which is no picture", result.stderr)
        self.assertFalse((self.folder / "row.png").exists())

    def test_pictures_of_other_kinds_are_named(self):
        name = self.inputs("resnet.onnx")[0]["name"]
        for file, data, says in (("a.webp", b"RIFF\x24\0\0\0WEBPVP8 ", "is a WebP file"), ("a.tiff", b"II*\0\x08\0\0\0", "is a TIFF file"),
                                 ("a.png", b"\x89PNG\r\n\x1a\n\0\0\0\x0dIHDR" + struct.pack(">II", 60000, 50000) + b"\x08\2\0\0\0",
                                  "a picture of 60000 x 50000 pixels")):
            (self.folder / file).write_bytes(data)
            self.refused("run", NETWORKS / "resnet.onnx", "--input", f"{name}={self.folder / file}", says=says)

    def detector(self, columns):
        """A network that gives the same boxes for every picture."""
        import onnx
        from onnx import TensorProto, helper, numpy_helper
        boxes = np.array([[16, 16, 16, 16, 0.9, 0.1], [16.5, 16, 16, 16, 0.8, 0.1], [48, 40, 8, 20, 0.2, 0.95],
                          [10, 10, 4, 4, 0.1, 0.1]], np.float32)
        boxes = np.concatenate([boxes, np.zeros((96, 6), np.float32)])
        data = boxes.T[None] if columns else np.concatenate([boxes[:, :4], np.ones((100, 1), np.float32), boxes[:, 4:]], 1)[None]
        graph = helper.make_graph(
            [helper.make_node("ReduceSum", ["x"], ["s"], keepdims=0), helper.make_node("Mul", ["s", "zero"], ["z"]),
             helper.make_node("Add", ["boxes", "z"], ["y"])], "detector",
            [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 64, 64])],
            [helper.make_tensor_value_info("y", TensorProto.FLOAT, list(data.shape))],
            [numpy_helper.from_array(np.float32(0), "zero"), numpy_helper.from_array(data, "boxes")])
        path = self.folder / f"detector{columns}.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
        return path

    def test_boxes(self):
        png(self.folder / "p.png", np.full((128, 128, 3), 255))
        (self.folder / "two.txt").write_text("cat\ndog\n")
        for columns in (True, False):
            out = self.ok("run", self.detector(columns), "--input", f"x={self.folder}/p.png", "--boxes",
                          self.folder / "o.png", "--labels", self.folder / "two.txt")
            self.assertIn("95.00 %  dog  at 88,60 to 104,100", out.stdout)
            self.assertIn("90.00 %  cat  at 16,16 to 48,48", out.stdout)
            self.assertEqual(out.stdout.count("%"), 2)  # one covers the second, and the last is not sure
            drawn = read_png(self.folder / "o.png")
            self.assertEqual(drawn.shape, (128, 128, 3))
            self.assertTrue((drawn[44, 16] != 255).any())  # the left edge of the cat, below its name
            self.assertTrue((drawn[44, 30] == 255).all())
        result = self.run_celer("run", NETWORKS / "resnet.onnx", "--input", self.folder / "p.png", "--boxes",
                                self.folder / "o.png")
        self.assertEqual(result.returncode, 2)
        self.assertIn("a YOLO head gives [1, boxes, 5 + classes]", result.stderr)

    def test_numbers_instead_of_files(self):
        import onnx
        from onnx import TensorProto, helper
        graph = helper.make_graph([helper.make_node("Mul", ["a", "b"], ["y"])], "product",
                                  [helper.make_tensor_value_info("a", TensorProto.FLOAT, []),
                                   helper.make_tensor_value_info("b", TensorProto.FLOAT, ["n"])],
                                  [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["n"])])
        path = self.folder / "product.onnx"
        onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), path)
        self.ok("run", path, "--input", "a=3", "--input", "b=1,2,4", "--output", self.folder / "y.npy")
        self.assertEqual(np.load(self.folder / "y.npy").tolist(), [3, 6, 12])
        self.refused("run", path, "--input", "a=3,4", "--input", "b=1", says="2 numbers for f32[]")


class Inspect(GraphCase):
    def test_activations_need_little_more_than_what_lives_at_once(self):
        for network in ("resnet.onnx", "resnet.pnnx.param", "vit.onnx"):
            found = json.loads(self.ok("inspect", NETWORKS / network, "--json", "--optimized").stdout)["activation_bytes"]
            self.assertGreater(found["live_at_once"], 0)
            self.assertLessEqual(found["planned"], 1.1 * found["live_at_once"], network)

    def test_drawings(self):
        for network in ("resnet.onnx", "yolo.onnx", "unet.pnnx.param", "minilm.onnx"):
            for more in ([], ["--optimized"]):
                self.ok("inspect", NETWORKS / network, "--svg", self.folder / "g.svg", "--html", self.folder / "g.html",
                        *more)
                svg = xml.parse(self.folder / "g.svg").getroot()
                nodes = json.loads(self.ok("inspect", NETWORKS / network, "--json", *more).stdout)["nodes"]
                titles = [t.text for t in svg.iter("{http://www.w3.org/2000/svg}title")]
                self.assertGreater(len(titles), nodes)  # a box for each, and for inputs and outputs
                self.no_overlaps(svg)
                page = WrittenPage(self.folder / "g.html")
                self.assertEqual((page.parts("table")[0]["ids"], len(page.parts("table")[0]["rows"])), ("g0", nodes))
                self.assertEqual(page.data["nodes"], nodes)

    def no_overlaps(self, svg):
        boxes = []
        for rect in svg.iter("{http://www.w3.org/2000/svg}rect"):
            if rect.get("stroke"):
                boxes.append([float(rect.get(key)) for key in ("x", "y", "width", "height")])
        width, height = float(svg.get("width")), float(svg.get("height"))
        for i, (x, y, w, h) in enumerate(boxes):
            self.assertTrue(0 <= x and 0 <= y and x + w <= width and y + h <= height, (x, y, w, h, width, height))
            for a, b, c, d in boxes[:i]:
                self.assertFalse(x < a + c and a < x + w and y < b + d and b < y + h, "two boxes overlap")

    def test_nodes(self):
        out = self.ok("inspect", NETWORKS / "mobilenet.onnx", "--nodes").stdout
        self.assertIn("MFLOP", out)
        self.assertIn("Conv", out)


class Optimize(GraphCase):
    def test_there_and_back(self):
        x, y = self.golden("mobilenet")
        np.save(self.folder / "x.npy", x)
        steps = [NETWORKS / "mobilenet.onnx", self.folder / "a.onnx", self.folder / "b.param", self.folder / "c.onnx"]
        for before, after in zip(steps, steps[1:]):
            out = self.ok("optimize", before, "-o", after, "--explain")
            self.assertIn("fold-constants", out.stdout)
            self.ok("run", after, "--input", self.folder / "x.npy", "--output", self.folder / "y.npy")
            np.testing.assert_allclose(np.load(self.folder / "y.npy"), y, atol=1e-5 * np.abs(y).max())
        import onnx
        for path in (steps[1], steps[3]):
            onnx.checker.check_model(onnx.load(path), full_check=True)

    def test_flags(self):
        self.assertIn("fuse-batch-norm", self.ok("optimize", "--list").stdout)
        self.ok("optimize", NETWORKS / "resnet.onnx", "-o", self.folder / "r.onnx", "--as-is")
        self.refused("optimize", NETWORKS / "resnet.onnx", "-o", self.folder / "r.onnx", "--disable", "fuse-batchnorm",
                     says="there is no pass 'fuse-batchnorm'; did you mean 'fuse-batch-norm'?")
        self.refused("optimize", NETWORKS / "resnet.onnx", says="--output is missing")
        self.refused("optimize", says="MODEL is missing")
        self.refused("optimize", self.folder / "none.onnx", "-o", self.folder / "r.onnx", says="none.onnx")


class Bench(GraphCase):
    def test_bench(self):
        out = self.ok("bench", NETWORKS / "mobilenet.onnx", "--repeat", 3, "--warmup", 1, "--threads", "1", "--json",
                      "--html", self.folder / "b.html")
        found = json.loads(out.stdout)
        times = found["times"][0]
        self.assertEqual(times["threads"], 1)
        self.assertEqual(len(times["seconds"]), 3)
        self.assertGreater(times["median_seconds"], 0)
        self.assertGreater(times["limit_seconds"], 0)
        self.assertGreater(sum(node["flops"] for node in times["nodes"]), 0)
        self.assertLessEqual(abs(sum(node["flops"] for node in times["nodes"]) - found["flops"]), 1e-6 * found["flops"])
        page = (self.folder / "b.html").read_text()
        self.assertIn("roofline", page)
        for svg in re.findall(r"<svg.*?</svg>", page, re.S):
            xml.fromstring(svg)
        text = self.ok("bench", NETWORKS / "mobilenet.onnx", "--repeat", 1, "--warmup", 0, "--threads", "1", "--nodes").stdout
        self.assertIn("bound by", text)


class Check(GraphCase):
    def setUp(self):
        try:
            import onnxruntime  # noqa: F401
        except ImportError:
            self.skipTest("this Python has no onnxruntime")

    def test_equal(self):
        for network in ("resnet.onnx", "vit.pnnx.param"):
            out = self.ok("check", NETWORKS / network, "--against-ort", "--python", sys.executable)
            self.assertIn("ONNX Runtime", out.stdout)
            self.assertEqual(out.stdout.count("equal; "), 2, out.stdout)

    def test_a_difference_is_found(self):
        # Sums of floats in another order: nothing keeps a tolerance of 0.
        result = self.run_celer("check", NETWORKS / "resnet.onnx", "--python", sys.executable, "--tolerance", "0")
        self.assertEqual(result.returncode, 1, result.stdout)
        self.assertRegex(result.stdout, r"differs first at\s+\w+")

    def test_no_python(self):
        self.refused("check", NETWORKS / "resnet.onnx", "--python", "/nonexistent/python",
                     says="no Python with ONNX Runtime was found (tried /nonexistent/python)")


class Errors(GraphCase):
    def test_commands(self):
        self.refused("optimise", says="did you mean 'optimize'?")
        for command in ("inspect", "run", "bench", "check"):
            self.refused(command, self.folder / "none.onnx", says="none.onnx")
            (self.folder / "broken.onnx").write_bytes(b"no network")
            self.refused(command, self.folder / "broken.onnx", says="broken.onnx")
        self.refused("bench", NETWORKS / "resnet.onnx", "--shape", "nothing=1", says="the network has no input 'nothing'")
        self.refused("bench", NETWORKS / "resnet.onnx", "--shape", f"{self.inputs('resnet.onnx')[0]['name']}=1,x",
                     says="is not a shape")


if __name__ == "__main__":
    CELER = sys.argv.pop(1)
    unittest.main()
