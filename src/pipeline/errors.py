"""What a user can mend: said in one paragraph, without a traceback, before any work is lost."""


class UserError(Exception):
    """Whose fault, what was got, what is allowed, what to do."""


class ConfigError(UserError):
    """The configuration asks for something that does not exist or does not go together."""
