import os
import sys
from pathlib import Path

os.environ.setdefault("TANDEM_FROZEN", "1")  # before anything imports the messages
sys.path.insert(0, str(Path(__file__).parent / "serving"))
