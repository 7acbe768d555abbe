"""A process that connects to the MLflow store below a folder and says which experiment it got."""

import sys

from pipeline.report.mlflow_store import Tracking, tolerate_mlflow_errors


def main(outputs: str) -> None:
    tracking = Tracking(outputs=outputs, experiment="template")
    with tolerate_mlflow_errors(tracking, print):
        print(tracking.connect()[1])


if __name__ == "__main__":
    main(sys.argv[1])
