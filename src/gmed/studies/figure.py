from __future__ import annotations

from abc import abstractmethod
from typing import Any

from gmed.plan import SMALL_VERSION
from gmed.studies.charts import Record, dressed, require_folder, require_libraries, write
from gmed.studies.study import Asked, Finding, Study


class Figure(Study):
    """A figure: records are found, and drawn."""

    def carry_out(self, asked: Asked) -> Finding:
        require_libraries()
        require_folder(asked.folder)
        found, records = self.find(asked)
        if not records:
            return found
        name = f"{self.name}-quick" if asked.quick else self.name
        small = [SMALL_VERSION] if asked.quick else []
        chart = dressed(self.draw(records), f"{self.where}: {self.title}", [*small, *self.legend(records)])
        found.files = write(chart, records, asked.folder, name)
        return found

    @abstractmethod
    def find(self, asked: Asked) -> tuple[Finding, list[Record]]:
        """What was found, and all that is drawn of it, a record for each row of its CSV file."""

    @abstractmethod
    def draw(self, records: list[Record]) -> Any:
        """The chart of these records."""

    @abstractmethod
    def legend(self, records: list[Record]) -> list[str]:
        """What a reader of the chart must know, line by line: what is shown, and of how many runs."""
