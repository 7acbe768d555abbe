"""What the page says of itself before anything is asked: models, hardware, link, policies, and what figures mean."""

from typing import Any

from serving.frontend.ui.config import Show
from serving.frontend.ui.measures import Meter
from serving.hardware.fleet import Fleet

EXAMPLES, LONGEST = 8, 600
"""Prompts of the workload that are offered, and characters of the longest."""


def about(show: Show) -> dict[str, Any]:
    setup, page = show.setup, show.service.page
    fleet, pair = setup.hardware.device_fleets[0], setup.pair
    meter = Meter(fleet, setup.hardware.top, show.factor, page.pace == "hardware", page.remote)
    return {
        "models": {
            "device": {"name": pair.device.named, "stands_for": pair.device.timing.name},
            "cloud": {"name": pair.cloud.named, "stands_for": pair.cloud.timing.name},
        },
        "hardware": {"device": _chip(fleet), "cloud": _chip(setup.hardware.top)},
        "link": setup.network.described if page.shaped else "none: messages arrive at once",
        "time": _time(show),
        "devices": show.devices,
        "cloud": _cloud(show),
        "policies": [offer.about for offer in show.offers.values()],
        "left_out": show.left_out,
        "limits": {
            "max_tokens": page.max_tokens,
            "new_tokens": show.new_tokens,
            "context": min(show.contexts.values()),
        },
        "examples": examples(show),
        "measures": meter.measures,
    }


def examples(show: Show) -> list[str]:
    """A few short prompts of the workload's data set, of as many tasks as there are; none where it cannot be read."""
    try:
        prompts = show.setup.workload.dataset.prompts()
    except (ValueError, OSError):
        return []
    tasks: dict[str, list[str]] = {}
    for prompt in prompts:
        texts = tasks.setdefault(prompt.task, [])
        if len(prompt.text) <= LONGEST and prompt.text not in texts and len(texts) < EXAMPLES:
            texts.append(prompt.text)
    turns = max(map(len, tasks.values()), default=0)
    return [texts[i] for i in range(turns) for texts in tasks.values() if i < len(texts)][:EXAMPLES]


def _chip(fleet: Fleet) -> str:
    chips = f"{fleet.tensor_parallel} x " if fleet.tensor_parallel > 1 else ""
    mode = "" if fleet.mode_name == "default" else f", {fleet.mode_name}"
    return f"{chips}{fleet.chip.name}{mode}"


def _time(show: Show) -> str:
    if show.service.page.pace == "hardware":
        return "Computing lasts as long as on the named chips."
    return "Computing lasts as long as on this machine, whatever chip is named."


def _cloud(show: Show) -> str:
    if show.service.page.remote:
        return f"The cloud is another process, at {show.service.cloud}, which all runs share."
    return "Runs of one policy share its cloud; each policy has a cloud of its own."
