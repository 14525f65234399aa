"""Write the JSON Schema of results documents into the package: python tools/schema.py."""

import json
from pathlib import Path

from gmed.results.results import document_schema

FILE = Path(__file__).parents[1] / "src" / "gmed" / "results" / "results.schema.json"

if __name__ == "__main__":
    FILE.write_text(json.dumps(document_schema(), indent=2) + "\n", encoding="utf-8")
