"""What one can tell of a drafted token, by name."""

SCORES = ("confidence", "margin", "entropy", "logit_std")
"""confidence: the top-1 probability; margin: top-1 minus top-2 probability; entropy in nats; logit_std: standard
deviation of the logits over the vocabulary (n - 1). From the logits alone.
"""

IMPORTANCE = "importance"
"""The attention that later rows pay to the token."""

KNOWN = (*SCORES, IMPORTANCE)
