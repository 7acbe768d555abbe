"""The core of `serving` as a C extension: built from the same sources by mypyc, loaded only while they are unchanged.

`python -m native` builds it. TANDEM_PURE=1 runs the sources as they are; so does TANDEM_FROZEN=1, since only the pure
build's messages are immutable. Read `modules.py` for what is compiled, then `build.py`, then `loader.py`.
"""
