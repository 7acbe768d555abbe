"""One module for each slot of a policy: its Protocol and the papers' choices. A new choice is one frozen dataclass here
and one YAML file in conf/policy. Read `draft.py` first.
"""
