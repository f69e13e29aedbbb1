#!/usr/bin/env python3
"""celer quantize NET.onnx --dynamic from the outside, on a transformer: a file of the form that ONNX Runtime's quantize_dynamic
writes, which both run to the same numbers; errors beside that tool's; recipes, reports, sentences for bad input."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile

import refusals
from written_page import WrittenPage

CELER = sys.argv[1]
sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "networks"))
failures = []

try:
    import numpy as np
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper
    from onnxruntime.quantization import QuantType, quantize_dynamic
    import transformer
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

LAYERS, HIDDEN = 3, 64
PRODUCTS = 6 * LAYERS + 1  # q, k, v, o, up, down of each layer, and the pooler; the head has too few columns
INPUTS = 4 * LAYERS + 1    # q, k and v read one value


def check(condition, what):
    if not condition:
        failures.append(what)


def celer(*args, code=0):
    done = subprocess.run([CELER, *map(str, args)], capture_output=True, text=True, timeout=600)
    if done.returncode != code:
        failures.append(f"celer {' '.join(map(str, args))}: exit code {done.returncode}, expected {code}: {done.stderr}")
    return done


# The option below that mends it is one of ONNX Runtime's optimizations.
CPUINFO = pathlib.Path("/proc/cpuinfo")
SATURATES = CPUINFO.exists() and " avx2 " in CPUINFO.read_text() and "vnni" not in CPUINFO.read_text()


def run_ort(path, feeds, plain):
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")  # CPUs without VNNI saturate sums of pairs
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    if plain and not SATURATES:
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    return dict(zip(("states", "scores"), session.run(["states", "scores"], feeds)))


def run_celer(tmp, path, feeds, *flags):
    command = ["graph", "run", path, "--output", tmp / "out.npz", *flags]
    for name, value in feeds.items():
        np.save(tmp / f"in.{name}.npy", value)
        command += ["--input", f"{name}={tmp / f'in.{name}.npy'}"]
    celer(*command)
    return dict(np.load(tmp / "out.npz"))


def nsr(exact, other):
    return max(float(((exact[name] - other[name]) ** 2).sum() / (exact[name] ** 2).sum()) for name in exact)


def check_form(path, per_channel):
    model = onnx.load(path)
    onnx.checker.check_model(model)
    values = {i.name: numpy_helper.to_array(i) for i in model.graph.initializer}
    made = {o: n for n in model.graph.node for o in n.output}
    products = [n for n in model.graph.node if n.op_type == "MatMulInteger"]
    check(len(products) == PRODUCTS, f"{path.name}: {len(products)} products of integers, expected {PRODUCTS}")
    rounded = [n for n in model.graph.node if n.op_type == "DynamicQuantizeLinear"]
    check(len(rounded) == INPUTS, f"{path.name}: {len(rounded)} quantizers, expected {INPUTS}")
    for node in products:
        x, w, x_zero, w_zero = node.input
        check(made[x].op_type == "DynamicQuantizeLinear" and made[x] is made[x_zero], f"{node.name}: its left side")
        check(values[w].dtype == np.int8 and not values[w_zero].any(), f"{node.name}: its weights")
        check(values[w_zero].shape == ((values[w].shape[1],) if per_channel else ()), f"{node.name}: {values[w_zero].shape}")
        check(np.abs(values[w]).max() == 127, f"{node.name}: weights do not use their range")
    check(values["words"].dtype == np.float32, "the table of embeddings is rounded")
    largest = sum(1 for v in values.values() if v.dtype == np.float32 and v.size >= HIDDEN * HIDDEN)
    check(largest == 2, f"{path.name}: {largest} large constants are floats, expected the embeddings of words and places")


def check_beside_ort(tmp, net, feeds):
    exact = run_ort(net, feeds, plain=False)
    errors = {}
    for name, flags, per_channel in (("channel", [], True), ("tensor", ["--per-tensor"], False)):
        out = tmp / f"{name}.onnx"
        celer("quantize", net, "--dynamic", "-o", out, *flags)
        if not out.exists():
            return
        check_form(out, per_channel)
        ours, fused = run_celer(tmp, out, feeds), run_ort(out, feeds, plain=False)
        plain, as_is = run_ort(out, feeds, plain=True), run_celer(tmp, out, feeds, "--no-optimize")
        # Sums of floats in another order may cross the middle between two bytes; a step less or more is all that may do.
        for what, one, other in (("ONNX Runtime without its fusions", plain, ours), ("ONNX Runtime", fused, ours),
                                 ("celer without its passes", as_is, ours)):
            check(nsr(one, other) < 2e-4, f"{name}: {nsr(one, other):.2e} from {what}")
        theirs = tmp / f"ort-{name}.onnx"
        quantize_dynamic(str(net), str(theirs), per_channel=per_channel, weight_type=QuantType.QInt8,
                         op_types_to_quantize=["MatMul", "Gemm"])
        errors[name] = nsr(exact, ours)
        their_error = nsr(exact, run_ort(theirs, feeds, plain=False))
        check(errors[name] < 0.02, f"{name}: {errors[name]:.2e} from the float network")
        check(errors[name] < 1.05 * their_error, f"{name}: {errors[name]:.2e} from the float network, quantize_dynamic's {their_error:.2e}")
        check(nsr(run_ort(theirs, feeds, plain=True), run_celer(tmp, theirs, feeds)) < 2e-4, f"quantize_dynamic's {name} runs otherwise")
        print(f"{name}: noise to signal {errors[name]:.2e}, quantize_dynamic {their_error:.2e}, to ONNX Runtime {nsr(fused, ours):.1e}")
    check(errors["channel"] < errors["tensor"], f"a scale per channel brings nothing: {errors}")


def check_fused(tmp):
    chosen = [line for line in celer("kernels").stdout.splitlines() if line.split()[:2] == ["integer", "*"]]
    if not any(name in line for line in chosen for name in ("arm_i8mm", "arm_dotprod", "x86_vnni", "x86_avxvnni")):
        print(f"products of bytes may be slower than of floats here, and stay as they are: {chosen}")
        return
    for name, products in (("channel", PRODUCTS), ("ort-channel", PRODUCTS + 1)):  # theirs has the head, too
        said = celer("graph", "inspect", tmp / f"{name}.onnx", "--optimized", "--json", "--shape", "ids=1,16", "--shape", "mask=1,16")
        ops = {op: of["nodes"] for op, of in json.loads(said.stdout)["operators"].items()}
        fused = ops.get("celer.DynamicMatMul", 0)
        check(fused == products, f"{name}: {fused} fused products of {products}: {ops}")
        check("MatMulInteger" not in ops and "Gelu" not in ops, f"{name}: {ops}")
        check(ops.get("DynamicQuantizeLinear", 0) <= LAYERS, f"{name}: q, k and v do not share their input's bytes: {ops}")


def check_words_and_recipes(tmp, net, feeds):
    np.savez(tmp / "x.npz", **feeds)
    plan = celer("quantize", net, "--dynamic", "--explain").stdout
    for words in (f"{PRODUCTS} of {PRODUCTS} layers", f"{INPUTS} inputs of theirs", "constants", "predicted speed", "expected error"):
        check(words in plan, f"--explain has no '{words}': {plan}")
    help_text = celer("quantize", net, "--help").stdout
    check("--dynamic" in help_text, "--help does not tell of --dynamic")
    said = celer("quantize", net, "--dynamic", "-o", tmp / "a.onnx", "--evaluate", tmp / "x.npz", "--layerwise", "--auto", "2",
                 "--html", tmp / "page.html", "--recipe-out", tmp / "r.json").stdout
    check("stays float" in said and "SNR" in said and "evaluated" in said and "alone" in said, f"report: {said}")
    check(len(WrittenPage(tmp / "page.html").pictures) == 1, "the page has no picture")
    recipe = json.loads((tmp / "r.json").read_text())
    check(len(recipe["float"]) == 2 and recipe["dynamic"] is True and not recipe["ranges"], f"recipe: {recipe}")
    celer("quantize", net, "-o", tmp / "b.onnx", "--recipe", tmp / "r.json")
    check((tmp / "a.onnx").read_bytes() == (tmp / "b.onnx").read_bytes(), "a recipe gives another network")


def check_float_and_bounds(tmp, net, feeds):
    out = tmp / "float.onnx"
    celer("quantize", net, "--dynamic", "-o", out, "--float", "/layer0*", "--float", "Gemm")
    left = [n for n in onnx.load(out).graph.node if n.op_type == "MatMulInteger"]
    check(len(left) == PRODUCTS - 7, f"--float: {len(left)} products of integers")
    rows = [{name: value[i:i + 1] for name, value in feeds.items()} for i in range(len(feeds["ids"]))]  # as samples are taken

    def run_rows(path):
        outs = [run_ort(path, row, plain=True) for row in rows]
        return {name: np.concatenate([out[name] for out in outs]) for name in outs[0]}

    exact = run_rows(net)
    bound = nsr(exact, run_rows(tmp / "channel.onnx")) / 2
    said = celer("quantize", net, "--dynamic", "-o", tmp / "bound.onnx", "--evaluate", tmp / "x.npz", "--max-error", bound).stdout
    check("stays float" in said, f"--max-error left nothing float: {said}")
    held = nsr(exact, run_rows(tmp / "bound.onnx"))
    check(held < bound * 1.1, f"--max-error {bound:.2e} does not hold: {held:.2e}")


def check_bad_input(tmp, net):
    conv = helper.make_model(helper.make_graph(
        [helper.make_node("Conv", ["x", "w"], ["y"])], "g", [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 3, 8, 8])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [1, 4, 6, 6])],
        [numpy_helper.from_array(np.ones((4, 3, 3, 3), np.float32), "w")]), opset_imports=[helper.make_opsetid("", 17)])
    conv.ir_version = 8
    onnx.save(conv, tmp / "conv.onnx")
    np.save(tmp / "image.npy", np.ones((2, 3, 8, 8), np.float32))
    celer("quantize", tmp / "conv.onnx", "-o", tmp / "conv8.onnx", "--calibrate", tmp / "image.npy", "--recipe-out", tmp / "static.json")
    out = tmp / "bad.onnx"
    failures.extend(refusals.complaints(CELER, "quantize", (
            ([net, "--dynamic", "-o", out, "--calibrate", tmp / "x.npz"], "--calibrate does not go with --dynamic"),
            ([net, "--dynamic", "-o", out, "--method", "kl"], "--method does not go with --dynamic"),
            ([net, "--dynamic", "-o", out, "--activations", "i8"], "--activations does not go with --dynamic"),
            ([net, "--dynamic", "--explain", "--equalize"], "--equalize does not go with --dynamic"),
            ([net, "-o", out, "--recipe", tmp / "r.json", "--calibrate", tmp / "x.npz"], "--calibrate does not go with --dynamic"),
            ([tmp / "conv.onnx", "--dynamic", "-o", out, "--recipe", tmp / "static.json"], "a recipe for a network with ranges"),
            ([tmp / "conv.onnx", "--dynamic", "-o", out], "nothing to quantize: no Gemm or MatMul"),
            ([tmp / "channel.onnx", "--dynamic", "-o", out], "quantized already"),
            ([net, "--dynamic", "-o", out, "--report"], "give --evaluate"),
            ([net, "--dynamic", "-o", out, "--max-error", "0.1"], "give --evaluate"),
            ([net, "--dynamic", "-o", out, "--float", "*"], "every layer stays float"),
            ([net, "-o", out], "--dynamic")), tmp))


def main():
    os.environ["COLUMNS"] = "100000"
    with tempfile.TemporaryDirectory() as name:
        tmp = pathlib.Path(name)
        net = tmp / "net.onnx"
        onnx.save(transformer.make(LAYERS, HIDDEN), net)
        feeds = transformer.inputs(tokens=24, batch=2)
        check_beside_ort(tmp, net, feeds)
        check_fused(tmp)
        check_words_and_recipes(tmp, net, feeds)
        check_float_and_bounds(tmp, net, feeds)
        check_bad_input(tmp, net)
    for failure in failures:
        print(failure)
    print(f"{len(failures)} failures" if failures else "ok")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
