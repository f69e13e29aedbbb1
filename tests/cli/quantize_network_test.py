#!/usr/bin/env python3
"""celer quantize NET.onnx from the outside: a file that ONNX Runtime runs to the same numbers, recipes, bounds, and
sentences for bad input with nothing half-written."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import refusals
from written_page import WrittenPage

CELER = sys.argv[1]
failures = []

try:
    import numpy as np
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)


def check(condition, what):
    if not condition:
        failures.append(what)


def celer(*args, code=0):
    done = subprocess.run([CELER, *map(str, args)], capture_output=True, text=True, timeout=600)
    if done.returncode != code:
        failures.append(f"celer {' '.join(map(str, args))}: exit code {done.returncode}, expected {code}: {done.stderr}")
    return done


def make_network(path, opset=17):
    """Convolutions with batch norm and Relu or Clip, depthwise ones, a residual sum, pools, a Concat, a head."""
    rng = np.random.default_rng(7)
    constants, nodes = [], []

    def constant(name, *shape, low=None, spread=1.0):
        if low is None:
            fan_in = np.prod(shape[1:]) if len(shape) > 1 else 4
            values = rng.normal(size=shape) * spread / np.sqrt(fan_in)
        else:
            values = rng.uniform(low, low + 1, size=shape)
        constants.append(numpy_helper.from_array(values.astype(np.float32), name))
        return name

    def conv(x, name, out, inn, k, group=1, norm=True):
        nodes.append(helper.make_node("Conv", [x, constant(name + ".w", out, inn // group, k, k)], [name], name=name,
                                      pads=[k // 2] * 4, group=group))
        if not norm:
            return name
        nodes.append(helper.make_node("BatchNormalization", [
            name, constant(name + ".s", out, low=0.5), constant(name + ".b", out), constant(name + ".m", out),
            constant(name + ".v", out, low=0.5)], [name + ".n"], name=name + ".norm"))
        return name + ".n"

    def node(op, inputs, out, **attributes):
        nodes.append(helper.make_node(op, inputs, [out], name=out + "." + op, **attributes))
        return out

    zero, six = np.zeros((), np.float32), np.full((), 6, np.float32)
    constants.extend([numpy_helper.from_array(zero, "zero"), numpy_helper.from_array(six, "six")])
    x = node("Relu", [conv("x", "stem", 8, 3, 3)], "stem.r")
    y = node("Clip", [conv(x, "dw", 8, 8, 3, group=8), "zero", "six"], "dw.r")
    y = node("Add", [conv(y, "project", 8, 8, 1), x], "sum")
    z = node("MaxPool", [y], "pool", kernel_shape=[2, 2], strides=[2, 2])
    w = node("Relu", [conv(z, "side", 4, 8, 3)], "side.r")
    z = node("Concat", [z, w], "joined", axis=1)
    z = node("Sigmoid", [conv(z, "last", 16, 12, 1)], "last.a")
    z = node("Flatten", [node("GlobalAveragePool", [z], "mean")], "flat")
    node("Gemm", [z, constant("fc.w", 10, 16), constant("fc.b", 10)], "y", transB=1)
    graph = helper.make_graph(nodes, "net", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 16, 16])],
                              [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 10])], constants)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    model.ir_version = 8
    onnx.checker.check_model(model)
    onnx.save(model, path)


def run_ort(path, x, plain):
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")  # CPUs without VNNI saturate sums of pairs
    options.intra_op_num_threads = 1
    if plain:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return np.concatenate([session.run(None, {"x": row[None]})[0] for row in x])


def run_celer(tmp, path, x):
    out = []
    for row in x:
        np.save(tmp / "row.npy", row[None])
        celer("graph", "run", path, "--input", f"x={tmp / 'row.npy'}", "--output", tmp / "out.npz")
        out.append(np.load(tmp / "out.npz")["y"])
    return np.concatenate(out)


def nsr(exact, other):
    return float(((exact - other) ** 2).sum() / (exact ** 2).sum())


def check_against_ort(tmp, net, x):
    exact = run_ort(net, x, plain=False)
    for name, flags in (("u8", []), ("i8", ["--activations", "i8"]), ("sym", ["--activations", "i8-sym"]),
                        ("tensor", ["--per-tensor", "--equalize", "--method", "mse"]),
                        ("outputs", ["--quantize-outputs", "--align-add", "--power-of-two"])):
        out = tmp / f"{name}.onnx"
        celer("quantize", net, "-o", out, "--calibrate", tmp / "x.npy", *flags)
        if not out.exists():
            continue
        onnx.checker.check_model(onnx.load(out))
        ours, plain, fused = run_celer(tmp, out, x), run_ort(out, x, True), run_ort(out, x, False)
        # Sums in another order may cross the middle between two integers; a step less or more is all that may do.
        check(nsr(plain, ours) < 2e-4, f"{name}: {nsr(plain, ours)} from ONNX Runtime without its fusions")
        check(nsr(fused, ours) < 1e-3, f"{name}: {nsr(fused, ours)} from ONNX Runtime's integer kernels")
        limit = 0.05 if name == "outputs" else 0.02
        check(nsr(exact, ours) < limit, f"{name}: {nsr(exact, ours)} from the float network")


def scales_of(path):
    model = onnx.load(path)
    return {i.name: numpy_helper.to_array(i) for i in model.graph.initializer if i.name.endswith("_scale")}


def check_form(tmp, net):
    model = onnx.load(tmp / "u8.onnx")
    types = {i.name: i.data_type for i in model.graph.initializer}
    made = {o: n for n in model.graph.node for o in n.output}
    convs = [n for n in model.graph.node if n.op_type == "Conv"]
    check(len(convs) == 5, f"convolutions: {len(convs)}")
    check(all(n.op_type != "BatchNormalization" for n in model.graph.node), "a batch norm is left")
    for conv in convs:
        x, w, b = (made[i] for i in conv.input)
        check(all(n.op_type == "DequantizeLinear" for n in (x, w, b)), f"{conv.name}: an input is not rounded")
        check(types[w.input[0]] == TensorProto.INT8 and types[b.input[0]] == TensorProto.INT32, f"{conv.name}: types")
        values = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
        product = values[x.input[1]] * values[w.input[1]]
        check(np.allclose(product, values[b.input[1]], rtol=1e-6), f"{conv.name}: the bias has another scale")
        check(values[w.input[1]].shape == (values[w.input[0]].shape[0],), f"{conv.name}: not one scale per channel")
    cuts = [n for n in model.graph.node if n.op_type in ("Relu", "Clip")]
    check(all(made[n.input[0]].op_type == "Conv" for n in cuts), "a quantizer stands between Conv and Relu")
    pool = next(n for n in model.graph.node if n.op_type == "MaxPool")
    after = next(n for n in model.graph.node if n.op_type == "QuantizeLinear" and n.input[0] == pool.output[0])
    check(values[made[pool.input[0]].input[1]] == values[after.input[1]], "a pool changes the scale")


def check_methods(tmp, net):
    seen = {}
    for method in ("minmax", "average", "percentile", "kl", "mse"):
        out = tmp / f"{method}.onnx"
        celer("quantize", net, "-o", out, "--calibrate", tmp / "x.npy", "--method", method, "--percentile", "99")
        seen[method] = scales_of(out)
    for method in ("average", "percentile", "kl", "mse"):
        differ = [n for n in seen["minmax"] if "dequant" not in n and not np.array_equal(seen["minmax"][n], seen[method][n])]
        check(differ, f"--method {method} gives the scales of minmax")


def check_recipe_and_bounds(tmp, net, x):
    said = celer("quantize", net, "-o", tmp / "a.onnx", "--calibrate", tmp / "x.npy", "--auto", "1", "--max-error", "1",
                 "--layerwise", "--html", tmp / "page.html", "--recipe-out", tmp / "r.json", "--evaluate", tmp / "x.npy").stdout
    check("stays float" in said and "SNR" in said and "evaluated" in said, f"report: {said}")
    check(len(WrittenPage(tmp / "page.html").pictures) == 1, "the page has no picture")
    recipe = json.loads((tmp / "r.json").read_text())
    check(len(recipe["float"]) == 1, f"recipe: {recipe['float']}")
    celer("quantize", net, "-o", tmp / "b.onnx", "--recipe", tmp / "r.json")
    check((tmp / "a.onnx").read_bytes() == (tmp / "b.onnx").read_bytes(), "a recipe gives another network")
    exact = run_ort(net, x, plain=False)
    all_rounded = nsr(exact, run_ort(tmp / "u8.onnx", x, plain=True))
    bound = all_rounded / 3
    celer("quantize", net, "-o", tmp / "c.onnx", "--calibrate", tmp / "x.npy", "--max-error", bound, "--analyze", len(x))
    check(nsr(exact, run_ort(tmp / "c.onnx", x, plain=True)) < bound * 1.2, "--max-error does not hold")
    plan = celer("quantize", net, "--explain").stdout
    check("Conv" in plan and "constants" in plan and "predicted speed" in plan and "expected error" in plan, f"--explain: {plan}")


def check_other_inputs(tmp, net, x):
    np.savez(tmp / "x.npz", x=x)
    folder = tmp / "folder"
    folder.mkdir()
    for i, row in enumerate(x):
        np.save(folder / f"{i:02}.npy", row[None])
    celer("quantize", net, "-o", tmp / "npz.onnx", "--calibrate", tmp / "x.npz")
    celer("quantize", net, "-o", tmp / "folder.onnx", "--calibrate", folder)
    for name in ("npz", "folder"):
        check((tmp / f"{name}.onnx").read_bytes() == (tmp / "u8.onnx").read_bytes(), f"{name}: another network than .npy")
    pixels = bytes(range(256)) * 3
    (tmp / "picture.ppm").write_bytes(b"P6\n16 16\n255\n" + pixels[:16 * 16 * 3])
    done = subprocess.run([CELER, "quantize", net, "-o", tmp / "picture.onnx", "--calibrate", tmp / "picture.ppm",
                           "--size", "16,16", "--mean", "0.5", "--std", "0.5"], capture_output=True, text=True)
    check(done.returncode == 0 or "stb" in done.stderr, f"a picture: {done.stderr}")


def check_islands(tmp):
    """A small convolution between operators that stay float is left float, and is quantized when that is asked for."""
    rng = np.random.default_rng(1)
    weights = [numpy_helper.from_array(rng.normal(size=s).astype(np.float32), n)
               for n, s in (("a.w", (8, 3, 1, 1)), ("b.w", (64, 8, 5, 5)))]
    nodes = [helper.make_node("Softmax", ["x"], ["s"], axis=1), helper.make_node("Conv", ["s", "a.w"], ["a"], name="small"),
             helper.make_node("Softmax", ["a"], ["t"], axis=1), helper.make_node("Conv", ["t", "b.w"], ["b"], name="large"),
             helper.make_node("Softmax", ["b"], ["y"], axis=1)]
    model = helper.make_model(helper.make_graph(
        nodes, "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["N", 3, 16, 16])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, ["N", 64, 12, 12])], weights), opset_imports=[helper.make_opsetid("", 17)])
    model.ir_version = 8
    onnx.save(model, tmp / "islands.onnx")

    def rounded(flags):
        done = celer("quantize", tmp / "islands.onnx", "-o", tmp / "out.onnx", "--calibrate", tmp / "x.npy", "--force", *flags)
        made = {o: n.op_type for n in onnx.load(tmp / "out.onnx").graph.node for o in n.output}
        convs = [n for n in onnx.load(tmp / "out.onnx").graph.node if n.op_type == "Conv"]
        return {n.name for n in convs if made.get(n.input[0]) == "DequantizeLinear"}, done.stderr

    names, said = rounded([])
    check(names == {"large"}, f"islands: {names} are integers")
    check("small stays float: between float operators" in said and "--islands" in said, f"islands: {said}")
    names, said = rounded(["--islands"])
    check(names == {"small", "large"}, f"--islands: {names} are integers")
    said = celer("quantize", tmp / "islands.onnx", "--explain").stdout
    check("small stays float: between float operators" in said, f"--explain: {said}")


def check_constant_samples(tmp, net):
    np.save(tmp / "zeros.npy", np.zeros((4, 3, 16, 16), np.float32))
    said = celer("quantize", net, "-o", tmp / "zeros.onnx", "--calibrate", tmp / "zeros.npy").stderr
    check("one value everywhere in 4 of 4 samples (range 0 to 0)" in said, f"samples of zeros: {said}")
    said = celer("quantize", net, "-o", tmp / "fine.onnx", "--calibrate", tmp / "x.npy").stderr
    check("everywhere" not in said, f"samples that differ: {said}")


def check_bad_input(tmp, net, x):
    nan = x.copy()
    nan[1, 0, 0, 0] = np.nan
    np.save(tmp / "nan.npy", nan)
    np.save(tmp / "wide.npy", np.zeros((2, 3, 16, 16, 2, 2), np.float32))
    np.save(tmp / "four.npy", np.zeros((2, 4, 16, 16), np.float32))
    (tmp / "empty").mkdir()
    relu = helper.make_model(helper.make_graph(
        [helper.make_node("Relu", ["x"], ["y"])], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 3])]), opset_imports=[helper.make_opsetid("", 17)])
    relu.ir_version = 8
    onnx.save(relu, tmp / "relu.onnx")
    (tmp / "other.json").write_text("{}")
    out, good = tmp / "bad.onnx", ["--calibrate", tmp / "x.npy"]
    failures.extend(refusals.complaints(CELER, "quantize", (
            ([net, "-o", out], "--calibrate"),
            ([net, *good], "-o OUT.onnx"),
            ([net, "-o", net, *good], "the network itself"),
            ([net, "-o", tmp / "u8.onnx", *good], "--force"),
            ([net, "-o", tmp / "bad.gguf", *good], ".onnx"),
            ([net, "-o", out, "--calibrate", tmp / "nan.npy"], "not finite"),
            ([net, "-o", out, "--calibrate", tmp / "wide.npy"], "dimensions"),
            ([net, "-o", out, "--calibrate", tmp / "four.npy"], "[1, 4, 16, 16]"),
            ([net, "-o", out, "--calibrate", tmp / "empty"], "no pictures"),
            ([net, "-o", out, "--calibrate", tmp / "nowhere"], "no such file"),
            ([tmp / "relu.onnx", "-o", out, *good], "nothing to quantize"),
            ([tmp / "u8.onnx", "-o", out, *good], "quantized already"),
            ([net, "-o", out, *good, "--method", "magic"], "minmax"),
            ([net, "-o", out, *good, "--float", "nobody"], "fits no layer"),
            ([net, "-o", out, *good, "--max-error", "0"], "no bound holds"),
            ([net, "-o", out, "--recipe", tmp / "other.json"], "recipe"),
            ([tmp / "nothing.onnx", "-o", out, *good], "nothing.onnx")), tmp))


def main():
    os.environ["COLUMNS"] = "100000"
    with tempfile.TemporaryDirectory() as name:
        tmp = pathlib.Path(name)
        net = tmp / "net.onnx"
        make_network(net)
        x = np.random.default_rng(3).normal(size=(12, 3, 16, 16)).astype(np.float32)
        np.save(tmp / "x.npy", x)
        check_against_ort(tmp, net, x)
        check_form(tmp, net)
        check_methods(tmp, net)
        check_recipe_and_bounds(tmp, net, x)
        check_other_inputs(tmp, net, x)
        old = tmp / "old.onnx"
        make_network(old, opset=11)
        celer("quantize", old, "-o", tmp / "old8.onnx", "--calibrate", tmp / "x.npy")
        run_ort(tmp / "old8.onnx", x[:1], plain=False)
        check_islands(tmp)
        check_constant_samples(tmp, net)
        check_bad_input(tmp, net, x)
    for failure in failures:
        print(failure)
    print(f"{len(failures)} failures" if failures else "ok")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
