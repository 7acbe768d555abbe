"""A large model behind somebody else's OpenAI-compatible server, in the place of an engine."""
