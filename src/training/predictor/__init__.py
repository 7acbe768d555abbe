"""WISP's rejection predictor: from served windows to a model that tells which draft will not stand (section 4.1)."""
