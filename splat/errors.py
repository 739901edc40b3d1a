"""The one exception a user can cause."""


class UserError(Exception):
    """Bad input: the message is one line that says what is wrong, where (file, image, field), and what to do."""
