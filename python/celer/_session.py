"""ONNX Runtime's InferenceSession over celer's networks."""
from __future__ import annotations

import enum
import os
import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import _celer
from ._arguments import NotPickled, named, number, only, pass_messages, path, several, table, whole

Array = NDArray[Any]
_PROVIDER = "CPUExecutionProvider"
_TYPES = {"f32": ("tensor(float)", "float32"), "f64": ("tensor(double)", "float64"), "f16": ("tensor(float16)", "float16"),
          "bf16": ("tensor(bfloat16)", ""), "i8": ("tensor(int8)", "int8"), "i16": ("tensor(int16)", "int16"),
          "i32": ("tensor(int32)", "int32"), "i64": ("tensor(int64)", "int64"), "u8": ("tensor(uint8)", "uint8"),
          "u16": ("tensor(uint16)", "uint16"), "u32": ("tensor(uint32)", "uint32"), "u64": ("tensor(uint64)", "uint64"),
          "bool": ("tensor(bool)", "bool")}


def get_available_providers() -> list[str]:
    """Where networks run in this package."""
    return [_PROVIDER]


def get_device() -> str:
    """What networks run on in this package."""
    return "CPU"


class GraphOptimizationLevel(enum.IntEnum):
    """ORT_DISABLE_ALL runs a network as it is written; all others are the same here."""

    ORT_DISABLE_ALL = 0
    ORT_ENABLE_BASIC = 1
    ORT_ENABLE_EXTENDED = 2
    ORT_ENABLE_LAYOUT = 3
    ORT_ENABLE_ALL = 99


class SessionOptions:
    """How a network runs. intra_op_num_threads 0: as many as this process may use, shared by all sessions."""

    _KNOWN = {"intra_op_num_threads": 0, "inter_op_num_threads": 0, "graph_optimization_level": GraphOptimizationLevel.ORT_ENABLE_ALL,
              "precision": "f32", "integers": False, "log_severity_level": 2, "enable_mem_pattern": True, "enable_cpu_mem_arena": True}

    intra_op_num_threads: int
    inter_op_num_threads: int  # no effect: operators run one after the other
    graph_optimization_level: GraphOptimizationLevel
    precision: str  # "f16": values between operators and arithmetic in f16, on Arm CPUs that have it
    integers: bool  # of a quantized network: integer arithmetic also where floats are faster here, for the same bits on every machine
    log_severity_level: int  # no effect: nothing is logged
    enable_mem_pattern: bool  # no effect: memory is always planned
    enable_cpu_mem_arena: bool

    def __init__(self) -> None:
        for name, value in self._KNOWN.items():
            object.__setattr__(self, name, value)

    def __setattr__(self, name: str, value: object) -> None:
        if name not in self._KNOWN:
            raise AttributeError(f"SessionOptions has no '{name}'; it has {', '.join(sorted(self._KNOWN))}")
        default = self._KNOWN[name]
        if isinstance(default, bool):
            if not isinstance(value, bool):
                raise TypeError(f"{name} is {value!r}, expected True or False")
        elif isinstance(default, int):
            value = type(default)(whole(name, value))
        elif not isinstance(value, str):
            raise TypeError(f"{name} is {value!r}, expected a string")
        object.__setattr__(self, name, value)


class RunOptions:
    """Nothing can be chosen for one run."""


class NodeArg:
    """An input or output of a network."""

    def __init__(self, port: Mapping[str, Any]) -> None:
        self.name: str = port["name"]
        self.texts: list[str] | None = port.get("texts")
        self.dtype: str = port["dtype"]
        self.classes: list[str] = port["classes"]
        self.type = "tensor(string)" if self.texts is not None else _TYPES.get(self.dtype, (self.dtype, ""))[0]
        if not port["is_tensor"]:
            self.type = "a sequence or an optional"  # which run() neither takes nor gives
        # A dimension of any size is its name, or None.
        self.shape: list[int | str | None] = [
            size if size >= 0 else (name or None) for size, name in zip(port["shape"], port["dim_names"])]
        # What each run compares with.
        numpy_name = _TYPES.get(self.dtype, ("", ""))[1]
        self.numpy_type = np.dtype(numpy_name) if numpy_name else None
        self._fixed = [(axis, size) for axis, size in enumerate(self.shape) if isinstance(size, int)]

    def check(self, array: Array) -> None:
        """Whether it has this type and shape."""
        wanted = self.numpy_type
        if wanted is not None and array.dtype is not wanted and array.dtype != wanted:
            raise ValueError(f"the input '{self.name}' has elements of {array.dtype}, expected {wanted}")
        if not self.shape:
            return
        shape = array.shape
        same = len(shape) == len(self.shape)
        if same:
            for axis, size in self._fixed:
                same = same and shape[axis] == size
        if not same:
            raise ValueError(f"the input '{self.name}' has the shape {list(shape)}, expected {self.shape}")

    def __repr__(self) -> str:
        return f"NodeArg(name={self.name!r}, type={self.type!r}, shape={self.shape})"


