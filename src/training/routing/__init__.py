"""Token routing: trajectories with preferred models, CITER's router and Co-LLM's deferral trained on them.

Read `stages.py` first, then `record.py` and `states.py` (the data), `citer.py` and `co_llm.py` (the trainings).
"""
