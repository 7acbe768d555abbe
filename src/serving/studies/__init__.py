"""Studies of a served system: its capacity under SLOs, the precision of hidden states, the interference of prefills. A
study is a function that `serving.stages` or `capacity.stages` calls; read these first.
"""
