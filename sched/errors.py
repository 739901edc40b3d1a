"""The one exception a user of the scheduler can cause."""


class PlanError(Exception):
    """Bad input to the scheduler: one line that says what is wrong, where (file, field), and what to do."""
