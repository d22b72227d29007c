"""A bar that fills up by itself as time goes by; for work that takes as long as it was told to."""

from __future__ import annotations

from rich.progress import BarColumn, Task
from rich.progress_bar import ProgressBar


class ElapsedBar(BarColumn):
    """Shows how much of a task's total, in seconds, has passed."""

    def render(self, task: Task) -> ProgressBar:
        total = task.total or 0.0
        return ProgressBar(total=total, completed=min(task.elapsed or 0.0, total), width=self.bar_width)
