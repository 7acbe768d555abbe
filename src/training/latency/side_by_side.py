"""Times the batches of an interference experiment on a pair's large model."""

from __future__ import annotations

from serving.engines.models import Pair
from serving.progress import Progress
from training.latency.accelerator import Accelerator
from training.latency.interference import Interference
from training.latency.profile import VARIETY
from training.latency.stopwatch import Stopwatch
from training.latency.timing import Timing
from training.latency.verification import forwards


def time_batches(pair: Pair, options: Interference, accelerator: str, progress: Progress) -> list[Timing]:
    """Timings of `options.shapes()`, in rounds: every shape once a round."""
    from serving.deployment.model_loading import open_models

    models, shapes = open_models(pair.device, pair.cloud, accelerator), options.shapes()
    vocabulary = min(VARIETY, pair.cloud.timing.vocabulary)
    works, pause_s = forwards(models.cloud_layers), options.pause_ms / 1e3
    watch = Stopwatch(models.cloud, works, Accelerator(accelerator), vocabulary, options.seed, pause_s=pause_s)
    warm = (shapes * options.warm_ups)[-options.warm_ups :] if options.warm_ups else []
    watch.warm_up(warm, 0.1 * options.budget_s)
    runs = options.repeats * len(shapes)
    return watch.time(shapes, options.repeats, options.budget_s, lambda done: progress(done, runs, "batches"))
