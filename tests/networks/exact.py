"""A network in f64 instead of f32, in ONNX Runtime: what both runtimes' f32 results can be measured against."""
import numpy as np


def in_double(model):
    """Changes an onnx.ModelProto in place. What is computed in f32 by an operator's definition stays so."""
    from onnx import AttributeProto, TensorProto, numpy_helper

    # Scales are f32 whatever is resized.
    scales = {name for node in model.graph.node for name in node.input[1:] if node.op_type in ("Resize", "Upsample")}

    def tensor(t):
        if t.data_type == TensorProto.FLOAT:
            t.CopyFrom(numpy_helper.from_array(numpy_helper.to_array(t).astype(np.float64), t.name))

    def nodes(some):
        for node in some:
            for attribute in node.attribute:
                if attribute.type == AttributeProto.TENSOR:
                    if not scales.intersection(node.output):
                        tensor(attribute.t)
                elif attribute.type == AttributeProto.GRAPH:
                    graph(attribute.g)
                elif node.op_type == "Cast" and attribute.name == "to" and attribute.i == TensorProto.FLOAT:
                    attribute.i = TensorProto.DOUBLE

    def graph(some):
        for t in some.initializer:
            if t.name not in scales:
                tensor(t)
        for value in [*some.input, *some.output]:
            if value.type.tensor_type.elem_type == TensorProto.FLOAT:
                value.type.tensor_type.elem_type = TensorProto.DOUBLE
        del some.value_info[:]
        nodes(some.node)

    graph(model.graph)
    for function in model.functions:
        nodes(function.node)
    return model


def outputs(path, feeds):
    """By name, from the f64 form and from the f32 form; an exception where ONNX Runtime has no f64 kernel for it."""
    import onnx
    import onnxruntime

    def run(data, inputs):
        session = onnxruntime.InferenceSession(data, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(names, inputs)))

    wide = {name: value.astype(np.float64) if value.dtype == np.float32 else value for name, value in feeds.items()}
    return run(in_double(onnx.load(path)).SerializeToString(), wide), run(str(path), feeds)


def error(got, right):
    """The largest difference over the largest number, over all outputs of floats."""
    found = [float(np.abs(got[name].astype(np.float64) - value).max() / np.abs(value).max())
             for name, value in right.items() if value.dtype == np.float64 and value.size]
    return max(found) if found else float("inf")
