"""The device's model on onnxruntime: `export.py` writes the graph and checks it, `engine.py` drafts with it."""