def _as_array(where: str, value: Any, kind: np.dtype[Any] | None = None) -> Array:
    """Where it lies, of whatever speaks DLPack; else as numpy reads it. Numbers of Python become `kind`, if that keeps them."""
    if isinstance(value, np.ndarray):
        return value
    if hasattr(value, "__dlpack__"):
        try:
            return np.from_dlpack(value)
        except (BufferError, RuntimeError, TypeError, ValueError) as error:
            raise ValueError(f"{where} cannot be read as an array in this machine's memory: {error}") from None
    if value is None or type(value).__name__ == "PyCapsule" or isinstance(value, (str, bytes, Mapping)):
        raise TypeError(f"{where} is a {type(value).__name__}, expected an array, or what has __dlpack__")
    try:
        array = np.asarray(value)
        if kind is None or array.dtype == kind or (array.dtype.kind == "f" and kind.kind in "biu"):
            return array  # what numpy would cut off is told as a wrong type
        return np.asarray(value, kind)
    except OverflowError as error:
        raise ValueError(f"{where}: {error}") from None


class Picture:
    """A picture as the input of a network: a file (JPEG, PNG, BMP, GIF, TGA, PNM), a picture of Pillow, or an array of bytes
    [height, width, 3]. It gets the size, the order of dimensions and the element type that the input has.

    fit: "stretch", "crop" or "letterbox". size: (height, width) where the network leaves them open; else the picture's own.
    Values become (value * scale - mean) / std; mean and std are numbers, or one for each channel. layout: "auto", "nchw", "nhwc";
    channels: "rgb", "bgr". An input of bytes keeps them as they are.
    """

    @named
    def __init__(
        self, picture: Any, *, mean: float | Sequence[float] = 0.0, std: float | Sequence[float] = 1.0, scale: float = 1 / 255,
        fit: str = "stretch", size: tuple[int, int] | None = None, layout: str = "auto", channels: str = "rgb",
    ) -> None:
        if isinstance(picture, (str, os.PathLike)):
            self._picture: Any = path("picture", picture)
        else:
            self._picture = np.asarray(picture.convert("RGB") if hasattr(picture, "convert") else _as_array("picture", picture))
            if self._picture.dtype != np.uint8 or self._picture.ndim != 3 or self._picture.shape[2] != 3:
                raise ValueError(f"picture is an array of {self._picture.dtype} {list(self._picture.shape)}, expected bytes [height, width, 3]")
            self._picture = np.ascontiguousarray(self._picture)
        for name, value, known in (("fit", fit, ("stretch", "crop", "letterbox")), ("layout", layout, ("auto", "nchw", "nhwc")),
                                   ("channels", channels, ("rgb", "bgr"))):
            if value not in known:
                raise ValueError(f"{name} is {value!r}, expected {', '.join(known)}")
        if size is not None:
            sides = [whole("size", one, 1, 16384) for one in several("size", size)]
            if len(sides) != 2:
                raise ValueError(f"size is {size!r}, expected (height, width)")
            height, width = sides
        self._settings: dict[str, Any] = {
            "mean": self._numbers("mean", mean), "std": self._numbers("std", std), "scale": number("scale", scale, -1e30, 1e30),
            "layout": layout, "channels": channels, "fit": fit, "size": "" if size is None else f"{height},{width}"}

    @staticmethod
    def _numbers(name: str, value: float | Sequence[float]) -> list[float]:
        values = value if isinstance(value, Iterable) else [value]
        return [number(name, one, -1e30, 1e30) for one in values]

    def for_input(self, session: _celer.Session, name: str) -> Array:
        try:
            return session.picture(name, self._picture, **self._settings)
        except ValueError as error:  # in the words of the command
            text = str(error).replace(f"--input {name}", f"the input '{name}'").replace("an .npy file", "an array")
            raise ValueError(text.replace("--", "")) from None


