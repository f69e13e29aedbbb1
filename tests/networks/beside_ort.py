"""Small models made by onnx.helper, run by celer and by ONNX Runtime, and compared.

Cases of one operator are joined into one model, so that each program starts once for many of them."""
import pathlib
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import onnx
    import onnxruntime as ort
    from onnx import TensorProto, helper, numpy_helper
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)


class Case:
    """One node, or a few. Names are made unique when cases are joined."""

    def __init__(self, label, tolerance=1e-5, steps=0):
        self.label, self.tolerance, self.steps = label, tolerance, steps  # steps: of integers that may differ
        self.nodes, self.constants, self.inputs, self.outputs = [], {}, {}, []

    def input(self, name, array):
        self.inputs[name] = np.ascontiguousarray(array)
        return name

    def constant(self, name, array):
        self.constants[name] = np.asarray(array)
        return name

    def node(self, op, inputs, outputs, domain="com.microsoft", **attributes):
        self.nodes.append(helper.make_node(op, inputs, outputs, domain=domain, **attributes))
        return self

    def output(self, *names):
        self.outputs += names
        return self


def onnx_type(array):
    return TensorProto.STRING if array.dtype.kind in "OU" else helper.np_dtype_to_tensor_dtype(array.dtype)


def joined(cases, opset, ml):
    """A model with all cases side by side, what to feed it, and the outputs of each case."""
    nodes, initializers, inputs, outputs, feeds = [], [], [], [], {}
    for i, case in enumerate(cases):
        def name(text, i=i):
            return f"c{i}_{text}" if text else ""
        for node in case.nodes:
            copy = onnx.NodeProto()
            copy.CopyFrom(node)
            copy.name = name(node.op_type)
            copy.ClearField("input")
            copy.ClearField("output")
            copy.input.extend(name(x) for x in node.input)
            copy.output.extend(name(x) for x in node.output)
            nodes.append(copy)
        for key, array in case.constants.items():
            initializers.append(numpy_helper.from_array(array, name(key)))
        for key, array in case.inputs.items():
            # Sizes are open: nothing may lean on what a file says.
            dims = [f"{name(key)}_{d}" for d in range(array.ndim)]
            inputs.append(helper.make_tensor_value_info(name(key), onnx_type(array), dims))
            feeds[name(key)] = array
        outputs += [onnx.ValueInfoProto(name=name(key)) for key in case.outputs]
    graph = helper.make_graph(nodes, "cases", inputs, outputs, initializers)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid("com.microsoft", 1),
              helper.make_opsetid("ai.onnx.ml", ml)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10), feeds


def saturates():
    """Whether ONNX Runtime's sums of two products of bytes overflow here: x86 without VNNI, where no option is set or weights are inputs."""
    cpuinfo = pathlib.Path("/proc/cpuinfo")
    text = cpuinfo.read_text() if cpuinfo.exists() else ""
    return " avx2 " in text and "vnni" not in text


def run_ort(model, feeds):
    options = ort.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")  # CPUs without VNNI saturate sums of pairs
    options.log_severity_level = 4
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = ort.InferenceSession(model.SerializeToString(), options, providers=["CPUExecutionProvider"])
    return dict(zip([x.name for x in session.get_outputs()], session.run(None, feeds)))


def run_celer(celer, model, feeds, *flags):
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        path = model
        if not isinstance(model, (str, pathlib.Path)):
            path = folder / "model.onnx"
            path.write_bytes(model.SerializeToString())
        words = []
        for i, (key, array) in enumerate(feeds.items()):
            np.save(folder / f"{i}.npy", array.astype(str) if array.dtype.kind == "O" else array)
            words += ["--input", f"{key}={folder / f'{i}.npy'}"]
        out = folder / "out.npz"
        result = subprocess.run([celer, "graph", "run", path, *words, "--output", out, *flags], text=True,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        if result.returncode != 0:
            return result.stderr.strip()
        with np.load(out) as arrays:
            return {key: arrays[key] for key in arrays.files}


def differs(ours, theirs, tolerance, steps):
    """What is wrong, or nothing."""
    theirs = np.asarray(theirs)
    if ours.shape != theirs.shape:
        return f"the shape is {ours.shape}, not {theirs.shape}"
    if theirs.dtype.kind in "OU":
        return "" if (ours.astype(str) == theirs.astype(str)).all() else f"{ours} instead of {theirs}"
    if ours.dtype != theirs.dtype:
        return f"the type is {ours.dtype}, not {theirs.dtype}"
    if theirs.size == 0:
        return ""
    if theirs.dtype.kind in "iub":
        error = np.abs(ours.astype(np.int64) - theirs.astype(np.int64)).max()
        return "" if error <= steps else f"differs by {error} steps"
    ours, theirs = ours.astype(np.float64), theirs.astype(np.float64)
    if (np.isnan(ours) != np.isnan(theirs)).any():
        return "NaN in other places"
    ours, theirs = np.nan_to_num(ours), np.nan_to_num(theirs)
    error = np.abs(ours - theirs).max() / max(1.0, np.abs(theirs).max())
    return "" if error <= tolerance else f"differs by {error:.2e} of the scale"


def check(celer, cases, opset=17, ml=3):
    """Sentences about what differs. Cases that ONNX Runtime refuses are left out."""
    wrong = []
    try:
        model, feeds = joined(cases, opset, ml)
        theirs = run_ort(model, feeds)
    except Exception as error:  # one of them; find it
        if len(cases) == 1:
            return [f"{cases[0].label}: ONNX Runtime refuses it: {str(error).splitlines()[0][:300]}"]
        return sum((check(celer, [case], opset, ml) for case in cases), [])
    for flags in ([], ["--no-optimize"]):
        ours = run_celer(celer, model, feeds, *flags)
        if isinstance(ours, str):
            if len(cases) == 1:
                return [f"{cases[0].label}: {ours}"]
            return sum((check(celer, [case], opset, ml) for case in cases), [])
        for i, case in enumerate(cases):
            for name in case.outputs:
                key = f"c{i}_{name}"
                problem = differs(ours[key], theirs[key], case.tolerance, case.steps)
                if problem:
                    wrong.append(f"{case.label} {' '.join(flags)}: {name}: {problem}")
    return wrong


def main(families, celer, only=""):
    """families: names, and functions that take a random generator and give cases with opset and ml."""
    wrong, count = [], 0
    for name, make in families.items():
        if only not in name:
            continue
        cases, versions = make(np.random.default_rng(7))
        found = check(celer, cases, **versions)
        count += len(cases)
        print(f"{name}: {len(cases)} cases, {'equal' if not found else f'{len(found)} differ'}", flush=True)
        wrong += found
    for line in wrong:
        print(f"error: {line}")
    print(f"{count} cases, {len(wrong)} wrong")
    return 1 if wrong else 0
