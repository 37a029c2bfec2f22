"""``mlxcel bench``: measures any OpenAI-compatible server over HTTP."""
