"""An OpenAI-compatible server in place of the cloud's engine. Start with `engine.py`; `server.py` is its configuration,
`opening.py` checks the server before any work.
"""
