"""The device's model as a graph: exported once, then run by onnxruntime."""
