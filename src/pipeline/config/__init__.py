"""From a command line to objects: `arguments.py` reads words, `compose.py` resolves the configuration, `plan.py` makes
stages of it, `build.py` makes objects. Read `build.py` first."""
