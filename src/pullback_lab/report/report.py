"""The results of a run, together with what the run was made with."""

import dataclasses
import json

from ..papers import Budget, Verdict
from .result import Result


@dataclasses.dataclass(frozen=True)
class Report:
    """The results of a run, and what it was run with."""

    results: tuple[Result, ...]
    """Those of the chosen claims, and of the others that have a valid result of the same budget."""
    chosen: tuple[str, ...]
    missing: tuple[str, ...]
    """Claims without a result: a chosen one if the run was interrupted, another one if it was never
    run.
    """
    budget: Budget
    date: str
    versions: dict[str, str]

    @property
    def chosen_results(self) -> tuple[Result, ...]:
        """The results of the chosen claims."""
        return tuple(result for result in self.results if result.name in self.chosen)

    @property
    def differing(self) -> tuple[Result, ...]:
        """Results of chosen claims whose verdict is not the one on record."""
        return tuple(result for result in self.chosen_results if not result.agrees)

    @property
    def complete(self) -> bool:
        """Whether every chosen claim has a result."""
        return not set(self.chosen) & set(self.missing)

    @property
    def agrees(self) -> bool:
        """Whether every chosen claim has a result, and its verdict is the one on record."""
        return self.complete and not self.differing

    @property
    def sentence(self) -> str:
        """The run in one line."""
        finished = self.chosen_results
        agree = len(finished) - len(self.differing)
        rows = sum(len(result.rows) for result in finished)
        work = sum(result.seconds for result in finished)
        text = (
            f"{agree} of {len(finished)} verdicts are those on record "
            f"({rows} measured numbers, {work:.0f} s of work)."
        )
        if not self.complete:
            unfinished = len(self.chosen) - len(finished)
            text += f" Interrupted: {unfinished} of {len(self.chosen)} were not finished."
        return text

    @property
    def counts(self) -> list[tuple[str, Verdict | None, int]]:
        """The number of claims per verdict, in words, without a verdict last; of those with a
        correction, how many leave the conclusion of the source standing.
        """
        numbers: list[tuple[str, Verdict | None, int]] = []
        for verdict in (*Verdict, None):
            own = [result for result in self.results if result.verdict is verdict]
            words = "no verdict" if verdict is None else verdict.value
            if verdict is Verdict.CORRECTED and own:
                stand = sum(result.stands is not False for result in own)
                words += f" (the conclusion stands in {stand}, changes in {len(own) - stand})"
            numbers.append((words, verdict, len(own)))
        return numbers

    def json(self) -> str:
        """The report as JSON, without the data of the figures."""
        content = {
            "date": self.date,
            "budget": self.budget.label,
            "seeds": self.budget.seeds,
            "versions": self.versions,
            "complete": self.complete,
            "missing": self.missing,
            "results": [result.plain() | {"agrees": result.agrees} for result in self.results],
        }
        return json.dumps(content, ensure_ascii=False, allow_nan=False, indent=1) + "\n"
