"""Training of the dispatch network of Hyperion's GPipe baseline (Hyperion, section V-A).

Read `stages.py` first. `environment.py` samples testbeds and arrivals, `reinforce.py` learns from rollouts in them,
`train.py` runs a training, `serving_eval.py` compares the result with other dispatch rules.
"""
