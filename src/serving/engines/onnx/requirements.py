"""What exporting and running graphs needs, and the plain words where it is not there."""

from importlib.util import find_spec

LIBRARIES = ("onnx", "onnxscript", "onnxruntime")


def check() -> None:
    """Raises ValueError where a library is missing; imports none."""
    missing = [name for name in LIBRARIES if find_spec(name) is None]
    if missing:
        raise ValueError(
            f"model: backend=onnx needs {' and '.join(missing)}, which this Python does not have; "
            "install tandem-llm[onnx], or set model.device.backend=torch"
        )
