"""How many devices a cloud can carry: steady states of many devices, and the largest number that is served as promised
(WISP, section 5.2).
"""
