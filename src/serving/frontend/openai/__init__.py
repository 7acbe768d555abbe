"""The OpenAI-compatible HTTP endpoint of a device: `/v1/completions`, `/v1/chat/completions`, `/v1/models`, metrics and
health. Start with `server.py` (the URLs), then `generation.py` (one request), `service.py` (its way to the gateway) and
`gateway.py` (what the endpoint needs of a device).
"""
