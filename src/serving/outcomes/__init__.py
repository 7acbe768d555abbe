"""Where tokens come from when no model runs: recorded traces, or a model of acceptance."""
