"""Sources of tokens for simulations without models: a recorded trace, acceptance fitted to one, or stated rates. Read
`outcomes.py` first: it has the interface of a source.
"""
