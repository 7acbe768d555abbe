"""A table or figure of a paper, declared in YAML, beside ours."""

from pipeline.report.exhibit.schema import Exhibit

__all__ = ["Exhibit"]
