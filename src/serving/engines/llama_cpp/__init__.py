"""Models that llama.cpp runs from GGUF files: `context.py` keeps the texts of sessions, `engine.py` executes work."""
