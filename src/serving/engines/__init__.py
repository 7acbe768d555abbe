"""What executes work on models: torch, onnxruntime, llama.cpp, a remote server, or several processes. Start with
`models.py`, the configuration of a model pair, then `torch/engine.py`.
"""
