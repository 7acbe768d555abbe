"""The token routing API: `POST /v1/route` tells a client with its own small model whether the large one should write
the next token, and lets it write. The device's program mounts it on the OpenAI endpoint. Start with `handler.py`.
"""
