"""One module for each slot of a policy: its Protocol and the choices of the papers. A new choice is one frozen dataclass
here and one YAML file in conf/policy. Read `draft.py` first.
"""
