"""A network in f64 instead of f32: what both runtimes' f32 results can be measured against, and how far f32 sums of the same
network are from it when nothing but their order changes."""
import numpy as np

ORDERS = 8  # of f32 sums that are tried


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


def _windows(x, kernel, strides, dilations, pads):
    """Of [N, C, ...]: for each position in the kernel what it reads, [N, C, ...] at the size of the output."""
    rank = len(kernel)
    x = np.pad(x, [(0, 0), (0, 0), *zip(pads[:rank], pads[rank:])])
    steps = [range(0, x.shape[2 + i] - (kernel[i] - 1) * dilations[i], strides[i]) for i in range(rank)]
    for at in np.ndindex(*kernel):
        slices = [slice(at[i] * dilations[i], at[i] * dilations[i] + steps[i][-1] + 1, strides[i]) for i in range(rank)]
        yield at, x[(..., *slices)]


def operators(shuffle=None):
    """Of onnx's reference evaluator. Its batch norm of opsets before 14 takes the mean of its input; with `shuffle`, which orders a list
    at random, convolutions add their products one after the other in that order, as a textbook does."""
    from onnx.reference.op_run import OpRun

    class BatchNormalization(OpRun):
        def _run(self, x, scale, bias, mean, var, epsilon=1e-5, **_):
            scale, bias, mean, var = (v.reshape(-1, *[1] * (x.ndim - 2)) for v in (scale, bias, mean, var))
            return (((x - mean) * (scale / np.sqrt(var + x.dtype.type(epsilon))) + bias).astype(x.dtype),)

    class Conv(OpRun):
        def _run(self, x, w, b=None, auto_pad=None, dilations=None, group=None, kernel_shape=None, pads=None, strides=None):
            kernel, ones, groups = w.shape[2:], [1] * (w.ndim - 2), group or 1
            if auto_pad not in (None, "NOTSET"):
                raise NotImplementedError(f"auto_pad {auto_pad}")
            # [N, groups, channels, ...] and [groups, outputs, channels, position]
            found = [(at, read.reshape(len(x), groups, -1, *read.shape[2:])) for at, read in
                     _windows(x, kernel, strides or ones, dilations or ones, pads or [0] * 2 * len(kernel))]
            w = w.reshape(groups, -1, *w.shape[1:])
            products = [(c, at, read) for c in range(w.shape[2]) for at, read in found]
            shuffle(products)
            size = found[0][1].shape[3:]
            sums = np.zeros((len(x), *w.shape[:2], *size), x.dtype)
            for c, at, read in products:
                sums += read[:, :, c, None] * w[(slice(None), slice(None), c, *at)].reshape(1, *w.shape[:2], *[1] * len(size))
            sums = sums.reshape(len(x), -1, *size)
            return (sums if b is None else sums + b.reshape(-1, *[1] * len(size)),)

    class ConvTranspose(OpRun):
        def _run(self, x, w, b=None, auto_pad=None, dilations=None, group=None, kernel_shape=None, output_padding=None, output_shape=None,
                 pads=None, strides=None):
            if any((any(pads or []), any(output_padding or []), output_shape, (group or 1) != 1, list(strides or []) != list(w.shape[2:]),
                    any(d != 1 for d in dilations or []), auto_pad not in (None, "NOTSET"))):
                raise NotImplementedError("ConvTranspose with windows that meet")
            channels = list(range(w.shape[0]))
            shuffle(channels)
            made = np.zeros((len(x), w.shape[1], *(n * s for n, s in zip(x.shape[2:], strides))), x.dtype)
            for at in np.ndindex(*w.shape[2:]):
                sums = made[(..., *(slice(a, None, s) for a, s in zip(at, strides)))]
                for c in channels:
                    sums += x[:, c, None] * w[(c, slice(None), *at)].reshape(1, -1, *[1] * (x.ndim - 2))
            return (made if b is None else made + b.reshape(-1, *[1] * (x.ndim - 2)),)

    return [BatchNormalization] + ([Conv, ConvTranspose] if shuffle else [])


def by_name(model, feeds, shuffle=None):
    """What onnx's reference evaluator makes of it."""
    from onnx.reference import ReferenceEvaluator

    with np.errstate(all="ignore"):  # its sigmoid computes both branches
        return dict(zip([output.name for output in model.graph.output],
                        ReferenceEvaluator(model, new_ops=operators(shuffle)).run(None, feeds)))


def outputs(path, feeds):
    """By name, from the f64 form and from the f32 form in ONNX Runtime; an exception where neither it nor onnx has f64 for an operator."""
    import onnx
    import onnxruntime

    def run(data, inputs):
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        session = onnxruntime.InferenceSession(data, options, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        return dict(zip(names, session.run(names, inputs)))

    wide = {name: value.astype(np.float64) if value.dtype == np.float32 else value for name, value in feeds.items()}
    model = in_double(onnx.load(path))
    try:
        right = run(model.SerializeToString(), wide)
    except Exception:  # ONNX Runtime has most operators of pictures in f32 alone
        right = by_name(model, wide)
    return right, run(str(path), feeds)


def rounding(path, feeds, right):
    """The largest error of the network in f32, over ORDERS orders of each sum of a convolution, which are the same on every machine.
    Products are added one after the other, so a runtime that adds them in blocks is nearer to f64 more often than not."""
    import onnx

    random, model = np.random.default_rng(1), onnx.load(path)
    return max(error(by_name(model, feeds, random.shuffle), right) for _ in range(ORDERS))


def error(got, right):
    """The largest difference over the largest number, over all outputs of floats."""
    found = [float(np.abs(got[name].astype(np.float64) - value).max() / np.abs(value).max())
             for name, value in right.items() if value.dtype == np.float64 and value.size]
    return max(found) if found else float("inf")
