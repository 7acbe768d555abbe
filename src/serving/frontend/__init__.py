"""What users and operators talk to: `openai/` (the HTTP endpoint of a device), `routing_api/` (token routing, mounted
on it), `ui/` (the demonstration page), and what the serving processes share: options, health pages, shutdown. Start
with `openai/server.py`; `device_gateway.py` connects the endpoint to a device node.
"""
