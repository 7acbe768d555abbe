"""The page: a prompt, a slider, and the answer while two models write it, in a browser on this machine."""
