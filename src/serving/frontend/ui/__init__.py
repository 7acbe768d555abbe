"""The demonstration page: a browser shows a device and its cloud write an answer token by token. `server.py` starts it,
`app.py` has its URLs, `ui_deployment.py` the nodes behind them, `run.py` one run as events, `static/` what the browser
gets. Start with `app.py`.
"""
