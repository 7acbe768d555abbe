"""What configuration may name as a stage of exporting."""

from pathlib import Path

from serving.engines.models import Checkpoint
from serving.engines.onnx.header import Graphs


def export_device(
    out: Path, *, device: Checkpoint, router: Path | None = None, graphs: Graphs = "one", int8: bool = False
) -> None:
    """Exports the device's model, and the policy's router where it has one; writes model.onnx, router.onnx, onnx.json
    and what the check beside torch found.
    """
    from serving.engines.onnx.export import export
    from serving.learned import router as routing

    header = export(device, out, routing.load(router) if router else None, graphs, int8)
    found = header.checked
    (out / "check.txt").write_text(
        f"{header.made_from} as an ONNX graph{' in int8' if int8 else ''}, beside torch: largest difference of logits "
        f"{found['logits']:.2g}, of hidden states {found['hidden']:.2g}; {found['greedy']:.1%} of {found['rows']:.0f} "
        "greedy tokens are the same\n",
        encoding="utf-8",
    )