class OrtValue:
    """A tensor in memory, of numpy or of anything that speaks DLPack."""

    def __init__(self, array: Any) -> None:
        self._array = _as_array("a value", array)

    @staticmethod
    def ortvalue_from_numpy(array: Array, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        only("device_type", device_type, ("cpu",), "networks run on the CPU")
        return OrtValue(np.ascontiguousarray(_as_array("array", array)))

    @staticmethod
    def ortvalue_from_shape_and_type(shape: Sequence[int], element_type: Any, device_type: str = "cpu", device_id: int = 0) -> OrtValue:
        only("device_type", device_type, ("cpu",), "networks run on the CPU")
        return OrtValue(np.empty(tuple(shape), element_type))

    def numpy(self) -> Array:
        """The same memory."""
        return self._array

    def shape(self) -> list[int]:
        return list(self._array.shape)

    def device_name(self) -> str:
        return "cpu"

    def data_ptr(self) -> int:
        return int(self._array.ctypes.data)

    def __dlpack__(self, **kwargs: Any) -> Any:
        return self._array.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> Any:
        return self._array.__dlpack_device__()


class IOBinding(NotPickled):
    """Inputs that are read where they lie, and outputs that are written where they shall be."""

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self.clear_binding_inputs()
        self.clear_binding_outputs()

    def bind_cpu_input(self, name: str, array: Array) -> None:
        self._session.check_input(name)
        self._inputs[name] = array

    def bind_ortvalue_input(self, name: str, value: OrtValue) -> None:
        self.bind_cpu_input(name, value.numpy())

    def bind_output(self, name: str, device_type: str = "cpu", device_id: int = 0) -> None:
        """An array of its own each time."""
        only("device_type", device_type, ("cpu",), "networks run on the CPU")
        self._outputs[self._session.check_output(name)] = None

    def bind_ortvalue_output(self, name: str, value: OrtValue) -> None:
        """Into this memory, which has the output's shape and type."""
        array = value.numpy()
        if not array.flags.c_contiguous or not array.flags.writeable:
            raise ValueError(f"the memory for the output '{name}' is not contiguous or not writeable")
        self._outputs[self._session.check_output(name)] = array

    def clear_binding_inputs(self) -> None:
        self._inputs: dict[str, Any] = {}

    def clear_binding_outputs(self) -> None:
        self._outputs: dict[str, Array | None] = {}
        self._values: dict[str, OrtValue] = {}

    def run(self) -> None:
        self._values = {name: OrtValue(array) for name, array in self._session.run_into(self._outputs, self._inputs).items()}

    def get_outputs(self) -> list[OrtValue]:
        """Of the last run, in the order they were bound in."""
        return [self._values[name] for name in self._outputs if name in self._values]

    def copy_outputs_to_cpu(self) -> list[Array]:
        return [value.numpy() for value in self.get_outputs()]


class InferenceSession(NotPickled):
    """A network out of an ONNX file (a path, or its bytes) or PNNX's NAME.param. Threads may share a session; runs take turns."""

    @named
    def __init__(
        self, path_or_bytes: str | bytes | os.PathLike[str], sess_options: SessionOptions | None = None,
        providers: Sequence[str | tuple[str, dict[str, Any]]] | None = None, provider_options: Sequence[dict[str, Any]] | None = None,
    ) -> None:
        options = sess_options or SessionOptions()
        if not isinstance(options, SessionOptions):
            raise TypeError(f"sess_options is {sess_options!r}, expected celer.SessionOptions")
        self._providers(providers)
        if provider_options is not None and any(several("provider_options", provider_options)):
            raise ValueError("the CPUExecutionProvider has no options; threads are in SessionOptions")
        self._options = options
        settings: dict[str, Any] = {"optimize": options.graph_optimization_level != GraphOptimizationLevel.ORT_DISABLE_ALL,
                    "precision": options.precision, "integers": bool(options.integers), "threads": options.intra_op_num_threads}
        try:
            if isinstance(path_or_bytes, (bytes, bytearray, memoryview)):
                self._native = self._from_bytes(bytes(path_or_bytes), settings)
            else:
                self._native = _celer.Session(path("path_or_bytes", path_or_bytes), **settings)
        finally:
            pass_messages()
        self._inputs = {port["name"]: NodeArg(port) for port in self._native.ports(True)}
        self._outputs = [NodeArg(port) for port in self._native.ports(False)]
        self._places = {port.name: i for i, port in enumerate(self._outputs)}
        self._lock = threading.Lock()

    @staticmethod
    def _providers(providers: Sequence[str | tuple[str, dict[str, Any]]] | None) -> None:
        if providers is None:
            return
        names = [one[0] if isinstance(one, tuple) and one else one for one in several("providers", providers)]
        if _PROVIDER not in names:
            raise ValueError(f"providers is {names}, and this package has {_PROVIDER} alone; "
                             "networks on a GPU are for the command `celer graph run --device cuda` of a build with CUDA")

    @staticmethod
    def _from_bytes(data: bytes, settings: dict[str, Any]) -> _celer.Session:
        # A file in memory: weights are mapped, not copied, and live as long as the network.
        file = os.memfd_create("network.onnx")
        try:
            with open(file, "wb", closefd=False) as out:
                out.write(data)
            return _celer.Session(f"/proc/self/fd/{file}", **settings)
        except ValueError as error:
            raise ValueError(str(error).replace(f"/proc/self/fd/{file}", "the bytes")) from None
        finally:
            os.close(file)

    def _repr_html_(self) -> str:
        ports = {f"{what} {port.name}": f"{port.type} {port.shape}"
                 for what, every in (("input", self.get_inputs()), ("output", self.get_outputs())) for port in every}
        return table("network", {"parameters": f"{self.parameters:,}"} | ports)

    def get_inputs(self) -> list[NodeArg]:
        return list(self._inputs.values())

    def get_outputs(self) -> list[NodeArg]:
        return list(self._outputs)

    def get_providers(self) -> list[str]:
        return [_PROVIDER]

    def get_session_options(self) -> SessionOptions:
        return self._options

    @property
    def parameters(self) -> int:
        """Elements of all weights."""
        return self._native.parameters

    def check_input(self, name: str) -> NodeArg:
        if name not in self._inputs:
            raise ValueError(f"the network has no input '{name}'; it has {', '.join(self._inputs)}")
        return self._inputs[name]

    def check_output(self, name: str) -> str:
        if not isinstance(name, str):
            raise TypeError(f"the name of an output is {name!r}, expected a string")
        if name not in self._places:
            raise ValueError(f"the network has no output '{name}'; it has {', '.join(self._places)}")
        return name

    def _to_array(self, name: str, value: Any) -> Any:
        """What the library reads: where the value lies, if it is contiguous and of the right type."""
        port = self.check_input(name)
        if port.texts is not None:
            return self._indices(port, value)
        if not isinstance(value, np.ndarray):
            if isinstance(value, Picture):
                return value.for_input(self._native, name)
            if port.dtype == "bf16" and hasattr(value, "__dlpack__") and not isinstance(value, OrtValue):
                return value  # numpy has no such type
            value = value.numpy() if isinstance(value, OrtValue) else _as_array(f"the input '{name}'", value, port.numpy_type)
        port.check(value)
        return value if value.flags.c_contiguous else np.ascontiguousarray(value)

    @staticmethod
    def _indices(port: NodeArg, value: Any) -> Array:
        places = {text: i for i, text in enumerate(port.texts or [])}
        array = np.asarray(value)
        return np.asarray([places.get(str(one), -1) for one in array.ravel()], np.int64).reshape(array.shape)

    def _from_array(self, port: NodeArg, array: Array) -> Array:
        if port.texts is None:
            return array
        texts = np.asarray([*port.texts, ""], object)
        return texts[array]

    def run(self, output_names: Sequence[str] | None, input_feed: Mapping[str, Any], run_options: RunOptions | None = None) -> list[Array]:
        """The outputs of these names, or all of them, as arrays of their own."""
        if output_names is not None and (isinstance(output_names, str) or not isinstance(output_names, Iterable)):
            raise TypeError(f"output_names is {output_names!r}, expected a list of names, or None")
        if not isinstance(input_feed, Mapping):
            raise TypeError(f"input_feed is a {type(input_feed).__name__}, expected a dict of arrays by name")
        places = list(self._places.values()) if output_names is None else [self._places[self.check_output(one)] for one in output_names]
        feed = {name: self._to_array(name, value) for name, value in input_feed.items()}
        return [self._from_array(self._outputs[at], made) for at, made in zip(places, self._native.run(feed, places))]

    def run_into(self, outputs: Mapping[str, Array | None], input_feed: Mapping[str, Any]) -> dict[str, Array]:
        """run() that writes outputs into arrays which are given."""
        feed = {name: self._to_array(name, value) for name, value in input_feed.items()}
        fresh = [name for name, array in outputs.items() if array is None]
        given = {name: array for name, array in outputs.items() if array is not None}
        if not given:
            return dict(zip(fresh, self.run(fresh, input_feed)))
        if not fresh:
            self._native.run(feed, [self._places[name] for name in given], list(given.values()))
            return given
        made = self.run([*fresh, *given], input_feed)
        for (name, target), array in zip(given.items(), made[len(fresh):]):
            if target.shape != array.shape or target.dtype != array.dtype:
                raise ValueError(f"the memory for the output '{name}' is {target.dtype} {target.shape}, expected {array.dtype} {array.shape}")
            target[...] = array
        return dict(zip(fresh, made)) | given

    def run_with_iobinding(self, iobinding: IOBinding, run_options: RunOptions | None = None) -> None:
        iobinding.run()

    def run_with_ort_values(self, output_names: Sequence[str] | None, input_feed: Mapping[str, OrtValue],
                            run_options: RunOptions | None = None) -> list[OrtValue]:
        return [OrtValue(array) for array in self.run(output_names, input_feed)]

    def io_binding(self) -> IOBinding:
        return IOBinding(self)
